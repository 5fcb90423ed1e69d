"""Keys of microstructures, and graphs of maps of orientations."""

from abc import ABC
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field as Setting

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.mesoscale import from_labels
from hydragnn.graphs.orientations import LAUE, cells_of_points, from_bunge, grains_of_map, joined_grains, with_means

Array = Any  # of numpy


class MapSettings(BuildSettings, ABC):
    """Keys of maps of orientations and of polycrystals."""

    threshold: float = Setting(default=5.0, gt=0, le=180)
    """Misorientation of neighbouring points, in degrees, from which they belong to different grains."""

    smallest: int = Setting(default=0, ge=0)
    """Points of the smallest grain: smaller ones, and points not indexed, join the nearest grain; 0: none does."""

    symmetry: str | dict[str, str] | None = None
    """Laue group such as ``m-3m``, or one for each name of a phase; absent: as the file says."""

    phases: list[str] | None = None
    """Names of phases, in the order of classes of the field ``phase``; absent: every file has one phase."""

    spacing: float | list[float] | None = None
    """Distance of points, or one each along x, y and z; absent: as the file says."""

    degrees: bool | None = None
    """True for Euler angles in degrees, false for radians; absent: degrees in .ctf, else radians."""

    periodic: bool | list[bool] = False
    """True where a map repeats, or one for each axis."""

    sets: str = "*"
    """Pattern for the names of element sets that are grains (.inp)."""

    def of_map(
        self, path: Path, steps: Array, phase: Array, turns: Array, phases: Any, grain: Array = None, cells: int = 1
    ) -> GraphBatch:
        """Return the grains of arrays with the axes x, y, z."""
        periodic = self.periodic if isinstance(self.periodic, list) else [self.periodic] * phase.ndim
        if len(periodic) != phase.ndim or (cells > 1 and any(periodic)):
            raise InputError(f"{path} has {phase.ndim} axes; periodic has {len(periodic)}, and none on hexagonal grids")
        numbers = [int(number) for number in np.unique(phase) if number > 0]
        names = {number: phases[0].get(number, str(number)) for number in numbers}
        if len({*names.values()}) < len(names):
            raise InputError(f"{path} names several phases alike: {[*names.values()]}; correct its header")
        if {*names.values()} - {*(self.phases or [])} and (self.phases or len(names) > 1):
            raise InputError(f"{path} has the phases {[*names.values()]}; say phases = [...] with all names")
        laue = {} if turns is None else {n: self.group(names[n], phases[1].get(n), path) for n in numbers}
        if grain is not None and self.threshold != type(self).model_fields["threshold"].default:
            raise InputError(f"{path} has grains of its own; leave threshold out, or remove FeatureIds")
        grain = grains_of_map(turns, phase, laue, self.threshold, periodic) if grain is None else grain
        if grain.dtype.kind not in "iu" or grain.min() < 0:
            raise InputError(f"{path} has FeatureIds that are no whole numbers from 0; write them as integers")
        grain = np.where((phase > 0) & (np.bincount(grain.ravel())[grain] >= self.smallest * cells), grain, 0)
        inside = grain > 0
        _, first, owner = np.unique(grain[inside], return_index=True, return_inverse=True)
        kinds = phase[inside][first]
        if not len(first) or (kinds[owner] != phase[inside]).any():
            raise InputError(f"{path} has no grain, or one of several phases; check its phases, grains, and smallest")
        grain = joined_grains(grain, steps, periodic) if self.smallest else grain
        graph = from_labels(grain, steps, periodic, background=0, unit="um", name=str(path))
        if turns is not None:
            graph = with_means(graph, turns[inside], owner, kinds, laue)
        if not self.phases:
            return graph
        field = Field(name="phase", on="node", classes=len(self.phases), dtype="int64")
        places = torch.tensor([self.phases.index(names[int(number)]) for number in kinds])
        return graph.with_fields({"phase": places}, fields=[field])

    def of_points(
        self, path: Path, table: Array, counts: list[int], steps: Array, phases: Any, degrees: bool, hexagonal: bool
    ) -> GraphBatch:
        """Return the grains of rows of x, y, Euler angles and phase."""
        names, unit = phases[0] or range(1, 256), steps * [1 - hexagonal / 2, 1]
        if odd := [one for one in np.unique(table[:, 5]) if not (one <= 0 or one in names)]:
            raise InputError(f"{path}: points have phase {odd[0]:g}, and its header lists {[*names]}; correct one")
        columns, rows, others = (*counts, *counts[:1])[:3] if len(counts) > 1 else (0, 0, 0)
        if (points := (rows + 1) // 2 * columns + rows // 2 * others or len(table)) != len(table):
            raise InputError(f"{path} has {len(table):,} points, and its header counts {points:,}; export it again")
        if (places := cells_of_points(table[:, :2], unit, hexagonal)) is None:
            form = f"one each on the {'hexagonal' if hexagonal else 'square'} grid of its header"
            raise InputError(f"{path}: points are not {form}; say spacing, or export it again")
        flat, shape = places
        full = np.zeros((shape[0] * shape[1], 4))
        for cells in (flat, flat + shape[1])[: 1 + hexagonal]:
            full[cells] = np.maximum(table[:, 2:6], [-np.inf] * 3 + [0])
        phase = full[:, 3].astype(np.int64).reshape(shape)
        turns = self.turns(path, full[:, :3].reshape(*shape, 3), phase > 0, degrees)
        return self.of_map(path, unit, phase, turns, phases, cells=1 + hexagonal)

    def turns(self, path: Path, angles: Array, indexed: Array, degrees: bool = False) -> Array:
        """Return quaternions of Euler angles, usually in ``degrees``."""
        most = np.abs(angles[indexed]).max(initial=0.0)
        if not np.isfinite(most):
            raise InputError(f"{path}: an indexed point has the Euler angle {most}; give it phase 0")
        if self.degrees is None and (0 < most < 6.3 if degrees else most > 12.6):
            units = "degrees" if degrees else "radians"
            raise InputError(f"{path}: Euler angles to {most:.4g} are hardly in {units}; say degrees = true or false")
        flat = np.where(indexed[..., None], angles, 0.0).reshape(-1, 3)
        flat = np.radians(flat) if (degrees if self.degrees is None else self.degrees) else flat
        return from_bunge(flat).reshape(*indexed.shape, 4)

    def group(self, name: str, group: str | None, path: Path) -> str:
        """Return the Laue group of a phase: the user's, else the file's."""
        own = self.symmetry.get(name) if isinstance(self.symmetry, dict) else self.symmetry
        stray = not own and isinstance(self.symmetry, dict) and {*self.symmetry} - {*(self.phases or [])}
        if stray or (own or group) not in LAUE:
            what = f"is {own or group!r}" if own or group else "is not in the file"
            what = f"is not that of {stray}" if stray else what
            example = f'symmetry = "m-3m", or {{ "{name}" = "m-3m" }}, out of {", ".join(LAUE)}'
            raise InputError(f"{path}: the symmetry of phase {name} {what}; say {example}")
        return str(own or group)

    def steps(self, path: Path, stated: Iterable[Any]) -> Array:
        """Return the distances of points: the user's, else the file's."""
        lengths = np.array([*stated], dtype=np.float64)
        if isinstance(self.spacing, list) and len(self.spacing) != len(lengths):
            raise InputError(f"spacing has {len(self.spacing)} lengths; give {len(lengths)}, or one")
        steps = np.broadcast_to(lengths if self.spacing is None else self.spacing, lengths.shape)
        if not ((steps > 0) & np.isfinite(steps)).all():
            raise InputError(
                f"{path}: the distances of points are {steps.tolist()}; say spacing, also one for each axis"
            )
        return steps
