"""Sources of graphs: a store, or files that become one."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.base.files import file_errors, read_sealed, write_sealed
from hydragnn.base.places import MANIFEST
from hydragnn.datasets import GraphStore, StoreWriter, finish_store, open_store
from hydragnn.datasets.formats.engine import part_name
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.sources.base import groups_of_makers
from hydragnn.distributed.building import Building
from hydragnn.distributed.launch import unique_name
from hydragnn.ensemble.prediction.rules import Rule, digest_of
from hydragnn.ensemble.reading.structures import Unbuilt, made_graphs
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.problems import graph_problems
from hydragnn.graphs.units import CLOSE_NUCLEI


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """Graphs in a store, their output numbers, and failures of others."""

    store: GraphStore
    numbers: Int[np.ndarray, " graphs"] | None
    """None where they are those in the store."""
    failures: dict[int, Unbuilt]


class Graphs(Building):
    """Graphs of files to predict, and failures of others.

    Blocks that are made stay for a resumed prediction.
    """

    seconds = 10.0

    def __init__(self, rules: Sequence[Rule], scratch: Path, digest: str) -> None:
        """Take a folder ``scratch`` for the graphs."""
        self.rules, self.scratch, self.digest = rules, scratch, digest
        self.whole = scratch / "graphs.h5"
        self.ranges = [(place, block) for place, rule in enumerate(rules) for block in rule.blocks()]
        self.blocks = len(self.ranges)
        self.name = ", ".join(rule.name for rule in rules)

    @property
    def joined(self) -> bool:
        """Return True where all graphs are one store, or an error is noted."""
        return (self.scratch / "graphs.json").is_file()

    def missing(self) -> list[int]:
        """Return the blocks that are not made, by one look at the folder."""
        names = {path.name for path in self.scratch.glob("block-*.json")}
        return [] if self.joined else [n for n in range(self.blocks) if self._notes_of(n).name not in names]

    def _notes_of(self, number: int) -> Path:
        return self.scratch / f"block-{number:05d}.json"

    def build(self, number: int) -> bool:
        """Make a block, a part of the store; every rank makes its bits."""
        if self.joined or self._notes_of(number).is_file():
            return True
        own = self.scratch / f".block-{unique_name()}.h5"
        rmtree(own, ignore_errors=True)
        notes = self._write(number, own)
        with file_errors(f"cannot write into {self.scratch}", "free space, then --resume"):
            self.whole.mkdir(exist_ok=True)
            for file in own.iterdir() if own.exists() else ():
                file.replace(self.whole / file.name)
            rmtree(own, ignore_errors=True)
        write_sealed(self._notes_of(number), notes)
        return True

    def _write(self, number: int, out: Path) -> dict[str, Any]:
        """Write graphs of a block; return numbers and failures, or an error.

        InputError where they cannot be written: no fault of the files, and no note for a resumed prediction.
        """
        rule, block = self.rules[self.ranges[number][0]], self.ranges[number][1]
        first, numbers, failures = block[0], list[int](), dict[str, Any]()
        # near nuclei are predicted as in memory; the training domain says what they are
        attributes = {**rule.attributes, CLOSE_NUCLEI: True}
        writer: StoreWriter | None = None
        groups = groups_of_makers(rule.makers(block))
        with ExitStack() as parts:
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
                    facts: dict[str, Any] = {"dim": batch.dim, "attributes": attributes, "part": number}
                    writer = writer or parts.enter_context(StoreWriter(out, [*batch.fields.values()], **facts))
                    try:
                        writer.write(batch)
                    except InputError:
                        wrong = graph_problems(batch, made, cutoff=cutoff_of(attributes))
                        if not wrong:
                            raise
                        for place, reason in wrong.items():
                            texts = {key: values[place] for key, values in batch.texts.items()}
                            failed[made[place]] = Unbuilt(reason=reason, texts=texts)
                        fine = [place for place in range(len(made)) if place not in wrong]
                        made = [made[place] for place in fine]
                        if fine:
                            writer.write(batch.select(fine))
                numbers += made
                failures |= {str(graph): asdict(unbuilt) for graph, unbuilt in failed.items()}
                first += len(some)
        return {"numbers": numbers, "failures": failures, "stop": first}

    def join(self) -> None:
        """Make one store of all blocks."""
        notes = [read_sealed(self._notes_of(number)) for number in range(self.blocks)]
        error = next((note["error"] for note in notes if "error" in note), "")
        if digest_of(self.rules) != self.digest:
            error = f"{self.name} was changed while graphs were made of it; delete {self.scratch} and predict again"
        numbers, failures = list[int](), dict[str, Any]()
        first = stop = rule = 0  # graphs of all rules before that of the block
        for (own, _), note in zip(self.ranges, notes):
            if own != rule:
                first, rule = first + stop, own
            stop = note.get("stop", 0)
            numbers += [first + number for number in note.get("numbers", ())]
            failures |= {str(first + int(number)): one for number, one in note.get("failures", {}).items()}
        if not error and not any(note["numbers"] for note in notes):
            reason = next((unbuilt["reason"] for unbuilt in failures.values()), "there is nothing in it")
            error = f"nothing in {self.name} can be turned into a graph: {reason}"
        if not error and not (self.whole / MANIFEST).is_file():
            filled = [number for number, note in enumerate(notes) if note["numbers"]]
            tables = {number: read_sealed(self.whole / f"{part_name(number, 'hdf5')}.json") for number in filled}
            kinds = {
                one: [own["dim"], {field["name"]: field for field in own["fields"]}] for one, own in tables.items()
            }
            for number, kind in kinds.items():
                if kind != kinds[filled[0]]:
                    names = [self.rules[self.ranges[one][0]].name for one in (filled[0], number)]
                    raise InputError(
                        f"graphs of {names[0]} and {names[1]} have other fields; predict the files one by one"
                    )
            finish_store(self.whole, filled, alike=())
        write_sealed(self.scratch / "graphs.json", {"error": error, "numbers": numbers, "failures": failures})

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
