"""Sources of graphs: a store, or files that become one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, read_sealed, write_sealed
from hydragnn.datasets import GraphStore, StoreWriter, open_store
from hydragnn.datasets.formats.engine import part_name
from hydragnn.datasets.manifest import read_manifest, write_manifest
from hydragnn.datasets.part_texts import texts_path
from hydragnn.datasets.sources.base import groups_of_makers
from hydragnn.distributed.launch import unique_name
from hydragnn.ensemble.prediction.rules import Block, Rule, digest_of
from hydragnn.ensemble.reading.structures import Unbuilt, made_graphs
from hydragnn.graphs.joining import concatenate


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """Graphs in a store, their output numbers, and failures of others."""

    store: GraphStore
    numbers: Int[np.ndarray, " graphs"] | None
    """None where they are those in the store."""
    failures: dict[int, Unbuilt]


class Building:
    """Graphs made from files, block by block, by any number of ranks."""

    def __init__(self, rules: Sequence[Rule], scratch: Path, digest: str) -> None:
        """Take a folder ``scratch`` for the graphs."""
        self.rules, self.scratch, self.digest = rules, scratch, digest
        self.whole = scratch / "graphs.h5"
        self.blocks = [(place, block) for place, rule in enumerate(rules) for block in rule.blocks()]
        self.name = ", ".join(rule.name for rule in rules)

    @property
    def finished(self) -> bool:
        """Return True where all graphs are one store."""
        return (self.scratch / "graphs.json").is_file()

    def has(self, number: int) -> bool:
        """Return True where a block is built."""
        return (self._folder(number) / "notes.json").is_file()

    def there(self) -> set[int]:
        """Return the blocks that are built, by one look at the folder."""
        names = {entry.name for entry in os.scandir(self.whole)} if self.whole.exists() else set()
        return {number for number in range(len(self.blocks)) if self._folder(number).name in names}

    def build(self, number: int) -> None:
        """Build a block; the first rank gives it its name."""
        own = self.scratch / f".block-{unique_name()}"
        rmtree(own, ignore_errors=True)
        write_sealed(own / "notes.json", self._write(*self.blocks[number], own / "graphs.h5"))
        with self._writing():
            self.whole.mkdir(exist_ok=True)
            try:
                own.rename(self._folder(number))
            except OSError:
                rmtree(own, ignore_errors=True)
                if not self.has(number):
                    raise

    def _write(self, rule: int, block: Block, out: Path) -> dict[str, Any]:
        """Write graphs of a block; return numbers and failures, or an error.

        InputError where they cannot be written: no fault of the files, and no note for a resumed prediction.
        """
        first, numbers, failures = block[0], list[int](), dict[str, Any]()
        with self._writing():
            out.parent.mkdir(parents=True)
        writer: StoreWriter | None = None
        groups = groups_of_makers(self.rules[rule].makers(block))
        try:
            while True:
                try:
                    some = next(groups, None)
                except InputError as error:
                    return {"error": str(error)}
                if some is None:
                    break
                graphs, made, failed = made_graphs(some, first)
                if graphs:
                    batch = concatenate(graphs)
                    fields, attributes = list(batch.fields.values()), self.rules[rule].attributes
                    writer = writer or StoreWriter(out, fields, dim=batch.dim, attributes=attributes)
                    writer.write(batch)
                numbers += made
                failures |= {str(number): asdict(unbuilt) for number, unbuilt in failed.items()}
                first += len(some)
            if writer:
                writer.close()
                writer = None
        finally:
            if writer:
                writer.abort()
        return {"numbers": numbers, "failures": failures, "stop": first}

    def join(self) -> None:
        """Make one store of all blocks."""
        notes = [read_sealed(self._folder(number) / "notes.json") for number in range(len(self.blocks))]
        error = next((note["error"] for note in notes if "error" in note), "")
        if digest_of(self.rules) != self.digest:
            error = f"{self.name} was changed while graphs were made of it; delete {self.scratch} and predict again"
        numbers, failures = list[int](), dict[str, Any]()
        for first, note in zip(self._first_numbers(notes), notes):
            numbers += [first + number for number in note.get("numbers", ())]
            failures |= {str(first + int(number)): one for number, one in note.get("failures", {}).items()}
        if not error and not any(note["numbers"] for note in notes):
            reason = next((unbuilt["reason"] for unbuilt in failures.values()), "there is nothing in it")
            error = f"nothing in {self.name} can be turned into a graph: {reason}"
        if not error:
            self._join_stores([number for number, note in enumerate(notes) if note["numbers"]])
        write_sealed(self.scratch / "graphs.json", {"error": error, "numbers": numbers, "failures": failures})

    def _first_numbers(self, notes: Sequence[Mapping[str, Any]]) -> Iterator[int]:
        """Yield for every block the graphs of all rules before its own."""
        first = stop = rule = 0
        for (own, _), note in zip(self.blocks, notes):
            if own != rule:
                first, rule = first + stop, own
            stop = note.get("stop", 0)
            yield first

    def _join_stores(self, blocks: Sequence[int]) -> None:
        """Make one store of links to the parts of all blocks."""
        manifests = [read_manifest(self._folder(number) / "graphs.h5") for number in blocks]
        for number, manifest in zip(blocks, manifests):
            if set(manifest.fields) != set(manifests[0].fields) or manifest.dim != manifests[0].dim:
                names = [self.rules[self.blocks[one][0]].name for one in (blocks[0], number)]
                raise InputError(f"graphs of {names[0]} and {names[1]} have other fields; predict the files one by one")
        parts, whole = [], self.whole
        for number, manifest in zip(blocks, manifests):
            (part,) = manifest.parts  # a block has one writer
            name = part_name(number, manifest.backend)
            with self._writing(), suppress(FileExistsError):  # made by a rank that was thought dead
                (whole / name).symlink_to(f"{self._folder(number).name}/graphs.h5/{part.name}")
            if part.texts is not None:
                texts = texts_path(whole / part.name)
                with self._writing(), suppress(FileExistsError):
                    texts_path(whole / name).symlink_to(f"{self._folder(number).name}/graphs.h5/{texts.name}")
            parts.append(replace(part, name=name, files={name: part.files[part.name]}))
        together = digest([manifest.fingerprint for manifest in manifests])
        write_manifest(whole, replace(manifests[0], parts=parts, fingerprint=together))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise InputError where the file system fails."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write into {self.scratch}: {error.strerror or error}; free space, then --resume"
            ) from error

    def source(self) -> Source:
        """Return the graphs; InputError where there are none."""
        summary = read_sealed(self.scratch / "graphs.json")
        if summary["error"]:
            raise InputError(summary["error"])
        return Source(
            store=open_store(self.whole),
            numbers=np.array(summary["numbers"], dtype=np.int64),
            failures={int(number): Unbuilt(**unbuilt) for number, unbuilt in summary["failures"].items()},
        )

    def _folder(self, number: int) -> Path:
        return self.whole / f"block-{number:05d}"
