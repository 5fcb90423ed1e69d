"""Where graphs to predict come from: a store, or a file of structures that becomes one."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from ase import Atoms
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, StoreWriter, open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.structures import Structures, graphs_from_atoms
from hydragnn.errors import InputError
from hydragnn.files import read_json, write_json
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import concatenate

FRAMES = 256
"""Structures that are turned into graphs at a time."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """Graphs in a store, their numbers in the output, and why the missing ones could not be built."""

    store: GraphStore
    numbers: Int[NDArray[np.int64], " graphs"]
    failures: dict[int, str]
    digest: str


def opened(path: Path, ensemble: Ensemble, scratch: Path) -> Source:
    """The graphs of a store as they are, or of a file of structures, built into ``scratch`` unless they are there already.

    InputError where the path is neither, or where the ensemble does not read atoms.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    if path.suffix in (".h5", ".bp") or (path / "manifest.json").is_file():
        store = open_store(path)
        return Source(store=store, numbers=np.arange(len(store)), failures={}, digest=store.fingerprint)
    rule = ensemble.structures
    digest = _file_digest(path)
    notes, graphs = scratch / "graphs.json", scratch / "graphs.h5"
    if not notes.is_file():
        write_json(notes, {"digest": digest, **_build(path, rule, graphs)})
    kept = read_json(notes)
    if kept["digest"] != digest:
        raise InputError(
            f"{path} has changed since the prediction in {scratch} began; delete the folder and start again"
        )
    return Source(
        store=open_store(graphs),
        numbers=np.array(kept["numbers"], dtype=np.int64),
        failures={int(number): reason for number, reason in kept["failures"].items()},
        digest=digest,
    )


def _build(path: Path, rule: Structures, out: Path) -> dict[str, object]:
    """Write the graphs of all structures of a file, some at a time; gives their numbers and the failures."""
    numbers: list[int] = []
    failures: dict[str, str] = {}
    frames = _frames(path)
    first = 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with StoreWriter(out, [ATOMIC_NUMBERS_FIELD, *rule.fields], dim=3, attributes={"cutoff": rule.cutoff}) as writer:
        while some := list(islice(frames, FRAMES)):
            graphs, failed = graphs_from_atoms(some, rule)
            if graphs:
                writer.write(concatenate([graph for _, graph in graphs]))
            numbers += [first + number for number, _ in graphs]
            failures |= {str(first + number): reason for number, reason in failed.items()}
            first += len(some)
        if not numbers:
            reason = next(iter(failures.values()), "the file is empty")
            raise InputError(f"no structure of {path} can be turned into a graph: {reason}")
    return {"numbers": numbers, "failures": failures}


def _frames(path: Path) -> Iterator[Atoms]:
    """The structures of a file one by one; InputError where ASE cannot read it."""
    from ase.io import iread
    from ase.io.formats import UnknownFileTypeError

    try:
        yield from iread(path, index=":")
    except (UnknownFileTypeError, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        raise InputError(f"{path} is neither a store nor a file that ASE can read ({error}); check it") from error


def _file_digest(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path} is neither a store nor a file of structures; give one of them")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
