"""Kinds by name, and models with the weights of a checkpoint."""

import re
from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import convolutions, distances, mace, vectors
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FAILURE, FIRST, FrozenSettings, Kind

KINDS: dict[str, type[FrozenModel]] = dict.fromkeys(FIRST, convolutions.Convolutional)
KINDS |= {
    name: kind for room in (distances, vectors, mace) for name, kind in vars(room).items() if name in get_args(Kind)
}

RENAMED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # generations (none: all), old name, name
    ((), r"^(module\.)*(model\.)?", ""),
    ((), r"^.*\.output_mask$", ""),  # of e3nn, as empty weights are
    ((), r"^(convs|batch_norms)_node_(hidden|output)\..*", ""),  # the same tensors stand in the heads
    ((), r"\.update_X\.", ".update_U."),  # of PNAEq
    (("v2.0",), r"^convs\.(\d+)\.(?!module_)", r"graph_convs.\1.module_0."),
    (("v2.0",), r"^convs\.", "graph_convs."),
    (("v2.0",), r"^batch_norms\.", "feature_layers."),
    (("v2.0", "v3.0", "2024"), r"^graph_shared\.", "graph_shared.branch-0."),
    (("v2.0", "v3.0", "2024"), r"^heads_NN\.(\d+)\.", r"heads_NN.\1.branch-0."),
)
"""Regular expressions, applied in turn; a tensor without a name is dropped."""

OF_CONV_HEAD = re.compile(r"^(heads_NN\.\d+\.branch-0)\.1\.module\.weight$")


def translated(weights: Mapping[str, Tensor], generation: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under the names of today's modules."""
    names = {name: name for name in weights}
    for generations, old, new in RENAMED:
        if not generations or generation in generations:
            names = {name: re.sub(old, new, now) for name, now in names.items()}
    if generation == "v2.0":  # layers of convolutional heads stand before norms
        for head in {match[1] for now in names.values() if (match := OF_CONV_HEAD.match(now))}:
            layer = rf"^{re.escape(head)}\.(\d*[02468])\.(?!module_)"
            names = {name: re.sub(layer, rf"{head}.\1.module_0.", now) for name, now in names.items()}
    return {now: weights[name] for name, now in names.items() if now and weights[name].numel()}


OPTIONAL = re.compile(r"aggr_module\.(init_)?avg_deg_(lin|log)$|num_batches_tracked$")
"""Buffers that only some versions of libraries store."""
MISFIT = re.compile(r"mismatch for (\S+): .* torch\.Size\(\[([\d, ]*)\]\) .* torch\.Size\(\[([\d, ]*)\]\)")
"""Names, and sizes in the checkpoint and in the model, in messages of torch."""
EMBEDDING = re.compile(r"(node_emb|edge_emb|pos_emb|rel_pos_emb|node_lin|edge_lin|node_embedding\.linear)\.|rbf\.freq$")
"""Names of embeddings, and of frequencies of radial functions."""


def build(settings: FrozenSettings, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> FrozenModel:
    """Return the model with its weights; InputError where they do not fit."""
    tensors = translated(weights, settings.generation)
    with torch.device("meta"):  # nothing is allocated before sizes are found to fit
        load(KINDS[settings.kind](settings), tensors)
    model = KINDS[settings.kind](settings)
    load(model, {name: tensor.clone() for name, tensor in tensors.items()})
    return model.to(dtype)


def of_branch(
    settings: FrozenSettings, weights: Mapping[str, Tensor], name: str
) -> tuple[FrozenSettings, dict[str, Tensor]]:
    """Return the settings of one branch, and its weights."""
    tables = {level: getattr(settings, level) for level in ("graph_heads", "node_heads")}
    heads = {level: {name: table[name]} if name in table else {} for level, table in tables.items()}
    if absent := [one.level for one in settings.heads if not heads[f"{one.level}_heads"]]:
        raise InputError(f"config.json: output_heads has no {absent[0]} heads of {name}; copy it again")
    own = {key: one for key, one in weights.items() if (re.search(r"\bbranch-\d+", key) or [name])[0] == name}
    return settings.model_copy(update=heads), own


def load(model: FrozenModel, tensors: Mapping[str, Tensor]) -> None:
    """Put weights in their places; InputError where they do not fit."""
    other = "config.json and checkpoint are of different models, or the file is incomplete"
    shards = f"{FAILURE} 4: the file has what one rank kept (FSDP); save the full state dictionary of all ranks"
    for name, one in model.state_dict().items():
        if one.is_floating_point() and not (own := tensors.get(name, one)).is_floating_point():
            raise InputError(f"{name} of the checkpoint has dtype {own.dtype}; save the model before it is quantised")
    try:
        # not strict: names are compared below, where those of some versions alone may lack
        names = model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        unlike = [
            (name, *([*map(int, re.findall(r"\d+", part))] for part in sizes))
            for name, *sizes in MISFIT.findall(str(error))
        ]
        whole = {name for name, value in model.named_parameters() if len(value) > 1} - {name for name, *_ in unlike}
        if not whole and all(theirs[1:] == ours[1:] and theirs < ours for _, theirs, ours in unlike):
            name, theirs, ours = unlike[0]
            other = f"{len(unlike)} of {len(tensors)} are the first rows, as {name} with {theirs} of {ours}; {shards}"
        raise InputError(f"tensors of the checkpoint have other sizes than in config.json: {other}") from error
    unknown, absent = ([name for name in wrong if not OPTIONAL.search(name)] for wrong in names[::-1])
    if unknown:
        raise InputError(
            f"the checkpoint has {len(unknown)} tensors beside those of config.json, the first {unknown[0]:.80}: {other}"
        )
    if absent:
        failure = f"{shards}; unless {other}"
        if all(EMBEDDING.match(name) for name in absent):
            failure = f"{FAILURE} 5: task-parallel training leaves these as they began, and does not save them"
        raise InputError(f"the checkpoint lacks {len(absent)} tensors, the first {absent[0]}: {failure}")
