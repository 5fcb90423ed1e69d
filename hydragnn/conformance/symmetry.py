"""Conformance under turns, mirrors, moves and other orders of nodes.

Cells of a mesh, grains of a section and pixels of an image lie in a plane, where a vector has two components, the cell is an area, and architectures take
other ways (no third axis in harmonics or in antisymmetric tensors). One that works in space alone refuses such graphs in a sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import CORNERS, assert_slopes, directions_like, energies_of, make_graph, shared_model
from hydragnn.conformance.transforms import mapped, permuted
from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.joining import concatenate
from hydragnn.models import Distribution, GraphModel

TIGHT = 1e-11  # float64 sums in another order; values are of order 1
AWAY = (1.0, -2.0, 0.5)
"""Displacement of a whole graph."""


class SymmetryConformance:
    """Promises about turned, mirrored, moved and reordered graphs."""

    architecture: str
    settings: ClassVar[dict[str, Any]] = {}

    def _model_in_space(self) -> GraphModel:
        return shared_model(self.architecture, **self.settings)

    def _model_in_the_plane(self) -> GraphModel:
        """Return the model for two dimensions; skip if it is refused."""
        try:
            return shared_model(self.architecture, dim=2, **self.settings)
        except InputError as refusal:
            pytest.skip(f"refused: {refusal}")

    def test_nodes_in_another_order_give_the_same_predictions_in_that_order(self) -> None:
        assert_follows_the_order(self._model_in_space(), CORNERS["self loop"]())

    @pytest.mark.parametrize("determinant", [1, -1], ids=["rotation", "reflection"])
    def test_predictions_turn_as_their_parity_says(self, determinant: int) -> None:
        batch = concatenate([CORNERS["self loop"](), CORNERS["two graphs"]()])
        assert_turns(self._model_in_space(), batch, determinant)

    def test_moving_the_whole_graph_changes_nothing(self) -> None:
        assert_stays_where_moved(self._model_in_space(), CORNERS["self loop"]())

    @pytest.mark.parametrize("how", ["rotation", "reflection", "translation", "permutation"])
    def test_in_two_dimensions_predictions_follow_turns_mirrors_moves_and_the_order_of_nodes(self, how: str) -> None:
        batch = concatenate([make_graph(6, 5, self_loop=True, dim=2), make_graph(2, 7, dim=2)])
        model = self._model_in_the_plane()
        match how:
            case "translation":
                assert_stays_where_moved(model, batch)
            case "permutation":
                assert_follows_the_order(model, batch)
            case _:
                assert_turns(model, batch, 1 if how == "rotation" else -1)

    def test_in_two_dimensions_forces_and_stress_are_derivatives_of_the_energy(self) -> None:
        """Stress is that per area."""
        model, batch = self._model_in_the_plane(), make_graph(0, 6, dim=2)
        if "forces" not in model.description.fields:
            pytest.skip(f"{self.architecture} gives no forces with these settings")
        predictions = model(batch)
        forces, stress = predictions["forces"].mean.detach(), predictions["stress"].mean[0].detach()

        def shifted(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
            return energies_of(
                model, [replace(batch, positions=batch.positions + step * along) for along, step in steps]
            )

        def strained(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
            graphs = [mapped(batch, torch.eye(2, dtype=torch.float64) + step * strain) for strain, step in steps]
            return [energy / float(volumes(batch)) for energy in energies_of(model, graphs)]

        ways, strains = directions_like(batch.positions), [(way + way.T) / 2 for way in directions_like(stress)]
        assert_slopes(shifted, [(along, -float((forces * along).sum())) for along in ways], forces)
        assert_slopes(strained, [(strain, float((stress * strain).sum())) for strain in strains], stress)


def assert_equal(actual: Distribution, expected: Distribution, act: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    """Check equality up to rounding of values mapped by ``act``."""
    for name, values in expected.tensors().items():
        moved = values if name == "variance" else act(values)
        torch.testing.assert_close(actual.tensors()[name], moved, rtol=TIGHT, atol=TIGHT)


def assert_turns(model: GraphModel, batch: GraphBatch, determinant: int) -> None:
    """Check that vectors turn with the graph (1) or its mirror (-1)."""
    drawn = torch.randn(batch.dim, batch.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    turn, _ = torch.linalg.qr(drawn)
    if torch.det(turn) * determinant < 0:
        turn = turn @ torch.diag(torch.tensor([-1.0, *[1.0] * (batch.dim - 1)], dtype=torch.float64))
    expected, actual = model(batch), model(mapped(batch, turn.T))
    act = {"scalar": lambda x: x, "vector": lambda x: x @ turn.T, "tensor": lambda x: turn @ x @ turn.T}
    for name, prediction in expected.items():
        assert_equal(actual[name], prediction, act[model.description.fields[name].parity])


def assert_stays_where_moved(model: GraphModel, batch: GraphBatch) -> None:
    """No prediction depends on where the graph lies."""
    moved = replace(batch, positions=batch.positions + torch.tensor(AWAY[: batch.dim], dtype=torch.float64))
    expected, actual = model(batch), model(moved)
    for name, prediction in expected.items():
        assert_equal(actual[name], prediction)


def assert_follows_the_order(model: GraphModel, batch: GraphBatch) -> None:
    """Check that predictions follow the order of nodes and edges."""
    owner = batch.owner("node")
    drawn = torch.randperm(batch.num_nodes, generator=torch.Generator().manual_seed(1))
    order = drawn[owner[drawn].sort(stable=True).indices]  # any order within every graph
    edges = torch.sort(torch.argsort(order)[batch.receivers], stable=True).indices
    expected, actual = model(batch), model(permuted(batch, order))
    rows = {"node": order, "edge": edges, "graph": slice(None)}
    for name, prediction in expected.items():
        assert_equal(actual[name], prediction.rows(rows[model.description.fields[name].on]))
