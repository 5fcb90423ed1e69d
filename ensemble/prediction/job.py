"""A prediction's settings, and its model and graphs, opened once."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.places import check_suffix, is_store
from hydragnn.datasets import BatchSettings, GraphStore, open_store
from hydragnn.distributed.graph_ranks import GraphGroup
from hydragnn.distributed.group import Group
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction.formats.hdf5 import Hdf5Sink, VirtualSink
from hydragnn.ensemble.prediction.formats.sink import Heading, Sink
from hydragnn.ensemble.prediction.formats.structures import XyzSink
from hydragnn.ensemble.prediction.formats.tables import CsvSink, ParquetSink
from hydragnn.ensemble.prediction.parts import Parts
from hydragnn.ensemble.prediction.rules import rules_for
from hydragnn.ensemble.prediction.sources import Graphs, Source
from hydragnn.ensemble.reading.structures import reads_atoms
from hydragnn.graphs.units import length_in_angstrom
from hydragnn.record import read_record

FORMATS: dict[str, type[Sink]] = {".h5": Hdf5Sink, ".csv": CsvSink, ".parquet": ParquetSink, ".xyz": XyzSink}

LONGEST_NAME = 200
"""Bytes in the name of a file of predictions; file systems take 255 with what is added to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionJob:
    """A prediction: which model, of what, to where."""

    model: Path
    sources: tuple[Path, ...]
    """Sources in the order of their graphs."""
    out: Path
    resume: bool = False
    batch: BatchSettings | None = None
    """The budget of a batch; None chooses it by the graphs."""
    branch: str = ""
    """Branch of a run that predicts; empty where there are none."""
    keep_parts: bool = False
    """True where an HDF5 file is a view of part files, which stay."""
    graph_ranks: int = 1
    """Ranks that share every batch."""

    def __post_init__(self) -> None:
        """Raise InputError where ``out`` can name no file."""
        if not self.out.name:
            raise InputError(f"--out {self.out}: name a file, such as predictions.h5")
        if (size := len(os.fsencode(self.out.name))) > LONGEST_NAME:
            problem = f"--out: a name of {size} bytes is too long, since files beside it have longer ones"
            raise InputError(f"{problem}; take at most {LONGEST_NAME}")

    def sink(self, ensemble: Ensemble) -> Sink:
        """Return the writer for the suffix of ``out``.

        With ``keep_parts`` an HDF5 file is a view of the part files. InputError for a foreign suffix, or structures of an
        ensemble that does not read atoms.
        """
        out = self.out
        check_suffix(out)
        if out.suffix == ".xyz" and not reads_atoms(ensemble.manifest):
            raise InputError(
                f"--out {out}: extended XYZ holds atoms, and this ensemble does not read any; use .h5 or .csv"
            )
        on_edges = [field.name for field in ensemble.fields if field.on == "edge"]
        if out.suffix == ".xyz" and on_edges:
            raise InputError(
                f"--out {out}: extended XYZ has no place for {on_edges[0]}, which lies on edges; use .h5 or .csv"
            )
        if self.keep_parts and out.suffix != ".h5":
            raise InputError(f"--out {out}: only .h5 can be a view of part files; leave --parts out, or write .h5")
        absent = {f"fields/{one.name}/{quantity}" for one in ensemble.targets for quantity in ensemble.absent(one)}
        absent |= set() if ensemble.knows_domain else {"domain", "domain_score"}
        absent |= set() if ensemble.manifest.domain.of_nodes else {"node_domain_score"}
        heading = Heading(
            length=length_in_angstrom(ensemble.training_attributes) if out.suffix == ".xyz" else 1.0,
            targets=ensemble.targets,
            nominal=ensemble.manifest.nominal,
            ensemble=ensemble.digest,
            members=ensemble.names,
            absent=frozenset(absent),
        )
        return (VirtualSink if self.keep_parts else FORMATS[out.suffix])(out, heading, self.parts.folder)

    @property
    def parts(self) -> Parts:
        """Return the folder of finished work."""
        return Parts(self.out.with_name(self.out.name + ".parts"))

    @property
    def plan(self) -> Path:
        """Return the path of the plan beside the output."""
        return self.out.with_name(self.out.name + ".plan.json")


class Inputs:
    """Model and graphs of a job, opened once in this process."""

    def __init__(self, job: PredictionJob, sharing: GraphGroup | None = None, processes: int = 1) -> None:
        self.job, self.sharing, self.processes = job, sharing, processes

    @cached_property
    def ensemble(self) -> Ensemble:
        """Return the ensemble; InputError without memory for so many processes."""
        loaded = Ensemble.load(self.job.model, branch=self.job.branch, processes=self.processes)
        return loaded if self.sharing is None else loaded.shared(self.sharing)

    @cached_property
    def store(self) -> GraphStore:
        """Return the store that the job names."""
        return open_store(self.job.sources)

    def graphs(self, group: Group, check: Callable[[], None], source: str, *, fresh: bool) -> Source:
        """Return the graphs of a store, or graphs that all ranks make.

        InputError where no graph can be built, or where it is not the ``source`` that rank 0 saw, by its digest; a ``fresh`` prediction by one process then leaves nothing behind.
        """
        job = self.job
        if is_store(job.sources[0]):
            check_same(job.sources[0], source, self.store.fingerprint)
            return Source(store=self.store, numbers=None, failures={})
        try:
            rules = rules_for(job.sources, self.ensemble, keep=job.out.suffix == ".xyz")
            building = Graphs(rules, job.parts.folder, source)
            building.together(group, check)
            return building.source()
        except InputError:
            if fresh and group.size == 1:
                job.parts.delete()
            raise


def check_same(path: Path, expected: str, now: str) -> None:
    """Raise InputError where rank 0 saw another digest at ``path``."""
    if now != expected:
        raise InputError(
            f"{path} was replaced while the prediction began; nothing was predicted of it here: start it again"
        )


def branch_for(model: Path, sources: Sequence[Path], branch: str = "") -> str:
    """Return the named branch, else the one trained on ``sources``.

    Empty where the model is no run with branches. InputError where only a name could decide.
    """
    path = model / "record.json"
    branches_of_run = read_record(model).branches if path.is_file() and not (model / "ensemble.json").is_file() else {}
    if branch or not branches_of_run:
        return branch
    print_of = open_store(sources).fingerprint if is_store(sources[0]) else ""
    matches = [name for name, entry in branches_of_run.items() if print_of == entry.data_hash]
    if len(matches) == 1:
        return matches[0]
    raise InputError(
        f"{model} has the branches {', '.join(branches_of_run)}, and {sources[0]} is the store of none of them alone; say which is to "
        "predict: --branch NAME (branch=)"
    )
