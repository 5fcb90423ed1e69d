"""Promises of every architecture, as tests to inherit.

    class TestMyNetwork(ArchitectureConformance):
        architecture = "my_package.networks:MyNetwork"

Needs pytest (the extra ``test``). What an architecture says of itself (``sees``, ``gives``, ``needs``) decides what is asked of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from hydragnn.base.errors import InputError
from hydragnn.conformance.atomics import unordered_on_a_gpu
from hydragnn.conformance.cases import (
    CORNERS,
    assert_slopes,
    directions_like,
    energies_of,
    loss_of,
    make_graph,
    make_model,
    no_nodes,
    values_of,
)
from hydragnn.conformance.cutting import loss_and_gradients, on_parts
from hydragnn.conformance.limits import LimitsConformance
from hydragnn.conformance.smoothness import SmoothnessConformance
from hydragnn.conformance.symmetry import SymmetryConformance, assert_equal
from hydragnn.conformance.transforms import mapped
from hydragnn.datasets import Normalisation, Scale
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphModel, check_cuttable, load_model, save_model


def skip_without_forces(model: GraphModel) -> None:
    """Skip a test of forces if the model gives none."""
    if "forces" not in model.description.fields:
        pytest.skip(f"{model.description.model.kind} gives no forces with these settings")


class ArchitectureConformance(SmoothnessConformance, LimitsConformance, SymmetryConformance):
    """Promises of every architecture.

    ``architecture`` is its kind or ``package.module:Name``; ``settings`` are keys of [model].
    """

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> GraphModel:
        """Return a small model of the kind under test."""
        return make_model(self.architecture, seed, dtype, **self.settings)

    def _model(self, dtype: torch.dtype = torch.float64) -> GraphModel:
        """Return the model shared by tests, or that of a subclass."""
        own = type(self).model is not ArchitectureConformance.model
        return self.model(dtype=dtype) if own else super()._model(dtype)

    @pytest.fixture
    def kind(self) -> str:
        """The kind under test."""
        return self.architecture

    @pytest.mark.parametrize("corner", CORNERS)
    def test_every_output_has_its_fields_shape_and_is_finite_with_its_gradients(self, kind: str, corner: str) -> None:
        batch, model = CORNERS[corner](), self._model()
        predictions = model(batch)
        for target in model.description.targets:
            field, prediction = target.field, predictions[target.name]
            expected = (batch.num_items(field.on), *field.shape)
            assert prediction.error(torch.zeros(expected)).shape == expected
            assert prediction.finite().all()
        gradients = torch.autograd.grad(loss_of(predictions), list(model.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients)

    def test_every_parameter_has_a_say(self, kind: str) -> None:
        model = self._model()
        names = [name for name, _ in model.named_parameters()]
        batch = concatenate([CORNERS["two graphs"](), make_graph(3, 12)])  # whose clusters have neighbours, too
        gradients = torch.autograd.grad(loss_of(model(batch)), list(model.parameters()))
        assert [name for name, g in zip(names, gradients) if not g.abs().sum() > 0] == []
        assert [name for name, _ in model.named_parameters()] == names  # the optimizer has seen them all

    def test_a_prediction_does_not_depend_on_what_else_is_in_its_batch(self, kind: str) -> None:
        batch, model = (
            concatenate([*(make() for make in CORNERS.values()), no_nodes(), make_graph(8, 2)]),
            self._model(),
        )
        together = model(batch)
        for number in range(batch.num_graphs):
            alone = model(batch.select([number]))
            for name, prediction in alone.items():
                whole = together[name].rows(batch.owner(model.description.fields[name].on) == number)
                assert_equal(prediction, whole)

    def test_ranks_that_share_graphs_compute_and_learn_what_one_would(self, kind: str) -> None:
        """Sum over nodes by ``graph.sum_over_nodes``, and read no node farther than a neighbour, or leave ``cuttable`` out."""
        model = self._model()
        try:
            check_cuttable(model.description)
        except InputError as error:
            pytest.skip(str(error))
        batch = concatenate([CORNERS[corner]() for corner in ("one graph", "lone node", "self loop")])
        ranks = torch.arange(batch.num_nodes) * 7 % 5 % 2 * 2  # cuts about half of the edges; rank 1 has no nodes
        predictions, loss, gradients = loss_and_gradients(model, batch)
        parts = on_parts(batch, ranks, 3, lambda part: (part, loss_and_gradients(model, part)))
        torch.testing.assert_close(torch.stack([result[1] for _, result in parts]).sum(), loss)
        for number, gradient in enumerate(gradients):
            torch.testing.assert_close(torch.stack([result[2][number] for _, result in parts]).sum(0), gradient)
        for part, (own, _, _) in parts:
            assert part.halo is not None
            for target in model.description.targets:
                if target.field.on == "node":
                    rows = part.halo.numbers[part.halo.owned]
                    assert_equal(own[target.name], predictions[target.name].rows(rows))

    def test_neighbours_matter(self, kind: str) -> None:
        batch, model = CORNERS["one graph"](), self._model()
        none = torch.zeros(0, dtype=torch.int64)
        alone = replace(
            batch,
            topology=Topology.square(none, none, batch.num_nodes),
            edge_shifts=batch.edge_shifts[:0],
            edge_offsets=torch.tensor([0, 0]),
            edges={name: value[:0] for name, value in batch.edges.items()},
        )
        assert not torch.allclose(model(batch)["charge"].mean, model(alone)["charge"].mean)

    @pytest.mark.parametrize("corner", ["two graphs", "self loop", "one edge"])
    def test_forces_are_minus_the_gradient_of_the_energy(self, kind: str, corner: str) -> None:
        batch, model = CORNERS[corner](), self._model()
        skip_without_forces(model)
        forces = model(batch)["forces"].mean.detach()

        def energies(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
            return energies_of(
                model, [replace(batch, positions=batch.positions + step * along) for along, step in steps]
            )

        ways = directions_like(batch.positions)
        assert_slopes(energies, [(along, -float((forces * along).sum())) for along in ways], forces)

    def test_stress_is_the_derivative_with_respect_to_strain_over_the_volume(self, kind: str) -> None:
        batch, model = CORNERS["one graph"](), self._model()
        skip_without_forces(model)
        stress = model(batch)["stress"].mean[0].detach()
        volume = float(torch.linalg.det(batch.cell[0]).abs())

        def energies(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
            strained = [mapped(batch, torch.eye(3, dtype=torch.float64) + step * strain) for strain, step in steps]
            return [energy / volume for energy in energies_of(model, strained)]

        strains = [(along + along.T) / 2 for along in directions_like(stress)]
        assert_slopes(energies, [(strain, float((stress * strain).sum())) for strain in strains], stress)

    @pytest.mark.parametrize("outputs", ["forces", "all"])
    def test_the_loss_has_the_gradient_that_finite_differences_give(self, kind: str, outputs: str) -> None:
        batch, model = CORNERS["two graphs"](), self._model()
        if outputs == "forces":
            skip_without_forces(model)
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
        along = directions_like(weights)[0]
        assert_slopes(losses, [(along, float(gradient @ along))], gradient)

    def test_a_model_comes_back_from_disk_bit_for_bit(self, kind: str, tmp_path: Path) -> None:
        model, batch = self._model(torch.float32), CORNERS["two graphs"]()
        save_model(tmp_path, model, Normalisation())
        loaded = load_model(tmp_path)
        assert loaded.targets == model.description.targets
        previous, following = model.eval()(batch.to(dtype=torch.float32)), loaded.model(batch.to(dtype=torch.float32))
        assert all(torch.equal(values_of(previous[name]), values_of(following[name])) for name in previous)

    def test_predicting_twice_gives_the_same_bits(self, kind: str) -> None:
        model, batch = self._model(torch.float32).eval(), CORNERS["two graphs"]().to(dtype=torch.float32)
        first, second = model(batch), model(batch)
        assert all(torch.equal(values_of(first[name]), values_of(second[name])) for name in first)

    def test_final_states_are_what_heads_read(self, kind: str) -> None:
        batch, model = CORNERS["two graphs"](), self._model()
        predictions, states = model.with_states(batch)
        assert states[0].shape == (batch.num_nodes, model.channels)
        graph = model.message_graph(batch, model.edge_vectors(batch))
        for settings, head in zip(model.description.heads, model.heads):
            assert_equal(head(states, graph, batch), predictions[settings.field])

    def test_initial_weights_depend_on_the_seed_and_on_nothing_else(self, kind: str) -> None:
        state = torch.random.get_rng_state()
        first = self.model(seed=5).state_dict()
        assert torch.equal(state, torch.random.get_rng_state())
        torch.rand(3)
        second, other = self.model(seed=5).state_dict(), self.model(seed=6).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)

    def test_physical_predictions_undo_the_normalisation(self, kind: str, tmp_path: Path) -> None:
        model, batch = self._model(), CORNERS["two graphs"]()
        scales = {
            "size": Scale(mean=(1.0, 2.0), std=(2.0, 4.0)),
            "energy": Scale(mean=(0.0,), std=(3.0,)),
            "gap": Scale(mean=(1.0, 2.0), std=(5.0, 7.0)),
        }
        save_model(tmp_path, model, Normalisation(scales=scales))
        actual = load_model(tmp_path, dtype=torch.float64).predict(batch)
        mean, std = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
        raw = model.eval()(replace(batch, nodes={**batch.nodes, "size": (batch.nodes["size"] - mean) / std}))
        torch.testing.assert_close(values_of(actual["energy"]), values_of(raw["energy"]).detach() * 3)
        spread = torch.tensor([[5.0, 7.0]], dtype=torch.float64)
        gap, unscaled = actual["gap"].tensors(), raw["gap"].detach().tensors()
        torch.testing.assert_close(gap["mean"], unscaled["mean"] * spread + torch.tensor([[1.0, 2.0]]))
        torch.testing.assert_close(gap["variance"], unscaled["variance"] * spread**2)

    def test_no_sum_on_a_gpu_depends_on_the_order_of_its_threads(self, kind: str) -> None:
        """Gather with ``hydragnn.kernels.spread`` and add with ``segment_sum`` instead."""
        if find_spec("triton") is None:
            pytest.skip("Triton is not installed, whose kernels a GPU would run")
        batch, model = CORNERS["two graphs"](), self.model()
        parameters = list(model.parameters())
        result = unordered_on_a_gpu(lambda: torch.autograd.grad(loss_of(model(batch)), parameters))
        assert not result, "; ".join(f"{name} at {line}" for name, line in result.items())

    def test_a_share_of_a_batch_may_be_empty(self, kind: str) -> None:
        whole, model = CORNERS["one graph"](), self._model()
        empty = replace(
            whole,
            positions=whole.positions[:0],
            topology=Topology.square(whole.senders[:0], whole.receivers[:0], 0),
            edge_shifts=whole.edge_shifts[:0],
            cell=whole.cell[:0],
            periodic=whole.periodic[:0],
            node_offsets=torch.tensor([0]),
            edge_offsets=torch.tensor([0]),
            nodes={name: value[:0] for name, value in whole.nodes.items()},
            edges={name: value[:0] for name, value in whole.edges.items()},
            graphs={name: value[:0] for name, value in whole.graphs.items()},
        )
        predictions = model(empty)
        gradients = torch.autograd.grad(loss_of(predictions), list(model.parameters()), allow_unused=True)
        assert all(gradient is None or not gradient.any() for gradient in gradients)

    @pytest.mark.parametrize("recording", [True, False], ids=["training", "no_grad"])
    def test_half_precision_arithmetic_stays_close(self, kind: str, recording: bool) -> None:
        model, batch = self._model(torch.float32), CORNERS["two graphs"]().to(dtype=torch.float32)
        exact = model(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(recording):
            rough = model(batch)
        for name, prediction in exact.items():
            expected = values_of(prediction).detach()
            scale = max(float(expected.abs().max()), 0.1)
            # bf16 keeps 8 bits; a handful of layers in a row lose a few of them
            assert float((values_of(rough[name]).detach().float() - expected).abs().max()) < 0.15 * scale
            assert values_of(rough[name]).requires_grad == recording
