"""Names of tensors: those of all versions as today's."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydragnn.base.errors import InputError

RENAMED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # generations (none: all), old name, name
    ((), r"^(module\.)?(model\.)?", ""),
    ((), r".*\.output_mask$", ""),  # of e3nn, as empty weights are
    ((), r"^(convs|batch_norms)_node_(hidden|output)\..*", ""),  # the same tensors stand in the heads
    (("v2.0",), r"^convs\.(\d+)\.(?!module_)", r"graph_convs.\1.module_0."),
    (("v2.0",), r"^convs\.", "graph_convs."),
    (("v2.0",), r"^batch_norms\.", "feature_layers."),
    (("v2.0", "v3.0", "2024"), r"^graph_shared\.", "graph_shared.branch-0."),
    (("v2.0", "v3.0", "2024"), r"^heads_NN\.(\d+)\.", r"heads_NN.\1.branch-0."),
)
"""Regular expressions, applied in turn; a tensor without a name is dropped."""

OF_CONV_HEAD = re.compile(r"^(heads_NN\.\d+\.branch-0)\.1\.module\.weight$")

EMBEDDING = re.compile(r"(node_emb|edge_emb|pos_emb|rel_pos_emb|node_lin|edge_lin|node_embedding\.linear)\.|rbf\.freq$")
"""Names of embeddings, and of frequencies of radial functions."""


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


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return one checkpoint of files of branches, each with the whole encoder."""
    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.items():
            if not torch.equal(whole.setdefault(name, tensor), tensor):
                raise InputError(f"files of branches differ in {name}, which they share: they are not of one model")
    return whole
