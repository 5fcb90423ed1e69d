"""Promises about symmetries, outputs, gradients, limits, batches, files and seeds.

Cells of a mesh, grains of a section and pixels of an image lie in a plane, where a vector has two components and the cell is an area.
An architecture that works in space alone refuses such graphs in a sentence.

What an architecture says of itself (``sees``, ``gives``, ``needs``) decides what is asked of it.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import bulk
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from hydragnn.base.errors import InputError
from hydragnn.conformance import cases
from hydragnn.conformance import network as networks
from hydragnn.conformance.atomics import unordered_on_a_gpu
from hydragnn.conformance.cases import CORNERS, loss_of, make_graph
from hydragnn.conformance.law import Change, DoesNotApply, Figures, Values, gaps, moved, reordered, turned
from hydragnn.conformance.network import SLOPE, Network, loss_and_gradients, predicted, promise, values_in
from hydragnn.conformance.smoothness import CUTOFF, atoms_graph, energies_and_forces, energy_model
from hydragnn.datasets import Normalisation, Scale
from hydragnn.datasets.views import without_edges
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, check_cuttable, load_model, save_model

HALF_THE_DIGITS = float(torch.finfo(torch.float32).eps ** 0.5)
"""3.5e-4: what sound sums keep in float32; what takes the difference of two large numbers loses more."""
EXTENSIVE = 1e-10
"""Relative, where the same numbers are summed in another order in float64."""


@promise(limit=HALF_THE_DIGITS)
def float32_keeps_half_of_its_digits(network: Network) -> Figures:
    """Compare with float64, each field on the scale of its largest value."""
    double = cases.make_model(network.architecture, 0, torch.float32, **network.settings).double()
    batch = CORNERS["two graphs"]().to(dtype=torch.float32)
    exact = {key: one._replace(size=0.0) for key, one in predicted(double, batch.to(dtype=torch.float64)).items()}
    return gaps(predicted(network.shared(torch.float32), batch), exact, "float32")


@promise(limit=EXTENSIVE)
def a_repeated_cell_is_the_cell_so_many_times(network: Network) -> Figures:
    """Compare a cell with its supercell.

    Most neighbours in the cell are images, which the supercell has as nodes: what is extensive is multiplied, all else is what it was.
    Variances of nodes are pooled as those of independent ones, and stay out of it.
    """
    if cases.small_settings(network.architecture, **network.settings).pooling is not None:
        raise DoesNotApply("a repeated cell has levels of its own, which are not those of the cell repeated")
    cell, model = CORNERS["one graph"](), network.shared()
    copies, large = cases.repeated(cell, (2, 1, 3))
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
    meeting = concatenate([cases.in_one_place(0.0), cases.in_one_place(1e-6)])
    finite_gradients(network.shared(dtype), meeting.to(dtype=dtype), "two nodes in one place")
    yield 0.0, "two nodes in one place"


@promise(limit=SLOPE)
def second_derivatives_are_those_of_the_forces(network: Network) -> Figures:
    """Compare without symmetries."""
    if not cases.gives_forces(network.architecture, network.settings):
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

    for along, visible in pairwise(networks.directions_like(batch.positions)):
        (curvature,) = torch.autograd.grad((-forces * along).sum(), positions, retain_graph=True)
        yield from networks.slope_gaps(pulls, [((along, visible), float((curvature * visible).sum()))], curvature)


def finite_gradients(model: GraphModel, batch: GraphBatch, where: str) -> dict[str, Tensor]:
    """Return the gradient of every parameter by name, checked to be finite."""
    predictions, _, gradients = loss_and_gradients(model, batch)
    by_name = dict(zip((name for name, _ in model.named_parameters()), gradients))
    bad = [name for name, prediction in predictions.items() if not prediction.finite().all()]
    bad += [f"the gradient of {name}" for name, gradient in by_name.items() if not gradient.isfinite().all()]
    assert not bad, f"{bad[0]} is not finite, {where}"
    return by_name


TIGHT = 1e-11  # float64 sums in another order; values are of order 1
CLOSE = 1e-7
"""Relative, of sums in another order in float64, as of ``torch.testing.assert_close``."""


PLANE = {"dim": 2}
CHANGES: dict[str, tuple[Callable[[GraphBatch], Change], Mapping[str, Any]]] = {
    name + where: (change, space)
    for where, space in (("", {}), (" in the plane", PLANE))
    for name, change in (
        ("rotation", turned),
        ("reflection", partial(turned, determinant=-1)),
        ("translation", moved),
        ("permutation", reordered),
    )
}


@promise(CHANGES, TIGHT)
def predictions_follow_turns_mirrors_moves_and_the_order_of_nodes(
    network: Network, case: tuple[Callable[[GraphBatch], Change], Mapping[str, Any]]
) -> Figures:
    change, space = case
    model = network.changed(**space)
    batch = concatenate([make_graph(number, 5 + number % 3, self_loop=number == 6, **space) for number in (6, 0, 2)])
    other = change(batch)
    return gaps(predicted(model, other.changed), predicted(model, batch), "graphs", other)


def _rows(values: Mapping[str, Values], rows: Mapping[str, np.ndarray]) -> dict[str, Values]:
    return {key: one._replace(numbers=one.numbers[rows[one.on]]) for key, one in values.items() if one.on in rows}


def _unequal(one: Mapping[str, Tensor], other: Mapping[str, Tensor], where: str) -> Figures:
    unlike = [name for name in one if not torch.equal(one[name], other[name])]
    return [(float(len(unlike)), ", ".join([where, *unlike]))]


def _numbers(model: GraphModel, batch: GraphBatch) -> dict[str, Tensor]:
    return {name: cases.values_of(prediction) for name, prediction in model(batch).items()}


@promise({name: name for name in CORNERS})
def every_output_has_its_fields_shape_and_is_finite_with_its_gradients(network: Network, corner: str) -> Figures:
    batch, model = CORNERS[corner](), network.shared()
    predictions = model(batch)
    for target in model.description.targets:
        expected = (batch.num_items(target.field.on), *target.field.shape)
        shape = tuple(predictions[target.name].error(torch.zeros(expected)).shape)
        yield float(shape != expected), f"{target.name} of shape {list(shape)}"
    finite_gradients(model, batch, corner)


@promise({"2 layers": {}, "1 layer": {"num_layers": 1}, "5 layers": {"num_layers": 5}})
def every_parameter_has_a_say(network: Network, changes: Mapping[str, Any]) -> Figures:
    model = network.changed(**changes)
    names = [name for name, _ in model.named_parameters()]
    corners = [make() for make in CORNERS.values()] if changes else [CORNERS["two graphs"]()]
    batch = concatenate([*corners, make_graph(3, 12)])  # whose clusters have neighbours, too
    gradients = finite_gradients(model, batch, "all corners")
    idle = [name for name, gradient in gradients.items() if not gradient.abs().sum() > 0]
    yield float(len(idle)), f"parameters without a say: {', '.join(idle)}" if idle else "parameters"
    unlike = [name for name, _ in model.named_parameters()] != names
    yield float(unlike), "parameters made in the first call"  # the optimizer has to see them all


@promise(limit=TIGHT)
def a_prediction_does_not_depend_on_what_else_is_in_its_batch(network: Network) -> Figures:
    corners = [*(make() for make in CORNERS.values()), cases.no_nodes(), make_graph(8, 2)]
    batch, model = concatenate(corners), network.shared()
    together = predicted(model, batch)
    for number in range(batch.num_graphs):
        rows = {on: (batch.owner(on) == number).numpy() for on in ("node", "edge", "graph")}
        yield from gaps(predicted(model, batch.select([number])), _rows(together, rows), f"graph {number}")


@promise(limit=CLOSE)
def ranks_that_share_graphs_compute_and_learn_what_one_would(network: Network) -> Figures:
    """Compare with one rank.

    Sum over nodes by ``graph.sum_over_nodes``, and read no node farther than a neighbour, or leave ``cuttable`` out.
    """
    model = network.shared()
    try:
        check_cuttable(model.description)
    except InputError as refusal:
        raise DoesNotApply(str(refusal)) from refusal
    batch = concatenate([CORNERS[corner]() for corner in ("one graph", "lone node", "self loop")])
    ranks = torch.arange(batch.num_nodes) * 7 % 5 % 2 * 2  # cuts about half of the edges; rank 1 has no nodes
    predictions, loss, gradients = loss_and_gradients(model, batch)
    parts = networks.on_parts(batch, ranks, 3, lambda part: (part, loss_and_gradients(model, part)))
    names = ["loss", *(f"gradient of {name}" for name, _ in model.named_parameters())]
    whole, of_parts = [loss, *gradients], [[own_loss, *own] for _, (_, own_loss, own) in parts]
    for name, one, several in zip(names, whole, zip(*of_parts), strict=True):
        yield float((sum(several) - one).abs().max() / one.abs().max().clamp(min=1.0)), name
    every = values_in(model, predictions)
    for part, (own, _, _) in parts:
        assert part.halo is not None
        rows = part.halo.numbers[part.halo.owned].numpy()
        for error, where in gaps(values_in(model, own), _rows(every, {"node": rows}), "a part"):
            yield error * CLOSE / TIGHT, where  # predictions are as tight as in other batches


@promise()
def neighbours_matter(network: Network) -> Figures:
    batch, model = CORNERS["one graph"](), network.shared()
    same = torch.allclose(model(batch)["charge"].mean, model(without_edges(batch))["charge"].mean)
    yield float(same), "charges without neighbours"


PULLED: dict[str, tuple[Callable[[], GraphBatch], Mapping[str, Any]]] = {
    **{name: (CORNERS[name], {}) for name in ("two graphs", "self loop", "one edge")},
    "one layer": (CORNERS["two graphs"], {"num_layers": 1}),
    "five layers": (CORNERS["two graphs"], {"num_layers": 5}),
    "plane": (partial(make_graph, 0, 6, dim=2), PLANE),
}


@promise(PULLED, SLOPE)
def forces_are_minus_the_gradient_of_the_energy(
    network: Network, case: tuple[Callable[[], GraphBatch], Mapping[str, Any]]
) -> Figures:
    make, changes = case
    return networks.force_gaps(network.changed(**changes), make(), 1 if "num_layers" in changes else 3)


@promise({"space": {}, "plane": PLANE}, SLOPE)
def stress_is_the_derivative_with_respect_to_strain_over_the_volume(
    network: Network, changes: Mapping[str, Any]
) -> Figures:
    """Stress in a plane is that per area."""
    return networks.stress_gaps(network.changed(**changes), make_graph(0, 6, **changes))


@promise({"forces": "forces", "all": "all"}, SLOPE)
def the_loss_has_the_gradient_that_finite_differences_give(network: Network, outputs: str) -> Figures:
    batch, model = CORNERS["two graphs"](), network.shared()
    if outputs == "forces":
        networks.need_forces(model)
    names, start = [name for name, _ in model.named_parameters()], list(model.parameters())

    def loss(values: Sequence[Tensor]) -> Tensor:
        predictions = torch.func.functional_call(model, dict(zip(names, values)), (batch,))
        return loss_of(predictions if outputs == "all" else {outputs: predictions[outputs]})

    gradients = torch.autograd.grad(loss(start), start, allow_unused=True)
    gradient = parameters_to_vector(g if g is not None else torch.zeros_like(p) for g, p in zip(gradients, start))
    weights = parameters_to_vector(start).detach()

    def losses(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
        sizes, moved = [p.numel() for p in start], [weights + step * along for along, step in steps]
        return [float(loss([v.view_as(p) for v, p in zip(m.split(sizes), start)]).detach()) for m in moved]

    # one direction: a wrong derivative by any weight changes the slope along every random one
    along = networks.directions_like(weights)[0]
    return networks.slope_gaps(losses, [(along, float(gradient @ along))], gradient)


@promise()
def a_model_comes_back_from_disk_bit_for_bit(network: Network) -> Figures:
    model, batch = network.shared(torch.float32), CORNERS["two graphs"]().to(dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), model, Normalisation())
        loaded = load_model(Path(folder))
    yield float(loaded.targets != model.description.targets), "targets"
    yield from _unequal(_numbers(model.eval(), batch), _numbers(loaded.model, batch), "predictions")


@promise()
def predicting_twice_gives_the_same_bits(network: Network) -> Figures:
    model, batch = network.shared(torch.float32).eval(), CORNERS["two graphs"]().to(dtype=torch.float32)
    return _unequal(_numbers(model, batch), _numbers(model, batch), "predictions")


@promise(limit=TIGHT)
def final_states_are_what_heads_read(network: Network) -> Figures:
    batch, model = CORNERS["two graphs"](), network.shared()
    predictions, states = model.with_states(batch)
    yield float(states[0].shape != (batch.num_nodes, model.channels)), f"states of shape {list(states[0].shape)}"
    graph = model.message_graph(batch, model.edge_vectors(batch))
    for settings, head in zip(model.description.heads, model.heads):
        own = {settings.field: head(states, graph, batch)}
        expected = {settings.field: predictions[settings.field]}
        yield from gaps(values_in(model, own), values_in(model, expected), "heads")


@promise()
def initial_weights_depend_on_the_seed_and_on_nothing_else(network: Network) -> Figures:
    state = torch.random.get_rng_state()
    first = network.model(seed=5).state_dict()
    yield float(not torch.equal(state, torch.random.get_rng_state())), "the global generator"
    torch.rand(3)
    second, other = network.model(seed=5).state_dict(), network.model(seed=6).state_dict()
    yield from _unequal(first, second, "weights of one seed")
    yield float(all(torch.equal(first[name], other[name]) for name in first)), "weights of another seed"


@promise(limit=CLOSE)
def physical_predictions_undo_the_normalisation(network: Network) -> Figures:
    model, batch = network.shared(), CORNERS["two graphs"]()
    scales = {
        "size": Scale(mean=(1.0, 2.0), std=(2.0, 4.0)),
        "energy": Scale(mean=(0.0,), std=(3.0,)),
        "gap": Scale(mean=(1.0, 2.0), std=(5.0, 7.0)),
    }
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), model, Normalisation(scales=scales))
        actual = values_in(model, load_model(Path(folder), dtype=torch.float64).predict(batch))
    size = (batch.nodes["size"] - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])
    raw = predicted(model.eval(), replace(batch, nodes={**batch.nodes, "size": size}))
    std, mean = np.array([[5.0, 7.0]]), np.array([[1.0, 2.0]])
    physical = {"mean of energy": (3.0, 0.0), "mean of gap": (std, mean), "variance of gap": (std**2, 0.0)}
    expected = {
        key: raw[key]._replace(numbers=raw[key].numbers * factor + shift) for key, (factor, shift) in physical.items()
    }
    return gaps(actual, expected, "graphs")


@promise()
def no_sum_on_a_gpu_depends_on_the_order_of_its_threads(network: Network) -> Figures:
    """Gather with ``hydragnn.kernels.spread`` and add with ``segment_sum`` instead."""
    if find_spec("triton") is None:
        raise DoesNotApply("Triton is not installed, whose kernels a GPU would run")
    batch, model = CORNERS["two graphs"](), network.model()
    result = unordered_on_a_gpu(lambda: torch.autograd.grad(loss_of(model(batch)), list(model.parameters())))
    yield float(len(result)), "; ".join(f"{name} at {line}" for name, line in result.items())


@promise()
def a_share_of_a_batch_may_be_empty(network: Network) -> Figures:
    empty, model = CORNERS["one graph"]().select([]), network.shared()
    gradients = torch.autograd.grad(loss_of(model(empty)), list(model.parameters()), allow_unused=True)
    yield float(sum(gradient is not None and bool(gradient.any()) for gradient in gradients)), "gradients of no graph"


@promise({"training": True, "no_grad": False}, limit=0.15)
def half_precision_arithmetic_stays_close(network: Network, recording: bool) -> Figures:
    """Compare with bf16, whose 8 bits lose a few in layers."""
    model, batch = network.shared(torch.float32), CORNERS["two graphs"]().to(dtype=torch.float32)
    exact = _numbers(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(recording):
        rough = _numbers(model, batch)
    for name, one in exact.items():
        values = one.detach()
        error = (rough[name].detach().float() - values).abs().max() / values.abs().max().clamp(min=0.1)
        yield float(error), name
        yield float(rough[name].requires_grad != recording), f"recording of {name}"
