"""Model interface of torch-sim: many structures relaxed or propagated at once."""

from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor
from torch_sim.models.interface import ModelInterface
from torch_sim.state import SimState

from hydragnn.base.arguments import usual_modes
from hydragnn.base.errors import InputError
from hydragnn.ensemble.estimates.predictions import Predictions
from hydragnn.ensemble.reading.structures import MovingStructure
from hydragnn.ensemble.uses.calculator import EnsembleCalculator, OutsideDomain
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate

PARTS = (("mean", ""), ("std", "_std"))
"""Quantities of an estimate, and how the names of results end."""


class TorchSimModel(ModelInterface):
    """Mean energy, forces and stress of all structures of a state.

    They are in eV and Angstrom.
    ``energy_std``, ``forces_std``, ``stress_std`` and ``domain_score`` stand beside, where an ensemble knows them. ``domain`` says of every structure of
    the last state why it is outside the training domain, or nothing. All numbers are those of the ASE calculator.
    """

    def __init__(self, potential: EnsembleCalculator) -> None:
        """Take a calculator; InputError where states lack what it reads."""
        super().__init__()
        structures = potential.structures
        if structures.fields or structures.encodings or structures.coarsening is not None:
            names = [one.name for one in structures.fields] + list(structures.encodings)
            raise InputError(
                f"the model reads {', '.join(names) or 'coarser levels'} beside elements and positions, and states of torch-sim have none; "
                "use the ASE calculator"
            )
        self.potential = potential
        self._moving: list[MovingStructure] = []
        self.domain: tuple[str, ...] = ()
        device = potential.moving.neighbours.device
        self._device, self._dtype = device, torch.float64
        self._compute_forces, self._compute_stress = "forces" in potential.names, "stress" in potential.names

    @usual_modes()
    def forward(self, state: SimState | dict[str, Any], **_: Any) -> dict[str, Tensor]:
        """Return results by name; InputError numbers a structure that fails."""
        batch = self._graphs(state if isinstance(state, SimState) else SimState(**state))
        predictions = self.potential.ensemble.predict_checked(batch)
        for number, status in enumerate(predictions.status):
            if status != "ok":
                raise InputError(f"structure {number} cannot be predicted: {status}")
        self.domain = predictions.domain
        self._react(predictions)
        results: dict[str, Tensor] = {}
        for name, field in self.potential.names.items():
            estimate, factor = predictions[field], self.potential.factors[name]
            for quantity, suffix in PARTS:
                values = torch.from_numpy(estimate[quantity]).to(self._device) * factor
                if not suffix or bool(values.isfinite().any()):
                    results[name + suffix] = values.flatten() if name == "energy" else values
        if self.potential.ensemble.knows_domain:
            results["domain_score"] = torch.from_numpy(predictions.domain_score).to(self._device)
        return {name: values.to(self._dtype) for name, values in results.items()}

    def _react(self, predictions: Predictions) -> None:
        """Do what the calculator does about structures outside the training domain."""
        for number in (number for number, reason in enumerate(predictions.domain) if reason):
            reason, score = predictions.domain[number], float(predictions.domain_score[number])
            if self.potential.outside == "stop":
                raise OutsideDomain(f"structure {number}: {reason}", score)
            self.potential._react(reason, score)

    def _graphs(self, state: SimState) -> GraphBatch:
        """Return the graphs of a state, made as those of training."""
        counts = torch.bincount(state.system_idx).tolist()
        cells = state.row_vector_cell.detach().double().cpu().numpy()
        flags = torch.as_tensor(state.pbc).expand(len(counts), 3).cpu().numpy()
        rows = [values.detach().cpu().split(counts) for values in (state.atomic_numbers, state.positions.double())]
        states = [Atoms(*map(np.asarray, one), cell=cell, pbc=own) for *one, cell, own in zip(*rows, cells, flags)]
        if len(self._moving) != len(states):
            self._moving = [MovingStructure(self.potential.structures, self._device) for _ in states]
        graphs = [
            moving.graph(atoms, f"structure {number}")
            for number, (moving, atoms) in enumerate(zip(self._moving, states))
        ]
        return concatenate([graph.to(self._device) for graph in graphs])
