"""Formats of prediction files by suffix."""

import os
from collections.abc import Callable
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.places import check_suffix
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction.formats.hdf5 import Hdf5Sink, VirtualSink
from hydragnn.ensemble.prediction.formats.sink import Heading, Sink
from hydragnn.ensemble.prediction.formats.structures import XyzSink
from hydragnn.ensemble.prediction.formats.tables import CsvSink, ParquetSink
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import length_in_angstrom

FORMATS: dict[str, Callable[[Path, Heading, Path], Sink]] = {
    ".h5": Hdf5Sink,
    ".csv": CsvSink,
    ".parquet": ParquetSink,
    ".xyz": XyzSink,
}


def sink_for(path: Path, ensemble: Ensemble, folder: Path, *, keep_parts: bool = False) -> Sink:
    """Return the writer for the suffix of ``path``, with ``folder`` for unfinished files.

    With ``keep_parts`` an HDF5 file is a view of the part files. InputError for a foreign suffix, or structures of an
    ensemble that does not read atoms.
    """
    check_suffix(path)
    if path.suffix == ".xyz" and (
        ensemble.manifest.dim != 3 or ATOMIC_NUMBERS not in {f.name for f in ensemble.inputs}
    ):
        raise InputError(
            f"--out {path}: extended XYZ holds atoms, and this ensemble does not read any; use .h5 or .csv"
        )
    on_edges = [field.name for field in ensemble.fields if field.on == "edge"]
    if path.suffix == ".xyz" and on_edges:
        raise InputError(
            f"--out {path}: extended XYZ has no place for {on_edges[0]}, which lies on edges; use .h5 or .csv"
        )
    if keep_parts and path.suffix != ".h5":
        raise InputError(f"--out {path}: only .h5 can be a view of part files; leave --parts out, or write .h5")
    absent = {f"fields/{one.name}/{quantity}" for one in ensemble.targets for quantity in ensemble.absent(one)}
    absent |= set() if ensemble.knows_domain else {"domain", "domain_score"}
    absent |= set() if ensemble.manifest.domain.of_nodes else {"node_domain_score"}
    length = length_in_angstrom(ensemble.training_attributes) if path.suffix == ".xyz" else 1.0
    heading = Heading(
        length=length,
        targets=ensemble.targets,
        nominal=ensemble.manifest.nominal,
        ensemble=ensemble.digest,
        members=ensemble.names,
        absent=frozenset(absent),
    )
    return (VirtualSink if keep_parts else FORMATS[path.suffix])(path, heading, folder)


def check_absent(sink: Sink) -> None:
    """Raise InputError where a file that it will write exists."""
    for final in sink.temporaries.values():
        if os.path.lexists(final):  # a broken link is somebody's, too
            raise InputError(f"{final} exists already; choose another --out or delete it")
