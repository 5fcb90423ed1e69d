"""Conformance in limits: digits, depth, repeated cells, coincident nodes, shares.

A fault there shows in no run of usual size: as noise of a force in float32, as a network of one layer that does not train, or as a NaN of one structure in a
hundred thousand.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from ase.build import bulk
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import (
    CORNERS,
    assert_slopes,
    directions_like,
    energies_of,
    gives_forces,
    in_one_place,
    loss_of,
    make_graph,
    make_model,
    repeated,
    shared_model,
    small_settings,
    values_of,
)
from hydragnn.conformance.smoothness import CUTOFF, atoms_graph, energies_and_forces, energy_model
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel

HALF_THE_DIGITS = float(torch.finfo(torch.float32).eps ** 0.5)
"""3.5e-4: what sound sums keep in float32; what takes the difference of two large numbers loses more."""
EXTENSIVE = 1e-10
"""Relative, where the same numbers are summed in another order in float64."""


class LimitsConformance:
    """Promises about limits: digits, depth, supercells, coincident nodes, ranks."""

    architecture: str
    settings: ClassVar[dict[str, Any]] = {}

    def _model(self, dtype: torch.dtype = torch.float64) -> GraphModel:
        return shared_model(self.architecture, dtype, **self.settings)

    def _model_of_layers(self, layers: int) -> GraphModel:
        """Return the model with that many layers; skip if it is refused."""
        try:
            return shared_model(self.architecture, **{**self.settings, "num_layers": layers})
        except InputError as refusal:
            pytest.skip(f"refused: {refusal}")

    def test_float32_keeps_half_of_its_digits(self) -> None:
        """Compare with float64, each field on the scale of its largest value."""
        single = self._model(torch.float32)
        double = make_model(self.architecture, 0, torch.float32, **self.settings).double()
        batch = CORNERS["two graphs"]().to(dtype=torch.float32)
        rough, exact = single(batch), double(batch.to(dtype=torch.float64))
        for name, prediction in exact.items():
            for key, values in prediction.detach().tensors().items():
                error = (rough[name].detach().tensors()[key].double() - values).abs().max() / values.abs().max()
                assert float(error) < HALF_THE_DIGITS, f"{name}: relative error {float(error):.1e}"

    @pytest.mark.parametrize("layers", [1, 5])
    def test_one_layer_and_many_are_finite_and_every_parameter_has_a_say(self, layers: int) -> None:
        corners = concatenate([*(make() for make in CORNERS.values()), make_graph(3, 12)])
        gradients = finite_gradients(self._model_of_layers(layers), corners, f"{layers} layers")
        assert [name for name, gradient in gradients.items() if not gradient.abs().sum() > 0] == []

    @pytest.mark.parametrize("layers", [1, 5])
    def test_forces_of_one_layer_and_of_many_are_minus_the_gradient(self, layers: int) -> None:
        model, batch = self._model_of_layers(layers), CORNERS["two graphs"]()
        if "forces" not in model.description.fields:
            pytest.skip(f"{self.architecture} gives no forces with these settings")
        forces = model(batch)["forces"].mean.detach()

        def energies(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
            return energies_of(
                model, [replace(batch, positions=batch.positions + step * along) for along, step in steps]
            )

        along = directions_like(batch.positions)[0]
        assert_slopes(energies, [(along, -float((forces * along).sum()))], forces)

    def test_a_repeated_cell_is_the_cell_so_many_times(self) -> None:
        """Compare a cell with its supercell.

        Most neighbours in the cell are images, which the supercell has as nodes: what is extensive is multiplied, all else is what it was.
        Variances of nodes are pooled as those of independent ones, and stay out of it.
        """
        if small_settings(self.architecture, **self.settings).pooling is not None:
            pytest.skip("a repeated cell has levels of its own, which are not those of the cell repeated")
        cell, model = CORNERS["one graph"](), self._model()
        copies, large = repeated(cell, (2, 1, 3))
        expected, actual = model(cell), model(large)
        for target in model.description.targets:
            values = values_of(expected[target.name]).detach()
            if target.field.on != "graph":
                values = values.repeat(copies, *[1] * (values.ndim - 1))
            values = values * (copies if target.extensive else 1)
            error = (values_of(actual[target.name]).detach() - values).abs().max() / values.abs().max()
            assert float(error) < EXTENSIVE, f"{target.name}: relative error {float(error):.1e}"

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
    def test_nodes_in_one_place_are_finite_with_forces_and_gradients(self, dtype: torch.dtype) -> None:
        """Place neighbours in one place, and a millionth apart."""
        meeting = concatenate([in_one_place(0.0), in_one_place(1e-6)])
        finite_gradients(self._model(dtype), meeting.to(dtype=dtype), "two nodes in one place")

    def test_second_derivatives_are_those_of_the_forces(self) -> None:
        """Compare without symmetries."""
        if not gives_forces(self.architecture, self.settings):
            pytest.skip(f"{self.architecture} gives no forces with these settings")
        model = energy_model(self.architecture, **self.settings)
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
            assert_slopes(pulls, [((along, visible), float((curvature * visible).sum()))], curvature)

    def test_gradients_of_shares_add_up_to_that_of_the_batch(self) -> None:
        """Compare two ranks with one."""
        batch, model = CORNERS["two graphs"](), self._model()
        whole = finite_gradients(model, batch, "both graphs")
        shares = [finite_gradients(model, batch.select([number]), f"graph {number}") for number in range(2)]
        for name, gradient in whole.items():
            summed = shares[0][name] + shares[1][name]
            assert float((summed - gradient).abs().max()) < 1e-10 * max(1.0, float(gradient.abs().max())), name


def finite_gradients(model: GraphModel, batch: GraphBatch, where: str) -> dict[str, Tensor]:
    """Return the gradient of every parameter by name, checked to be finite."""
    predictions = model(batch)
    bad = [name for name, prediction in predictions.items() if not prediction.finite().all()]
    assert bad == [], f"not finite, {where}"
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        loss_of(predictions), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    bad = [name for name, gradient in zip(parameters, gradients) if not gradient.isfinite().all()]
    assert bad == [], f"gradients are not finite, {where}"
    return dict(zip(parameters, gradients))
