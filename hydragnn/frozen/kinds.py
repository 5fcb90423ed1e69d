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

OPTIONAL = re.compile(r"aggr_module\.(init_)?avg_deg_(lin|log)$|num_batches_tracked$")
"""Buffers that only some versions of libraries store."""

MISFIT = re.compile(r"with shape torch\.Size\(\[([\d, ]*)\]\) .* is torch\.Size\(\[([\d, ]*)\]\)")
"""Sizes in the checkpoint and in the model, in messages of torch."""


def build(settings: FrozenSettings, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> FrozenModel:
    """Return the model with its weights; InputError where they do not fit."""
    kind = KINDS.get(settings.kind)
    if kind is None:
        raise InputError(f"{settings.kind}: cannot be read yet")
    tensors = translated(weights, settings.generation)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # constants are created in it
    try:
        with torch.device("meta"):  # nothing is allocated before sizes are found to fit
            load(kind(settings), tensors, assign=True)
        model = kind(settings)
    finally:
        torch.set_default_dtype(default)
    load(model, tensors)
    return model.to(dtype)


def load(model: FrozenModel, tensors: Mapping[str, Tensor], *, assign: bool = False) -> None:
    """Load weights; InputError where they are not those of the configuration."""
    other = "config.json and checkpoint are of different models, or the file is incomplete"
    try:
        # not strict: names are compared below, where those of some versions alone may lack
        names = model.load_state_dict(tensors, strict=False, assign=assign)
    except RuntimeError as error:
        unlike = [[*map(sizes_in, match)] for match in MISFIT.findall(str(error))]
        if unlike and all(theirs[1:] == ours[1:] and theirs < ours for theirs, ours in unlike):
            other = "they look like the shards of one rank (FSDP); what the other ranks had is not in this file"
        raise InputError(f"tensors of the checkpoint have other sizes than in config.json: {other}") from error
    for wrong, what in ((names.missing_keys, "lacks"), (names.unexpected_keys, "has beside those of config.json")):
        wrong = [name for name in wrong if not OPTIONAL.search(name)]
        if wrong:
            raise InputError(f"the checkpoint {what} {len(wrong)} tensors, the first {wrong[0]}: {other}")


def sizes_in(text: str) -> list[int]:
    """Return the sizes in a message of torch."""
    return [int(size) for size in re.findall(r"\d+", text)]
