"""Kinds by name, and models with the weights of a checkpoint."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import convolutions, distances, mace, vectors
from hydragnn.frozen.keys import translated
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FrozenSettings

KINDS: dict[str, type[FrozenModel]] = convolutions.KINDS | distances.KINDS | vectors.KINDS | mace.KINDS

OPTIONAL = re.compile(r"aggr_module\.(init_)?avg_deg_(lin|log)$|num_batches_tracked$|\._w3j_")
"""Buffers that only some versions of libraries store."""


def build(settings: FrozenSettings, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> FrozenModel:
    """Return the model with its weights; InputError where they do not fit."""
    kind = KINDS.get(settings.kind)
    if kind is None:
        raise InputError(f"{settings.kind}: cannot be read yet")
    tensors = translated(weights, settings.generation)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # constants are created in it
    try:
        if kind.sizes_first:
            with torch.device("meta"):  # nothing is allocated before sizes are found to fit
                check_fit(kind(settings).state_dict(), tensors)
        model = kind(settings)
    finally:
        torch.set_default_dtype(default)
    own = model.state_dict()
    check_fit(own, tensors)
    model.load_state_dict(own | {name: tensor for name, tensor in tensors.items() if name in own})
    return model.to(dtype)


def check_fit(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint whose tensors are not those of the configuration."""
    missing = [name for name in own if name not in tensors and not OPTIONAL.search(name)]
    extra = [name for name in tensors if name not in own and not OPTIONAL.search(name)]
    unlike = [name for name in own if name in tensors and own[name].shape != tensors[name].shape]
    for names, what in (
        (missing, "lacks"),
        (extra, "has, and the configuration does not know,"),
        (unlike, "has in other sizes"),
    ):
        if names:
            ours, theirs = (list(side[names[0]].shape) if names[0] in side else [] for side in (own, tensors))
            sizes = f" ({theirs} instead of {ours})" if names is unlike else ""
            why = "config.json and checkpoint are of different models, or the file is incomplete"
            if names is unlike and all(is_part(own[name].shape, tensors[name].shape) for name in names):
                why = "they look like the shards of one rank (FSDP); what the other ranks had is not in this file"
            raise InputError(f"the checkpoint {what} {len(names)} tensors, the first {names[0]}{sizes}: {why}")


def is_part(whole: torch.Size, part: torch.Size) -> bool:
    """Return True where a tensor only has fewer rows."""
    return whole[1:] == part[1:] and part[:1] < whole[:1]
