"""Exchange with torch_geometric in both directions."""

import numpy as np
import pytest
import torch

from hydragnn.errors import InputError
from hydragnn.graphs import (
    Field,
    concatenate,
    edge_vectors,
    from_pyg,
    from_voronoi,
    graph_from_arrays,
    to_pyg,
    validate,
)
from hydragnn.graphs.pyg import torch_geometric

Data = torch_geometric("data").Data

X = Field(name="x", on="node", shape=(2,))
Y = Field(name="y", on="graph", role="target")
WEIGHT = Field(name="edge_attr", on="edge")


def test_a_batch_comes_back_from_torch_geometric_bit_for_bit() -> None:
    generator = np.random.default_rng(0)
    batch = concatenate([from_voronoi(generator.random((n, 3)), [1.0, 2.0, 1.0], [True, True, False]) for n in (4, 9)])
    back = concatenate([from_pyg(data, batch.fields.values()) for data in to_pyg(batch)])
    assert torch.equal(batch.positions, back.positions)
    assert torch.equal(batch.senders, back.senders) and torch.equal(batch.receivers, back.receivers)
    assert torch.equal(edge_vectors(batch), edge_vectors(back))
    assert torch.equal(batch.cell, back.cell) and torch.equal(batch.periodic, back.periodic)
    assert all(torch.equal(batch[name], back[name]) for name in batch.fields)


def test_messages_flow_as_in_torch_geometric() -> None:
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, edge_index=edge_index)
    graph = from_pyg(data, [X])
    convolution = torch_geometric("nn").SimpleConv(aggr="sum")
    ours = torch.zeros(3, 2).index_add(0, graph.receivers, graph["x"][graph.senders])
    torch.testing.assert_close(convolution(x, edge_index), ours)


def test_scalars_kept_as_columns_and_graph_labels_kept_as_rows_are_accepted() -> None:
    data = Data(
        pos=torch.zeros(2, 3),
        x=torch.ones(2, 2),
        y=torch.tensor([[3.0]]),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        edge_attr=torch.tensor([[1.0], [2.0]]),
    )
    graph = validate(from_pyg(data, [X, Y, WEIGHT]))
    assert graph["y"].tolist() == [3.0]
    assert graph["edge_attr"].tolist() == [2.0, 1.0]


def test_data_without_positions_or_edges_is_legal() -> None:
    graph = validate(from_pyg(Data(x=torch.ones(3, 2)), [X, Y], optional=["y"]))
    assert (graph.num_nodes, graph.num_edges, graph.dim) == (3, 0, 0)


def test_batches_of_torch_geometric_stack_our_graph_fields() -> None:
    energy = Field(name="energy", on="graph", shape=(2,), role="target")
    graphs = [graph_from_arrays(np.zeros((n, 2)), [], [], fields=[energy], graphs={"energy": [n, 1]}) for n in (1, 2)]
    stacked = torch_geometric("data").Batch.from_data_list(to_pyg(concatenate(graphs)))
    assert stacked.energy.tolist() == [[1.0, 1.0], [2.0, 1.0]]
    assert stacked.cell.shape == (2, 3, 3)


WRONG = {
    "missing attribute": (
        lambda: from_pyg(Data(x=torch.ones(3, 2)), [X, Y], name="graph 7"),
        "graph 7: .* no attribute y",
    ),
    "index out of range": (
        lambda: from_pyg(Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0], [3]])), [X]),
        "receivers: node index 3",
    ),
    "transposed edges": (
        lambda: from_pyg(Data(x=torch.ones(3, 2), edge_index=torch.zeros(4, 2, dtype=torch.int64)), [X]),
        "transpose it",
    ),
    "NaN": (lambda: from_pyg(Data(x=torch.full((3, 2), torch.nan)), [X]), "field x: nan"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        make()
