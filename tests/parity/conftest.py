"""What comparisons with other implementations share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from public_hydragnn import Checkpoint
from torch import Tensor

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


@pytest.fixture(autouse=True)
def largest_difference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the table of ``python -m tests.parity``: the largest difference that a comparison sees, over the largest value beside it."""
    marker = request.node.get_closest_marker("parity")
    if marker is None:
        yield
        return
    differences, compare = [0.0], torch.testing.assert_close

    def noted(actual: Tensor, expected: Tensor, **tolerances: Any) -> None:
        compare(actual, expected, **tolerances)
        difference, scale = (actual - expected).detach().abs().max(), expected.detach().abs().max()
        differences.append(float(difference / scale) if scale else float(difference))

    monkeypatch.setattr(torch.testing, "assert_close", noted)
    yield
    request.node.user_properties.append(("parity", (*marker.args, max(differences))))


@pytest.fixture
def batch() -> GraphBatch:
    """Two periodic graphs of atoms; every node has neighbours."""
    graphs = concatenate([make_graph(1, 5), make_graph(2, 7)])
    assert graphs.topology.degrees.all(), "choose other seeds: PyTorch Geometric clamps the degree of lone nodes"
    return graphs.with_fields({ATOMIC_NUMBERS: graphs.nodes["species"] + 1}, fields=[ATOMIC_NUMBERS_FIELD])


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, real_data: Path) -> Checkpoint:
    """That of the name which a test is given."""
    return Checkpoint(real_data / "hydragnn" / "ckpt" / request.param)
