"""Promises in limits: digits, depth, repeated cells, coincident nodes, shares.

A fault there shows in no run of usual size: as noise of a force in float32, as a network of one layer that does not train, or as a NaN of one structure in a
hundred thousand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from ase.build import bulk
from torch import Tensor

from hydragnn.conformance.cases import (
    CORNERS,
    gives_forces,
    in_one_place,
    loss_of,
    make_graph,
    make_model,
    repeated,
    small_settings,
)
from hydragnn.conformance.law import DoesNotApply, Figures, gaps
from hydragnn.conformance.network import (
    SLOPE,
    Network,
    directions_like,
    force_gaps,
    predicted,
    promise,
    slope_gaps,
)
from hydragnn.conformance.smoothness import CUTOFF, atoms_graph, energies_and_forces, energy_model
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel

HALF_THE_DIGITS = float(torch.finfo(torch.float32).eps ** 0.5)
"""3.5e-4: what sound sums keep in float32; what takes the difference of two large numbers loses more."""
EXTENSIVE = 1e-10
"""Relative, where the same numbers are summed in another order in float64."""
LAYERS = (1, 5)


@promise(limit=HALF_THE_DIGITS)
def float32_keeps_half_of_its_digits(network: Network) -> Figures:
    """Compare with float64, each field on the scale of its largest value."""
    double = make_model(network.architecture, 0, torch.float32, **network.settings).double()
    batch = CORNERS["two graphs"]().to(dtype=torch.float32)
    exact = {key: one._replace(size=0.0) for key, one in predicted(double, batch.to(dtype=torch.float64)).items()}
    return gaps(predicted(network.shared(torch.float32), batch), exact, "float32")


@promise(LAYERS)
def one_layer_and_many_are_finite_and_every_parameter_has_a_say(network: Network, layers: int) -> Figures:
    corners = concatenate([*(make() for make in CORNERS.values()), make_graph(3, 12)])
    gradients = finite_gradients(network.changed(num_layers=layers), corners, f"{layers} layers")
    return idle_parameters(gradients)


@promise(LAYERS, SLOPE)
def forces_of_one_layer_and_of_many_are_minus_the_gradient(network: Network, layers: int) -> Figures:
    return force_gaps(network.changed(num_layers=layers), CORNERS["two graphs"](), 1)


@promise(limit=EXTENSIVE)
def a_repeated_cell_is_the_cell_so_many_times(network: Network) -> Figures:
    """Compare a cell with its supercell.

    Most neighbours in the cell are images, which the supercell has as nodes: what is extensive is multiplied, all else is what it was.
    Variances of nodes are pooled as those of independent ones, and stay out of it.
    """
    if small_settings(network.architecture, **network.settings).pooling is not None:
        raise DoesNotApply("a repeated cell has levels of its own, which are not those of the cell repeated")
    cell, model = CORNERS["one graph"](), network.shared()
    copies, large = repeated(cell, (2, 1, 3))
    actual, every = predicted(model, large), predicted(model, cell)
    expected = {}
    for target in model.description.targets:
        key = next(key for key in every if key.endswith(f" of {target.name}"))
        numbers = every[key].numbers
        if target.field.on != "graph":
            numbers = np.tile(numbers, (copies, *[1] * (numbers.ndim - 1)))
        expected[key] = every[key]._replace(numbers=numbers * (copies if target.extensive else 1), size=0.0)
    return gaps(actual, expected, "the supercell")


@promise({"float64": torch.float64, "float32": torch.float32})
def nodes_in_one_place_are_finite_with_forces_and_gradients(network: Network, dtype: torch.dtype) -> Figures:
    """Place neighbours in one place, and a millionth apart."""
    meeting = concatenate([in_one_place(0.0), in_one_place(1e-6)])
    finite_gradients(network.shared(dtype), meeting.to(dtype=dtype), "two nodes in one place")
    yield 0.0, "two nodes in one place"


@promise(limit=SLOPE)
def second_derivatives_are_those_of_the_forces(network: Network) -> Iterator[tuple[float, str]]:
    """Compare without symmetries."""
    if not gives_forces(network.architecture, network.settings):
        raise DoesNotApply(f"{network.architecture} gives no forces with these settings")
    model = energy_model(network.architecture, **network.settings)
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.2, seed=2)
    batch = atoms_graph(atoms, CUTOFF)
    _, forces, positions = energies_and_forces(model, batch, differentiable=True)

    def pulls(steps: Sequence[tuple[tuple[Tensor, Tensor], float]]) -> Sequence[float]:
        moved = [replace(batch, positions=batch.positions + step * along) for (along, _), step in steps]
        parts = energies_and_forces(model, concatenate(moved))[1].detach().split(batch.num_nodes)
        return [-float((part * visible).sum()) for part, ((_, visible), _) in zip(parts, steps)]

    for along, visible in pairwise(directions_like(batch.positions)):
        (curvature,) = torch.autograd.grad((-forces * along).sum(), positions, retain_graph=True)
        yield from slope_gaps(pulls, [((along, visible), float((curvature * visible).sum()))], curvature)


@promise(limit=1e-10)
def gradients_of_shares_add_up_to_that_of_the_batch(network: Network) -> Iterator[tuple[float, str]]:
    """Compare two ranks with one."""
    batch, model = CORNERS["two graphs"](), network.shared()
    whole = finite_gradients(model, batch, "both graphs")
    shares = [finite_gradients(model, batch.select([number]), f"graph {number}") for number in range(2)]
    for name, gradient in whole.items():
        error = (shares[0][name] + shares[1][name] - gradient).abs().max()
        yield float(error) / max(1.0, float(gradient.abs().max())), name


def finite_gradients(model: GraphModel, batch: GraphBatch, where: str) -> dict[str, Tensor]:
    """Return the gradient of every parameter by name, checked to be finite."""
    predictions = model(batch)
    bad = [name for name, prediction in predictions.items() if not prediction.finite().all()]
    assert not bad, f"{bad[0]} is not finite, {where}"
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        loss_of(predictions), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    bad = [name for name, gradient in zip(parameters, gradients) if not gradient.isfinite().all()]
    assert not bad, f"the gradient of {bad[0]} is not finite, {where}"
    return dict(zip(parameters, gradients))


def idle_parameters(gradients: dict[str, Tensor]) -> Figures:
    """Return the number of parameters without a gradient."""
    idle = [name for name, gradient in gradients.items() if not gradient.abs().sum() > 0]
    return [(float(len(idle)), f"parameters without a say: {', '.join(idle)}" if idle else "parameters")]
