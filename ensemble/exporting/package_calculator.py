"""Calculator of a package of AOTInductor, and model of torch-sim."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from hydragnn.base.errors import InputError, MissingPackageError
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.uses.calculator import CalculatorResults, EnsembleCalculator, Outside, calculator
from hydragnn.graphs.search import completed_cell

if TYPE_CHECKING:
    from hydragnn.ensemble.exporting.torch_sim_states import TorchSimModel


class PackageCalculator(EnsembleCalculator):
    """Mean energy (eV), forces (eV/Angstrom) and stress (eV/Angstrom^3) of a package.

    They are those of ``EnsembleCalculator`` to rounding. There are no uncertainties and no domain scores.
    """

    def __init__(self, ensemble: Ensemble, package: Path | str) -> None:
        """Load the machine code; InputError for a package of another model."""
        super().__init__(ensemble, "record")
        if not Path(package).is_file():
            raise InputError(f"{package} does not exist; write it with hydragnn export MODEL --to aoti --out {package}")
        try:
            self.potential = torch._inductor.aoti_load_package(str(package))
            stated = json.loads(self.potential.get_metadata()["hydragnn"])
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise InputError(f"{package} is no package that hydragnn export --to aoti has written here") from error
        if stated["model"] != ensemble.digest:
            raise InputError(f"{package} was exported from another model than {ensemble.names[0]}; export it again")
        self.order = list(stated["results"])

    def calculate(
        self, atoms: Atoms | None = None, properties: list[str] | None = None, system_changes: list[str] = all_changes
    ) -> None:
        """Compute one structure; InputError where the model does not know an element."""
        Calculator.calculate(self, atoms, properties, system_changes)
        self.results = results = CalculatorResults()
        now = self.atoms
        positions, cutoff = now.get_positions(), self.structures.cutoff
        cell = completed_cell(np.array(now.cell.array), now.pbc, "the structure")
        edges, shifts = self.moving.neighbours.edges(positions, cell, now.pbc, cutoff, name="the structure")
        values = self.potential(
            torch.from_numpy(positions),
            torch.from_numpy(now.numbers.astype(np.int64)),
            torch.from_numpy(cell)[None],
            torch.stack([edges.senders, edges.receivers]),
            (shifts @ torch.from_numpy(np.linalg.inv(cell))).round(),
            torch.zeros(len(now), dtype=torch.int64),
        )
        outputs = {name: value.numpy() for name, value in zip(self.order, values)}
        if not np.isfinite(outputs["energy"]).all():
            raise InputError("the structure cannot be predicted: it has elements that training did not hold")
        results["energy"] = results["free_energy"] = float(outputs["energy"][0])
        if "forces" in outputs:
            results["forces"] = outputs["forces"]
        if "stress" in outputs and now.pbc.any() and now.cell.rank == 3:
            results["stress"] = full_3x3_to_voigt_6_stress(outputs["stress"][0])


def package_calculator(
    folder: Path | str | Ensemble, package: Path | str, *, allow_code: Sequence[str] = ()
) -> PackageCalculator:
    """Return the ASE calculator of a model and its exported package.

    Loading a package runs its machine code: take only those that you exported.
    """
    ensemble = folder if isinstance(folder, Ensemble) else Ensemble.load(folder, allow_code=allow_code)
    return PackageCalculator(ensemble, package)


def torch_sim_model(
    folder: Path | str | Ensemble, *, outside: Outside = "warn", allow_code: Sequence[str] = ()
) -> "TorchSimModel":
    """Return torch-sim's model of a folder or a loaded ensemble.

    The arguments are those of ``calculator``. MissingPackageError without torch-sim.
    """
    if find_spec("torch_sim") is None:
        raise MissingPackageError("torch-sim-atomistic", "simulation", "a model of torch-sim")
    from hydragnn.ensemble.exporting.torch_sim_states import TorchSimModel

    return TorchSimModel(calculator(folder, outside=outside, allow_code=allow_code))
