"""Drive LAMMPS with the potential beside this file, through ``fix external``.

It needs torch, numpy, vesin and the Python module of LAMMPS, and under mpirun mpi4py; nothing of the project that wrote it.

    from lammps import lammps
    from hydragnn_lammps import attach

    lmp = lammps()
    lmp.file("in.setup")  # units metal or real, a box with atoms, pair_style zero 5.0
    attach(lmp, ["Cu", "Au"])  # elements of types 1 and 2
    lmp.command("run 100")

All ranks hand over their atoms, the first computes the potential, and all get their forces.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

ENERGY = {"metal": 1.0, "real": 23.060549}
"""Units of energy of LAMMPS in an eV, by its ``units``; both have Angstrom."""


class Driver:
    """Callback of ``fix external``, with results of the last step.

    ``energy``, ``spread`` and ``stress`` are in eV and Angstrom.
    """

    def __init__(self, lmp: Any, elements: Sequence[str], fix: str = "hydragnn", file: Path | None = None) -> None:
        """Define the fix; ValueError for units or elements that do not fit."""
        self.file = file or Path(__file__).with_name("potential.pt2")
        with ZipFile(self.file) as archive:
            stated = next(name for name in archive.namelist() if name.endswith("/extra/hydragnn.json"))
            self.facts = json.loads(archive.read(stated))
        self.potential: Any = None
        """Read by the rank that computes."""
        units = lmp.extract_global("units")
        units = units.decode() if isinstance(units, bytes) else units
        if units not in ENERGY:
            raise ValueError(f"units {units} of LAMMPS have no Angstrom; write units metal or units real")
        numbers_of = dict(zip(self.facts["symbols"], self.facts["species"]))
        unknown = [one for one in elements if one not in numbers_of]
        if unknown:
            raise ValueError(f"the potential does not know {' '.join(unknown)}; it knows {' '.join(numbers_of)}")
        if len(elements) != lmp.extract_global("ntypes"):
            raise ValueError(f"{len(elements)} elements for {lmp.extract_global('ntypes')} types; give one for each")
        self.unit, self.fix = ENERGY[units], fix
        self.numbers = np.array([0, *(numbers_of[one] for one in elements)])
        self.world = lmp.get_mpi_comm() if lmp.extract_setting("world_size") > 1 else None
        self.energy = self.spread = 0.0
        self.stress = np.zeros((3, 3))
        lmp.command(f"fix {fix} all external pf/callback 1 1")
        lmp.command(f"fix_modify {fix} energy yes virial yes")
        lmp.set_fix_external_callback(fix, self, lmp)

    def __call__(self, lmp: Any, step: int, nlocal: int, tag: Any, x: Any, f: Any) -> None:
        """Add the forces of this step, and say energy and virial."""
        types = lmp.numpy.extract_atom("type")[:nlocal]
        mine = (np.array(tag[:nlocal]), np.array(x[:nlocal]), np.array(types))
        ranks = [mine] if self.world is None else self.world.gather(mine)
        result: Any = None
        low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
        if ranks is not None:
            side = np.subtract(high, low)
            cell = np.array([[side[0], 0, 0], [xy, side[1], 0], [xz, yz, side[2]]])
            tags, positions, kinds = (np.concatenate(parts) for parts in zip(*ranks))
            forces = np.zeros((int(tags.max()) + 1, 3))
            energy, forces[tags], virial = self.compute(positions, self.numbers[kinds], cell, np.array(periodic, bool))
            result = (energy, forces, virial)
        energy, forces, virial = result if self.world is None else self.world.bcast(result)
        f[:nlocal] = forces[tag[:nlocal]] * self.unit
        lmp.fix_external_set_energy_global(self.fix, energy * self.unit)
        lmp.fix_external_set_virial_global(self.fix, (virial * self.unit).tolist())

    def compute(
        self, positions: Any, numbers: Any, cell: Any, periodic: Any
    ) -> tuple[float, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
        """Return energy, forces and virial of all atoms.

        The virial is xx, yy, zz, xy, xz, yz in eV.
        """
        import torch
        from vesin import NeighborList

        if self.potential is None:
            self.potential = torch.export.load(self.file).module()
        search = NeighborList(cutoff=self.facts["cutoff"], full_list=True)
        centres, neighbours, images = search.compute(positions, cell, periodic, "ijS")
        results = self.potential(
            torch.from_numpy(positions),
            torch.from_numpy(numbers),
            torch.from_numpy(cell)[None],
            torch.from_numpy(np.stack([neighbours, centres]).astype(np.int64)),
            torch.from_numpy(images.astype(np.float64)),
            torch.zeros(len(positions), dtype=torch.int64),
        )
        values = dict(zip(self.facts["results"], (one.numpy() for one in results)))
        self.energy, self.spread = float(values["energy"][0]), float(results[len(values)][0])
        self.stress = values["stress"][0] if "stress" in values else np.full((3, 3), np.nan)
        order = ([0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2])
        return self.energy, values["forces"], -self.stress[order] * abs(np.linalg.det(cell))


def attach(lmp: Any, elements: Sequence[str], fix: str = "hydragnn") -> Driver:
    """Drive LAMMPS with the potential; ``elements`` are those of its types."""
    return Driver(lmp, elements, fix)
