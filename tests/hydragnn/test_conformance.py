"""The shipped suite finds the faults that it is there for: networks that are wrong in one way each, as a user's might be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hydragnn.conformance import ArchitectureConformance
from hydragnn.conformance.atomics import unordered_on_a_gpu
from hydragnn.conformance.law import DoesNotApply, Law
from hydragnn.conformance.table import PROMISES
from hydragnn.kernels import segment_sum, spread

FAULTY = '''
import torch
from torch import nn

from hydragnn.architectures import Architecture, GeometricSettings, radial_basis
from hydragnn.kernels import segment_sum, spread
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
        topology = graph.topology
        if self.fault == "unordered":
            return {0: (states[0] * 0).index_add(0, topology.receivers, filters * states[0][topology.senders])}
        return {0: segment_sum(filters * spread(states[0], topology.senders), topology.receivers, graph.num_nodes)}


class Faulty(Architecture):
    """Filtered sums."""

    kind = "faulty"
    Settings = FaultySettings
    sees = frozenset({"lengths"})
    requires = frozenset({"lengths"})
    residual = True
    cuttable = True

    def __init__(self, settings, spec):
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec)
        self.layers = nn.ModuleList(Layer(settings, self.basis.width) for _ in range(settings.num_layers))
'''


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[ArchitectureConformance]:
    """The suite of an architecture in a user's package; ``settings`` say which fault it has."""
    (tmp_path / "faulty_networks.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    return type("Suite", (ArchitectureConformance,), {"architecture": "faulty_networks:Faulty"})


ROWS = {
    "float32": ("float32 keeps half of its digits", ""),
    "one layer": ("every parameter has a say", "1 layer"),
    "five layers": ("forces are minus the gradient of the energy", "five layers"),
    "supercell": ("a repeated cell is the cell so many times", ""),
    "one place": ("nodes in one place are finite with forces and gradients", "float64"),
    "second derivatives": ("second derivatives are those of the forces", ""),
    "batches": ("a prediction does not depend on what else is in its batch", ""),
    "turns": ("predictions follow turns mirrors moves and the order of nodes", "reflection"),
    "turns in a plane": ("predictions follow turns mirrors moves and the order of nodes", "rotation in the plane"),
    "ranks": ("ranks that share graphs compute and learn what one would", ""),
    "forces in a plane": ("forces are minus the gradient of the energy", "plane"),
}


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("none", []),
        # one layer, batches, turns and ranks see a self loop, too
        ("pole", ["one layer", "one place", "batches", "turns", "turns in a plane", "ranks"]),
        # finite differences see what is lost of float64
        ("digits", ["float32", "five layers", "second derivatives", "forces in a plane"]),
        ("axis", ["turns in a plane"]),
        # finite differences take the energies of many graphs from one batch
        ("size", ["five layers", "supercell", "second derivatives", "batches", "ranks", "forces in a plane"]),
        ("detached", ["five layers", "second derivatives", "forces in a plane"]),
        ("idle", ["one layer"]),
    ],
)
def test_a_fault_is_found_by_its_rows(fault: str, found_by: list[str], suite: type[ArchitectureConformance]) -> None:
    suite.settings = {"fault": fault}
    outcomes = {row: PROMISES[name].outcome(suite(), case) for row, (name, case) in ROWS.items()}
    assert [row for row, (verdict, _, _) in outcomes.items() if verdict == "failed"] == found_by, outcomes
    assert {verdict for verdict, _, _ in outcomes.values()} <= {"passed", "failed"}


