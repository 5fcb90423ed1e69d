"""Ours give the numbers of independent implementations: one table, one comparison."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import concatenate
from tests.benchmarks.harness import NOT_MEASURED
from tests.parity import (
    attention,
    dimenet_networks,
    loops,
    mace_torch,
    networks_geometric,
    painn_schnetpack,
    tensornet_torchmd,
    transformer_torchmd,
)
from tests.parity.rows import Bench, Row

MODULES = (
    *(loops, attention, networks_geometric, dimenet_networks, painn_schnetpack, tensornet_torchmd),
    *(transformer_torchmd, mace_torch),
)
ROWS: list[Row] = [row for module in MODULES for row in module.ROWS]
NAMES = [", ".join([row.what, row.beside, row.compared, *map(str, case)]) for row in ROWS for case in row.cases]
CASES = [(row, case) for row in ROWS for case in row.cases]


@pytest.fixture
def batch(in_double: None) -> GraphBatch:
    """Two periodic graphs of atoms; every node has neighbours."""
    graphs = concatenate([make_graph(1, 5), make_graph(2, 7)])
    assert graphs.topology.degrees.all(), "choose other seeds: PyTorch Geometric clamps the degree of lone nodes"
    return graphs.with_fields({ATOMIC_NUMBERS: graphs.nodes["species"] + 1}, fields=[ATOMIC_NUMBERS_FIELD])


@pytest.mark.parametrize("row, case", CASES, ids=NAMES)
def test_ours_has_the_numbers_of_an_independent_implementation(
    row: Row, case: tuple[Any, ...], batch: GraphBatch, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    bench = Bench(batch=batch, patch=monkeypatch, real_data=lambda: request.getfixturevalue("real_data"))
    worst, scale = 0.0, 0.0
    for ours, theirs in row.pairs(bench, *case):
        actual, expected = ours.detach(), theirs.detach()
        largest = float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=row.tolerance, atol=row.tolerance * min(1.0, largest))
        difference = float((actual - expected).abs().max())
        worst, scale = max(worst, difference / largest if largest else difference), max(scale, largest)
    assert scale > 1e-5  # there is something to compare
    request.node.user_properties.append(("parity", (row.what, row.beside, row.compared, worst)))


def test_every_line_of_the_table_in_the_documents_is_a_comparison(root: Path) -> None:
    lines = (root / "docs" / "parity.md").read_text().splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    table = {tuple(row[:3]) for row in cells}
    advice = "make it anew: python -m tests.parity --out docs/parity.md"
    assert table and {line for line in table if line[1] != NOT_MEASURED} <= {row[:3] for row in ROWS}, advice
