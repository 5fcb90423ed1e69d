"""Structural encodings as node fields."""

import warnings
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate, unbatch
from hydragnn.graphs.pyg import Data, torch_geometric

LAPLACIAN = "laplacian_encoding"
RANDOM_WALK = "random_walk_encoding"


def with_laplacian_encoding(batch: GraphBatch, k: int) -> GraphBatch:
    """Return the batch with Laplacian eigenvectors 2 to k+1 of nodes.

    The sign of each is chosen so that its largest component is positive; graphs with fewer than k + 1 nodes have zeros in
    the last columns. Directions are ignored and parallel edges (several periodic images) count once. Where eigenvalues or largest components
    coincide, as in graphs with any symmetry, the order of the nodes decides which eigenvectors and signs these are. Dwivedi et al. 2020, arXiv:2003.00982.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> pair = graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0])
    >>> with_laplacian_encoding(pair, k=1)["laplacian_encoding"].abs()
    tensor([[0.7071],
            [0.7071]])
    """
    return _with_encoding(batch, LAPLACIAN, k, _laplacian)


def with_random_walk_encoding(batch: GraphBatch, steps: int) -> GraphBatch:
    """Return the batch with return probabilities after 1 to ``steps`` steps.

    Parallel edges (several periodic images) count once. Dwivedi et al. 2021, arXiv:2110.07875.
    """
    return _with_encoding(batch, RANDOM_WALK, steps, _random_walk)


def with_encodings(batch: GraphBatch, widths: Mapping[str, int]) -> GraphBatch:
    """Return the batch with encodings of these ``widths``; 0 adds none."""
    for name, width in widths.items():
        batch = ENCODINGS[name](batch, width) if width else batch
    return batch


ENCODINGS = {LAPLACIAN: with_laplacian_encoding, RANDOM_WALK: with_random_walk_encoding}
"""Functions that add encodings, by the name of their field."""


def _with_encoding(
    batch: GraphBatch, name: str, width: int, encode: Callable[[Data, int], Float[Tensor, "nodes width"]]
) -> GraphBatch:
    if width < 1:
        raise InputError(f"{name} of width {width}; give at least 1")
    if name in batch.fields:
        raise InputError(f"the batch already has the field {name}; take it away first")
    field = Field(name=name, on="node", shape=(width,))
    encoded_graphs = []
    for graph in unbatch(batch):
        pairs = torch.stack([graph.senders, graph.receivers]).unique(dim=1)  # parallel edges are one
        data = torch_geometric("data").Data(edge_index=pairs, num_nodes=graph.num_nodes)
        values = encode(data, width).to(torch.float32)
        encoded_graphs.append(graph.with_fields({name: values}, fields=[field]))
    return concatenate(encoded_graphs)


def _laplacian(data: Data, k: int) -> Float[Tensor, "nodes k"]:
    count = int(data.num_nodes or 0)
    width = min(k, count - 1) if count < 100 else min(k, count - 2)
    result = torch.zeros(count, k, dtype=torch.float64)
    if width < 1:
        return result
    pairs = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1).unique(dim=1)
    both = torch_geometric("data").Data(
        edge_index=pairs, edge_weight=torch.ones(pairs.shape[1], dtype=torch.float64), num_nodes=count
    )
    transform = torch_geometric("transforms").AddLaplacianEigenvectorPE
    # the start vector of the sparse solver and the random signs of the transform would make every call another result
    start = {} if count < transform.SPARSE_THRESHOLD else {"v0": torch.ones(count).numpy()}
    with torch.random.fork_rng(devices=[]):
        encoded = transform(width, attr_name="pe", is_undirected=True, **start)(both)
    vectors = encoded.pe.to(torch.float64)
    largest = vectors.gather(0, vectors.abs().round(decimals=6).argmax(dim=0, keepdim=True))
    result[:, :width] = vectors * torch.where(largest < 0, -1.0, 1.0)
    return result


def _random_walk(data: Data, steps: int) -> Float[Tensor, "nodes steps"]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        walk: Tensor = torch_geometric("transforms").AddRandomWalkPE(steps, attr_name="pe")(data).pe
    return walk