def test_a_network_whose_gradients_add_atomically_on_a_gpu_is_found(suite: type[ArchitectureConformance]) -> None:
    suite.settings = {"fault": "unordered"}
    with pytest.raises(AssertionError, match=r"index_add, and the gradient of index_select.* in place of <= 0"):
        suite().test_no_sum_on_a_gpu_depends_on_the_order_of_its_threads("")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("figures", "limit", "above", "outcome"),
    [
        ([(1.0, "a"), (3.0, "b")], 2.0, False, ("failed", 3.0, "b")),
        ([(1.0, "a"), (2.0, "b")], 2.0, False, ("passed", 2.0, "b")),
        ([(1.0, "a"), (3.0, "b")], 1.0, True, ("failed", 1.0, "a")),
        ([(9.0, "a"), (float("nan"), "b")], 9.0, False, ("failed", None, "b: not finite")),
        ([], 0.0, False, ("does not apply", None, "no structure or field that it is about")),
        (DoesNotApply("no forces"), 0.0, False, ("does not apply", None, "no forces")),
        (KeyError("x"), 0.0, False, ("failed", None, "KeyError: 'x'")),
    ],
)
def test_a_law_is_judged_by_its_worst_figure(figures: Any, limit: float, above: bool, outcome: tuple[Any, ...]) -> None:
    def measure(subject: Any) -> Any:
        if isinstance(figures, Exception):
            raise figures
        return figures

    assert Law(name="", measure=measure, limit=limit, above=above).outcome(None) == outcome


TWICE = torch.tensor([1, 0, 1])
UNORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "index_select": lambda x: x.index_select(0, TWICE),
    "gather": lambda x: x.gather(0, TWICE.view(3, 1)),
    "take_along_dim": lambda x: x.take_along_dim(TWICE.view(3, 1), 0),
    "x[index]": lambda x: x[TWICE],
    "take": lambda x: x.take(TWICE),
    "repeat_interleave": lambda x: x.repeat_interleave(TWICE, 0),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, TWICE, x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, TWICE.view(3, 1).expand(3, 4), x),
    "scatter_reduce": lambda x: torch.zeros_like(x).scatter_reduce(0, TWICE.view(3, 1).expand(3, 4), x, "mean"),
    "index_put": lambda x: torch.zeros_like(x).index_put((TWICE,), x, accumulate=True),
    "index_reduce": lambda x: torch.ones_like(x).index_reduce(0, TWICE, x.detach(), "prod") * x,
    "bincount": lambda x: torch.bincount(TWICE, x.detach()[:, 0]),
    "histc": lambda x: torch.histc(x.detach(), 3),
    "cumsum": lambda x: x.cumsum(0),
    "median": lambda x: x.median(0)[0],
    "embedding_bag": lambda x: functional.embedding_bag(TWICE.view(1, 3), x, mode="max"),
    "attention": lambda x: functional.scaled_dot_product_attention(*3 * [x.view(1, 1, 3, 4)]),
    "conv1d": lambda x: functional.conv1d(x.view(1, 3, 4), x.view(1, 3, 4)),
    "cross_entropy": lambda x: functional.cross_entropy(x, TWICE),
    "interpolate": lambda x: functional.interpolate(x.view(1, 3, 4), 9, mode="linear"),
    "pad": lambda x: functional.pad(x.view(1, 3, 4), (1, 1), mode="reflect"),
    "avg_pool": lambda x: functional.adaptive_avg_pool2d(x.view(1, 1, 3, 4), 2),
}
"""What torch says of itself: on a GPU, or on the threads of a CPU, these or their gradients have no order of sums."""
ORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "products": lambda x: (x @ x.T).softmax(-1).sum() + x.square().mean(0) + x.amax(1).sum(),
    "counts": lambda x: x.sum() + torch.bincount(TWICE) + TWICE.cumsum(0).sum(),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, torch.arange(3).view(3, 1).expand(3, 4), x),
    "spread": lambda x: segment_sum(spread(x, TWICE), TWICE, 2),
    "largest": lambda x: x.sum() + torch.zeros(3).double().scatter_reduce(0, TWICE, x.detach()[:, 0], "amax").sum(),
    "layer norm": lambda x: functional.layer_norm(x, [4], x[0], x[1]),
}


@pytest.mark.filterwarnings("ignore:index_reduce")  # it may change
@pytest.mark.parametrize("name", [*UNORDERED, *ORDERED])
def test_operations_whose_sums_have_no_order_are_told_from_others(name: str) -> None:
    x = torch.linspace(0.1, 1.0, 12, dtype=torch.float64).view(3, 4).requires_grad_()

    def work() -> None:
        value = {**UNORDERED, **ORDERED}[name](x)
        if value.requires_grad:
            value.sum().backward()

    assert bool(unordered_on_a_gpu(work)) == (name in UNORDERED)
