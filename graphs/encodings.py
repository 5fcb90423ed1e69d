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


def with_encodings(batch: GraphBatch, widths: Mapping[str, int]) -> GraphBatch:
    """Return the batch with encodings of these ``widths``; 0 adds none.

    Directions are ignored by Laplacians, and parallel edges (several periodic images) count once.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> pair = graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0])
    >>> with_encodings(pair, {"laplacian_encoding": 1})["laplacian_encoding"].abs()
    tensor([[0.7071],
            [0.7071]])
    """
    for name, width in widths.items():
        if width < 0:
            raise InputError(f"{name} of width {width}; give at least 1")
        if width and name in batch.fields:
            raise InputError(f"the batch already has the field {name}; take it away first")
        encoded_graphs = []
        for graph in unbatch(batch) if width else ():
            pairs = torch.stack([graph.senders, graph.receivers]).unique(dim=1)  # parallel edges are one
            data = torch_geometric("data").Data(edge_index=pairs, num_nodes=graph.num_nodes)
            values = {name: ENCODINGS[name](data, width).to(torch.float32)}
            encoded_graphs.append(graph.with_fields(values, fields=[Field(name=name, on="node", shape=(width,))]))
        batch = concatenate(encoded_graphs) if width else batch
    return batch


def _laplacian(data: Data, k: int) -> Float[Tensor, "nodes k"]:
    """Return Laplacian eigenvectors 2 to k+1 of nodes.

    The sign of each is chosen so that its largest component is positive; graphs with fewer than k + 1 nodes have zeros in
    the last columns. Where eigenvalues or largest components coincide, as in graphs with any symmetry, the order of the nodes decides
    which eigenvectors and signs these are. Dwivedi et al. 2020, arXiv:2003.00982.
    """
    count = int(data.num_nodes or 0)
    width = min(k, count - 1) if count < 100 else min(k, count - 2)
    result = torch.zeros(count, k, dtype=torch.float64)
    if width < 1:
        return result
    pairs = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1).unique(dim=1)
    ones = torch.ones(pairs.shape[1], dtype=torch.float64)
    both = torch_geometric("data").Data(edge_index=pairs, edge_weight=ones, num_nodes=count)
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
    """Return probabilities to be back after 1 to ``steps`` steps.

    Dwivedi et al. 2021, arXiv:2110.07875.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        walk: Tensor = torch_geometric("transforms").AddRandomWalkPE(steps, attr_name="pe")(data).pe
    return walk


ENCODINGS: Mapping[str, Callable[[Data, int], Tensor]] = {LAPLACIAN: _laplacian, RANDOM_WALK: _random_walk}
"""Functions that compute encodings, by the name of their field."""
