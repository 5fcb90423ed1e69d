"""The shipped suite finds the faults that it is there for: networks that are wrong in one way each, as a user's might be."""

from pathlib import Path

import pytest
import torch

from hydragnn.conformance_limits import LimitsConformance
from hydragnn.conformance_symmetry import SymmetryConformance

FAULTY = '''
import torch
from torch import nn

from hydragnn.architectures import Architecture, GeometricSettings, radial_basis
from hydragnn.layers import mlp


class FaultySettings(GeometricSettings):
    """Sums of neighbours with one fault."""

    kind: str = "faulty"
    fault: str


class Layer(nn.Module):
    def __init__(self, settings, width):
        super().__init__()
        self.fault, self.filters = settings.fault, mlp([width, settings.hidden_dim])
        self.idle = nn.Linear(1, 1) if settings.fault == "idle" and settings.num_layers == 1 else None

    def forward(self, states, graph):
        filters = self.filters(graph.edge_inputs[0]) * graph.edge_inputs[1]
        lengths = graph.lengths.unsqueeze(1)
        if self.fault == "pole":
            filters = filters / graph.vectors.square().sum(1, keepdim=True)
        if self.fault == "digits":
            filters = (filters + 1e5) - 1e5
        if self.fault == "axis" and graph.vectors.shape[1] == 2:
            filters = filters * (1 + graph.vectors[:, :1])
        if self.fault == "size":
            filters = filters / graph.num_nodes
        if self.fault == "detached":
            filters = filters + lengths.detach() * lengths
        rows = filters * states[0][graph.topology.senders]
        zero = states[0] * 0
        return {0: zero.index_add(0, graph.topology.receivers, rows)}


class Faulty(Architecture):
    """Filtered sums."""

    kind = "faulty"
    Settings = FaultySettings
    sees = frozenset({"lengths"})
    requires = frozenset({"lengths"})
    residual = True

    def __init__(self, settings, spec):
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec)
        self.layers = nn.ModuleList(Layer(settings, self.basis.width) for _ in range(settings.num_layers))
'''


class Rows(LimitsConformance, SymmetryConformance):
    """The rows about limits and symmetries."""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Rows]:
    """The suite of an architecture in a user's package; ``settings`` say which fault it has."""
    (tmp_path / "faulty_networks.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)

    class Suite(Rows):
        architecture = "faulty_networks:Faulty"

    return Suite


def rows(suite: type[Rows]) -> dict[str, str]:
    """What every row says: nothing where it passes, else the first line of its error."""
    here, said = suite(), {}
    turns_in_a_plane = here.test_in_two_dimensions_predictions_follow_turns_mirrors_moves_and_the_order_of_nodes
    calls = {
        "float32": here.test_float32_keeps_half_of_its_digits,
        "one layer": lambda: here.test_one_layer_and_many_are_finite_and_every_parameter_has_a_say(1),
        "five layers": lambda: here.test_forces_of_one_layer_and_of_many_are_minus_the_gradient(5),
        "supercell": here.test_a_repeated_cell_is_the_cell_so_many_times,
        "one place": lambda: here.test_nodes_in_one_place_are_finite_with_forces_and_gradients(torch.float64),
        "second derivatives": here.test_second_derivatives_are_those_of_the_forces,
        "shares": here.test_gradients_of_shares_add_up_to_that_of_the_batch,
        "turns": lambda: here.test_predictions_turn_as_their_parity_says(-1),
        "turns in a plane": lambda: turns_in_a_plane("rotation"),
        "forces in a plane": here.test_in_two_dimensions_forces_and_stress_are_derivatives_of_the_energy,
    }
    for row, call in calls.items():
        try:
            call()
        except AssertionError as error:
            said[row] = str(error).partition("\n")[0]
    return said


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("none", []),
        # one layer and turns see a self loop, too
        ("pole", ["one layer", "one place", "turns", "turns in a plane"]),
        (
            "digits",
            ["float32", "five layers", "second derivatives", "forces in a plane"],
        ),  # finite differences see what is lost of float64
        ("axis", ["turns in a plane"]),
        ("size", ["supercell", "shares"]),
        ("detached", ["five layers", "second derivatives", "forces in a plane"]),
        ("idle", ["one layer"]),
    ],
)
def test_a_fault_is_found_by_the_rows_about_it(fault: str, found_by: list[str], suite: type[Rows]) -> None:
    suite.settings = {"fault": fault}
    said = rows(suite)
    assert list(said) == found_by, said
