"""Where graphs to predict come from: a store, or a file of structures that becomes one."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, StoreWriter, open_store
from hydragnn.datasets.manifest import part_name, read_manifest, write_manifest
from hydragnn.ensemble.prediction.claims import unique_name
from hydragnn.ensemble.prediction.frames import FRAMES, blocks_of, frames_of
from hydragnn.ensemble.structures import Structures, graphs_from_atoms
from hydragnn.errors import InputError
from hydragnn.files import digest, read_json, write_json
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import concatenate


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """Graphs in a store, their numbers in the output, and why the missing ones could not be built."""

    store: GraphStore
    numbers: Int[NDArray[np.int64], " graphs"]
    failures: dict[int, str]


def is_store(path: Path) -> bool:
    """Return True where the path is a store; InputError where it is nothing at all."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    return path.suffix in (".h5", ".bp") or (path / "manifest.json").is_file()


def store_source(path: Path) -> Source:
    """The graphs of a store as they are."""
    store = open_store(path)
    return Source(store=store, numbers=np.arange(len(store)), failures={})


def file_digest(path: Path) -> str:
    """What a file of structures holds, as a hash; InputError where it is no file."""
    if not path.is_file():
        raise InputError(f"{path} is neither a store nor a file of structures; give one of them")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Building:
    """Graphs made from a file of structures, block by block, in any order, by any number of ranks."""

    def __init__(self, path: Path, rule: Structures, scratch: Path) -> None:
        """``scratch`` keeps the graphs."""
        self.path, self.rule, self.scratch = path, rule, scratch
        self.blocks = blocks_of(path)

    @property
    def finished(self) -> bool:
        """Return True where all graphs are one store."""
        return (self.scratch / "graphs.json").is_file()

    def has(self, number: int) -> bool:
        """Return True where a block is built."""
        return (self._folder(number) / "notes.json").is_file()

    def build(self, number: int) -> None:
        """Build a block; whoever is first gives it its name."""
        own = self.scratch / f".block-{unique_name()}"
        rmtree(own, ignore_errors=True)
        write_json(own / "notes.json", self._write(self.blocks[number], own / "graphs.h5"))
        try:
            own.rename(self._folder(number))
        except OSError:
            rmtree(own, ignore_errors=True)
            if not self.has(number):
                raise

    def _write(self, block: tuple[int, int, int], out: Path) -> dict[str, Any]:
        """Write the graphs of a block, some at a time; gives their numbers and the failures."""
        first, numbers, failures = block[0], list[int](), dict[str, str]()
        frames = frames_of(self.path, block)
        fields, attributes = [ATOMIC_NUMBERS_FIELD, *self.rule.fields], {"cutoff": self.rule.cutoff}
        out.parent.mkdir(parents=True)
        writer = StoreWriter(out, fields, dim=3, attributes=attributes)
        try:
            while some := list(islice(frames, FRAMES)):
                graphs, failed = graphs_from_atoms(some, self.rule, first)
                if graphs:
                    writer.write(concatenate([graph for _, graph in graphs]))
                numbers += [number for number, _ in graphs]
                failures |= {str(number): reason for number, reason in failed.items()}
                first += len(some)
            if numbers:
                writer.close()
        except InputError as error:
            return {"error": str(error)}
        finally:
            if not numbers:
                writer.abort()
        return {"numbers": numbers, "failures": failures}

    def join(self) -> None:
        """Make one store of all blocks; says in its notes where that is impossible."""
        notes = [read_json(self._folder(number) / "notes.json") for number in range(len(self.blocks))]
        error = next((note["error"] for note in notes if "error" in note), "")
        failures = {number: reason for note in notes for number, reason in note.get("failures", {}).items()}
        if not error and not any(note["numbers"] for note in notes):
            reason = next(iter(failures.values()), "the file is empty")
            error = f"no structure of {self.path} can be turned into a graph: {reason}"
        if not error:
            self._join_stores([number for number, note in enumerate(notes) if note["numbers"]])
        numbers = [number for note in notes for number in note.get("numbers", ())]
        write_json(self.scratch / "graphs.json", {"error": error, "numbers": numbers, "failures": failures})

    def _join_stores(self, blocks: Sequence[int]) -> None:
        """A store whose parts are links to those of all blocks, which stay where they are."""
        manifests = [read_manifest(self._folder(number) / "graphs.h5") for number in blocks]
        whole = self.scratch / "graphs.h5"
        whole.mkdir(exist_ok=True)
        parts = []
        for number, manifest in zip(blocks, manifests):
            (part,) = manifest.parts  # a block has one writer
            name = part_name(number, manifest.backend)
            with suppress(FileExistsError):  # made by a rank that was thought dead
                (whole / name).symlink_to(f"../{self._folder(number).name}/graphs.h5/{part.name}")
            parts.append(replace(part, name=name, files={name: part.files[part.name]}))
        together = digest([manifest.fingerprint for manifest in manifests])
        write_manifest(whole, replace(manifests[0], parts=parts, fingerprint=together))

    def source(self) -> Source:
        """The graphs; InputError where there are none."""
        summary = read_json(self.scratch / "graphs.json")
        if summary["error"]:
            raise InputError(summary["error"])
        return Source(
            store=open_store(self.scratch / "graphs.h5"),
            numbers=np.array(summary["numbers"], dtype=np.int64),
            failures={int(number): reason for number, reason in summary["failures"].items()},
        )

    def _folder(self, number: int) -> Path:
        return self.scratch / f"block-{number:05d}"
