"""What comparisons with other implementations share."""

from collections.abc import Iterator

import pytest
import torch

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import concatenate


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    """Layers and their models in float64, from one seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def batch() -> GraphBatch:
    """Two periodic graphs of atoms; every node has neighbours."""
    graphs = concatenate([make_graph(1, 5), make_graph(2, 7)])
    assert graphs.topology.degrees.all(), "choose other seeds: PyTorch Geometric clamps the degree of lone nodes"
    return graphs.with_fields({ATOMIC_NUMBERS: graphs.nodes["species"] + 1}, fields=[ATOMIC_NUMBERS_FIELD])
