"""Which suffix writes what."""

import os
from collections.abc import Callable
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction.arrays import BpSink, NpzSink
from hydragnn.ensemble.prediction.hdf5 import Hdf5Sink
from hydragnn.ensemble.prediction.sinks import Heading, Sink
from hydragnn.ensemble.prediction.tables import CsvSink, XyzSink
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import length_in_angstrom

FORMATS: dict[str, Callable[[Path, Heading], Sink]] = {
    ".h5": Hdf5Sink,
    ".bp": BpSink,
    ".npz": NpzSink,
    ".csv": CsvSink,
    ".xyz": XyzSink,
}


def sink_for(path: Path, ensemble: Ensemble) -> Sink:
    """The sink that the suffix of ``path`` asks for.

    InputError for a foreign suffix, a file that is there already, or structures of an ensemble that does not read atoms.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"--out {path}: the suffix chooses the format; use one of {', '.join(FORMATS)}")
    if path.suffix == ".xyz" and (
        ensemble.manifest.dim != 3 or ATOMIC_NUMBERS not in {f.name for f in ensemble.inputs}
    ):
        raise InputError(
            f"--out {path}: extended XYZ holds atoms, and this ensemble does not read any; use .h5, .npz or .csv"
        )
    on_edges = [field.name for field in ensemble.fields if field.on == "edge"]
    if path.suffix == ".xyz" and on_edges:
        raise InputError(
            f"--out {path}: extended XYZ has no place for {on_edges[0]}, which lies on edges; use .h5, .npz or .csv"
        )
    length = length_in_angstrom(ensemble.training_attributes) if path.suffix == ".xyz" else 1.0
    heading = Heading(
        length=length,
        targets=ensemble.targets,
        nominal=ensemble.manifest.nominal,
        ensemble=ensemble.digest,
        members=ensemble.names,
        absent=absent_columns(ensemble),
    )
    return FORMATS[path.suffix](path, heading)


def absent_columns(ensemble: Ensemble) -> frozenset[str]:
    """Return the arrays and columns that a file of this ensemble's predictions does not have, since nothing is known of them."""
    columns = {f"fields/{one.name}/{quantity}" for one in ensemble.targets for quantity in ensemble.absent(one)}
    return frozenset(columns | (set() if ensemble.knows_domain else {"domain", "domain_score"}))


def check_absent(sink: Sink) -> None:
    """InputError where a file that it will write is there; for the rank that begins, since late ones may find what others have written."""
    for final in sink.finals:
        if os.path.lexists(final):  # a broken link is somebody's, too
            raise InputError(f"{final} exists already; choose another --out or delete it")
