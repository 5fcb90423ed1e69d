"""Microstructures as instruments write them: maps of orientations, polycrystals."""

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from hydragnn.base.errors import InputError, as_input_error, print_note
from hydragnn.datasets.sources.base import Make
from hydragnn.datasets.sources.ebsd_files import read_ang, read_ctf, read_dream3d, read_hdf5
from hydragnn.datasets.sources.map_settings import MapSettings
from hydragnn.datasets.sources.meshio_files import grains_of_mesh, read_abaqus
from hydragnn.datasets.sources.neper_files import read_tesr, read_tess
from hydragnn.graphs.batch import GraphBatch


class MicrostructureBuild(MapSettings):
    """Maps of orientations and polycrystals: nodes are grains, edges boundaries."""

    kind: Literal["microstructure"] = "microstructure"

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each file; InputError names the file."""
        files = self.named_files()
        if len({path.suffix.lower() for path, _ in files} & {".ctf", ".ang"}) > 1:
            print_note(".ctf and .ang usually have other axes of sample and crystal, which orientation_features mix")
        for path, name in files:
            yield partial(self.graph_with_texts, {}, name, partial(self._graph, path, name))

    def _graph(self, path: Path, name: str) -> GraphBatch:
        if self.fields:
            raise InputError(f"{name}: no value for the field {self.fields[0].name}; name a table of labels")
        if (read := READERS.get(path.suffix.lower())) is None:
            raise InputError(f"{path} is no microstructure; give {', '.join(READERS)}")
        for key, suffixes in TAKEN_BY.items():
            if path.suffix.lower() not in suffixes and getattr(self, key) != type(self).model_fields[key].default:
                raise InputError(f"{path}: {key} is for {', '.join(suffixes)}; leave it out")
        with as_input_error(f"{path} is damaged or incomplete", "export it again"):
            return read(path, self)


def read_inp(path: Path, settings: MapSettings) -> GraphBatch:
    """Return the element sets of an Abaqus input as grains."""
    mesh = read_abaqus(path)
    dim, owner = max(block.dim for block in mesh.cells), []
    names = [name for name in mesh.cell_sets if fnmatch(name, settings.sets)]
    for number, block in enumerate(mesh.cells):
        member = np.zeros((len(names), len(block.data)), dtype=np.int64)
        for row, name in zip(member, names):
            row[[*np.asarray(mesh.cell_sets[name][number], dtype=np.int64)]] = 1
        if block.dim == dim and (member.sum(axis=0) != 1).any():
            bad = int((member.sum(axis=0) != 1).argmax())
            sets = [name for row, name in zip(member, names) if row[bad]]
            raise InputError(f"{path}: an element is in the sets {sets}, not in one; name grains by sets = 'GRAIN*'")
        owner += [member.argmax(axis=0)] * (block.dim == dim)
    return grains_of_mesh(mesh, np.unique(np.concatenate(owner), return_inverse=True)[1], str(path))


READERS = {".ctf": read_ctf, ".ang": read_ang, ".dream3d": read_dream3d}
READERS |= {".tess": read_tess, ".tesr": read_tesr, ".inp": read_inp}
READERS |= dict.fromkeys((".h5", ".hdf5", ".h5ebsd"), read_hdf5)
MAPS: tuple[str, ...] = (".ctf", ".ang", ".dream3d", ".h5", ".hdf5", ".h5ebsd")
TAKEN_BY = dict.fromkeys(("threshold", "smallest", "phases", "spacing", "periodic"), MAPS)
TAKEN_BY |= {"symmetry": (*MAPS, ".tess", ".tesr"), "degrees": MAPS[:3], "sets": (".inp",)}
"""Suffixes of the files that a key is for."""
