"""Kinds by name, and models with the weights of a checkpoint."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import convolutions, distances, mace, vectors
from hydragnn.frozen.keys import EMBEDDING, translated
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FAILURE, FrozenSettings

KINDS: dict[str, type[FrozenModel]] = convolutions.KINDS | distances.KINDS | vectors.KINDS | mace.KINDS

OPTIONAL = re.compile(r"aggr_module\.(init_)?avg_deg_(lin|log)$|num_batches_tracked$")
"""Buffers that only some versions of libraries store."""

MISFIT = re.compile(r"mismatch for (\S+): .* torch\.Size\(\[([\d, ]*)\]\) .* torch\.Size\(\[([\d, ]*)\]\)")
"""Names, and sizes in the checkpoint and in the model, in messages of torch."""


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
    """Load weights; InputError where they do not fit."""
    other = "config.json and checkpoint are of different models, or the file is incomplete"
    shards = f"{FAILURE} 4: the file has what one rank kept (FSDP); save the full state dictionary of all ranks"
    try:
        # not strict: names are compared below, where those of some versions alone may lack
        names = model.load_state_dict(tensors, strict=False, assign=assign)
    except RuntimeError as error:
        unlike = [(name, sizes_in(theirs), sizes_in(ours)) for name, theirs, ours in MISFIT.findall(str(error))]
        whole = {name for name, value in model.named_parameters() if len(value) > 1} - {name for name, *_ in unlike}
        if not whole and all(theirs[1:] == ours[1:] and theirs < ours for _, theirs, ours in unlike):
            name, theirs, ours = unlike[0]
            other = f"{len(unlike)} of {len(tensors)} are the first rows, as {name} with {theirs} of {ours}; {shards}"
        raise InputError(f"tensors of the checkpoint have other sizes than in config.json: {other}") from error
    unknown, absent = ([name for name in wrong if not OPTIONAL.search(name)] for wrong in names[::-1])
    if unknown:
        raise InputError(
            f"the checkpoint has {len(unknown)} tensors beside those of config.json, the first {unknown[0]}: {other}"
        )
    if absent:
        failure = f"{shards}; unless {other}"
        if all(EMBEDDING.match(name) for name in absent):
            failure = f"{FAILURE} 5: task-parallel training leaves these as they began, and does not save them"
        raise InputError(f"the checkpoint lacks {len(absent)} tensors, the first {absent[0]}: {failure}")


def sizes_in(text: str) -> list[int]:
    """Return the sizes in a message of torch."""
    return [int(size) for size in re.findall(r"\d+", text)]
