"""ASE calculator of an ensemble: energies, forces, stress and their uncertainties."""

import sys
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from hydragnn.base.arguments import check_arguments, usual_modes
from hydragnn.base.errors import InputError, nearest, print_note
from hydragnn.ensemble.domain import Latent, Spread, Statistics
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.numbers import Calibration
from hydragnn.ensemble.estimates.predictions import Predictions
from hydragnn.ensemble.reading.structures import MovingStructure, factors_of, properties_of
from hydragnn.graphs.atomic import value_on
from hydragnn.graphs.batch import GraphBatch

Values = dict[str, tuple[str, Any]]
"""Keys and values of fields by name."""

Outside = Literal["stop", "warn", "record"]
"""Reactions of a calculator to a structure outside the training domain."""


STEPS = 200
"""Steps of a mean error; so many fs in ``hydragnn md``."""
ANY = 1e9  # unknown, and finite for JSON
LARGEST_ERROR = 10.0
"""Mean error over the usual one at which a trajectory ends."""
NEVER_SEEN = 4.0
"""Excess of a check that ends a trajectory: contacts nearer by a fifth."""
LONGEST_STEP = 1.0
"""Angstrom that an atom moves in a step."""


class OutsideDomain(InputError):
    """Structure outside the training domain, at which a simulation stops."""

    def __init__(self, reason: str, score: float) -> None:
        """Name the reason and the structure's domain score."""
        super().__init__(
            f"the structure is outside the training domain (domain score {score:.3g}): {reason}; train on structures like it, "
            'or go on with outside = "warn" (of commands: --outside warn)'
        )
        self.reason, self.score = reason, score


class CalculatorResults(dict[str, Any]):
    """ASE's properties; other values are read by name."""

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        return self.others[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value by its name, listed or not."""
        return self[name] if name in self or name in self.others else default


class EnsembleCalculator(Calculator):
    """Mean energy (eV), forces (eV/Angstrom) and stress (eV/Angstrom^3) of the members.

    A structure without a volume (no periodic axis, or a cell vector of length zero) has no stress. ``results`` also has ``energy_std``, ``forces_std`` and ``stress_std`` (calibrated standard deviations), ``forces_lower``
    and ``forces_upper`` and so on (intervals, where the ensemble is calibrated), ``domain``: empty, or what about the
    structure the training data never showed, ``domain_score``, the probability that a structure like those of training is as unlike them, and ``node_domain_score``, that of every atom; of a single run, none of these. Neighbours are searched anew
    only when atoms have moved far enough for new ones (``SkinList``); results do not depend on it. The mean of the members' forces is minus the gradient of their mean energy.
    """

    def __init__(self, ensemble: Ensemble, outside: Outside = "warn") -> None:
        """Raise InputError without an energy in a known unit, or without atoms."""
        super().__init__()
        self.ensemble, self.outside = ensemble, outside
        _check_outside(ensemble, outside)
        self._warned: set[str] = set()
        """Causes that were printed."""
        self.errors: deque[float] = deque(maxlen=STEPS)
        """Predicted errors of forces in the last steps, over the usual one."""
        self._structure: Atoms | None = None
        """Last structure, which ASE forgets."""
        self.names = properties_of(ensemble.targets)
        self.factors = factors_of(ensemble.targets, ensemble.training_attributes)
        self.structures = ensemble.structures
        devices = {member.model.device for member in ensemble.members}
        self.moving = MovingStructure(self.structures, devices.pop() if len(devices) == 1 else "cpu")
        self._made_of: Values = {}
        """Fields of the last graph that members read."""
        self.values: Values = {}
        self.implemented_properties: list[str] = ["free_energy", *self.names]

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return the properties and fields that changed since the last calculation."""
        changes: list[str] = super().check_state(atoms, tol)
        return changes + _changed(self.values, self._read(atoms))

    def _read(self, atoms: Atoms) -> Values:
        """Return the fields that members read, each with its key."""
        fields, key_of = self.structures.fields, self.structures.key
        return {one.name: (key := key_of(atoms, one), value_on(atoms, one, key)) for one in fields}

    def _graph(self, atoms: Atoms) -> GraphBatch:
        """Return a structure's graph, with a new geometry alone where possible."""
        if _changed(self._made_of, self.values):
            self.moving.forget()
        self._made_of = self.values
        return self.moving.graph(atoms, "the structure")

    def _react(self, reason: str, score: float) -> None:
        """Raise OutsideDomain, or print each new cause, where there is a reason."""
        if reason and self.outside == "stop":
            self.errors.clear()  # so that it is the first one where it is asked for again
            raise OutsideDomain(reason, score)
        for says in filter(None, reason.split("; ")) if self.outside == "warn" else ():
            cause = says.partition(":")[0]  # the detector; the rest changes from step to step
            if cause not in self._warned:
                self._warned.add(cause)
                note = f"warning: a structure is outside the training domain (domain score {score:.3g}): {says}"
                print(f"{note}; later ones of this cause are recorded only", file=sys.stderr, flush=True)

    def _has_left(self, predictions: Predictions) -> bool:
        """Return True where a structure ends its trajectory if it is flagged.

        Others may come back, as hot atoms do, with errors about as usual.
        """
        scores = predictions.domain_scores
        strict = scores.keys() - {Latent.name, Spread.name, Statistics.name}
        never_seen = any(scores[name][0] >= NEVER_SEEN for name in strict)
        mean = sum(self.errors) / (self.errors.maxlen or STEPS)
        return never_seen or len(self.errors) == 1 or mean > LARGEST_ERROR

    def _error(self, predictions: Predictions) -> float:
        """Return the predicted error over the usual one; ``ANY`` if unknown."""
        forces = self.names.get("forces", "")
        calibration = self.ensemble.manifest.calibration.get(forces)
        if not isinstance(calibration, Calibration) or calibration.method != "spread":
            return ANY
        usual = calibration.components[0].scale * self.ensemble.manifest.domain.usual_doubt(forces)
        return float(np.nan_to_num(np.sqrt((predictions[forces]["std"] ** 2).mean()) / usual, nan=ANY, posinf=ANY))

    def restart(self, atoms: Atoms, energy: float, forces: np.ndarray) -> None:
        """Set the energy and forces of a structure.

        A simulation that begins here has the bits of one that passed here.
        """
        self.atoms = self._structure = atoms.copy()
        self.results = CalculatorResults()
        self.results |= {"energy": energy, "free_energy": energy, "forces": forces}
        self.values = deepcopy(self._read(self.atoms))
        self.moving = MovingStructure(self.structures, self.moving.neighbours.device)

    @usual_modes()
    def calculate(
        self, atoms: Atoms | None = None, properties: list[str] | None = None, system_changes: list[str] = all_changes
    ) -> None:
        """Predict one structure; InputError where it cannot be predicted."""
        super().calculate(atoms, properties, system_changes)
        last, self._structure = self._structure, self.atoms
        same = last is not None and np.array_equal(last.numbers, self.atoms.numbers)
        if last is None or not same or np.abs(self.atoms.positions - last.positions).max(initial=0) > LONGEST_STEP:
            self.errors.clear()
        self.results = CalculatorResults()  # not those of another structure, if this one fails
        self.values = deepcopy(self._read(self.atoms))  # copies of atoms share what info holds
        predictions = self.ensemble.predict_checked(self._graph(self.atoms))
        if predictions.status[0] != "ok":
            raise InputError(f"the structure cannot be predicted: {predictions.status[0]}")
        self.errors.append(self._error(predictions))
        if self.outside != "stop" or self._has_left(predictions):
            self._react(predictions.domain[0], float(predictions.domain_score[0]))
        self.results = results = CalculatorResults()
        for name, field in self.names.items():
            one = predictions[field]
            for quantity, suffix in (("mean", ""), ("std", "_std"), ("lower", "_lower"), ("upper", "_upper")):
                values = one[quantity]
                if np.isfinite(values).all():
                    scaled: Any = values * self.factors[name]
                    if name != "forces":
                        scaled = scaled.item() if name == "energy" else full_3x3_to_voigt_6_stress(scaled[0])
                    (results.others if suffix else results)[name + suffix] = scaled
        results["free_energy"] = results["energy"]
        if self.ensemble.knows_domain:
            results.others |= {"domain": predictions.domain[0], "domain_score": float(predictions.domain_score[0])}
        if self.ensemble.manifest.domain.of_nodes:
            results.others["node_domain_score"] = predictions.node_domain_score


@check_arguments
def calculator(
    folder: Path | str | Ensemble, *, outside: Outside = "warn", allow_code: Sequence[str] = ()
) -> EnsembleCalculator:
    """Return the ASE calculator of a folder or a loaded ensemble.

    ``outside`` is the reaction to a structure outside the training domain. "stop" raises OutsideDomain before ASE writes the
    structure with which a trajectory leaves the domain; others are flagged alone. "warn" prints a sentence per cause to stderr, once. "record" leaves it to
    ``results["domain"]``. The default is "warn": it changes no number, and false alarms end no simulation.

    The folder may name classes of the modules in ``allow_code``.
    """
    ensemble = folder if isinstance(folder, Ensemble) else Ensemble.load(folder, allow_code=allow_code)
    for note in filter(None, (ensemble.caveat, ensemble.doubt_about_structures)):
        print_note(note)
    return EnsembleCalculator(ensemble.replayed(), outside)


def _check_outside(ensemble: Ensemble, outside: str) -> None:
    """Raise InputError for an unknown reaction, or one that needs a domain."""
    if outside not in get_args(Outside):
        raise InputError(f"outside = {outside!r} is no reaction; {nearest(outside, list(get_args(Outside)))}")
    if outside == "stop" and not ensemble.knows_domain:
        problem = f'outside = "stop" needs a training domain, and {ensemble.names[0]} has none'
        raise InputError(f'{problem}; build an ensemble of its runs with hydragnn ensemble, or use outside = "record"')


def _changed(before: Values, now: Values) -> list[str]:
    """Return the fields with a changed value or key."""
    return [name for name, (key, old) in before.items() if key != now[name][0] or not np.array_equal(old, now[name][1])]
