"""Finished work on disk, so that an interrupted prediction continues where it was: a folder, and in it a file of arrays per process that only grows, with an index.

An entry of the index is written after what it tells of. Nothing is flushed to disk, which would cost more than predicting: every
entry has a digest of itself and of its arrays, so that what a power cut tore, or a disk changed, counts as not there.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import allow_many_files, lock_file, open_regular, read_json, write_json
from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.plan import Unit
from hydragnn.ensemble.prediction.entries import ALL, END, ENTRY, INDEX, WORK, Log, checks, digest_of, own_name
from hydragnn.ensemble.prediction.sinks import Column, Piece, load_arrays, save_arrays
from hydragnn.models import distribution_from_arrays

LOCK = "lock"
WHOLE, OUTLINE = ".whole", ".outline"
"""Suffixes of a file of predictions in the making and of what ranks know of it."""


class Parts:
    """A folder with finished work and the identity of the prediction that it belongs to."""

    def __init__(self, folder: Path) -> None:
        """The folder may not exist yet."""
        self.folder = folder
        self.records = Records(folder)

    @contextmanager
    def entered(self, lock: ExitStack, *, resume: bool) -> Iterator[bool]:
        """Prepare the prediction inside, told whether it is new; bad input leaves no folder behind that was not there before.

        The folder is this prediction's alone until ``lock`` is closed. InputError where another one works there, or where an
        earlier one was interrupted and nobody asked to resume it.
        """
        there = self.folder.exists()
        self._check_own()
        self._take(lock)
        if there and not resume:
            raise InputError(
                f"{self.folder} holds an interrupted prediction; add --resume to continue it, or delete the folder"
            )
        try:
            yield not there
        except InputError:
            if not there:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _take(self, lock: ExitStack) -> None:
        """Lock the folder, where its file system knows locks; InputError where another prediction has."""
        with suppress(OSError):  # who writes there says what is wrong
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = lock_file(self.folder / LOCK)
            if descriptor is None:
                raise InputError(f"another prediction works in {self.folder}; wait for it, or choose another --out")
            lock.callback(os.close, descriptor)

    def _check_own(self) -> None:
        """Raise InputError where the folder holds something else: it is removed once the prediction is complete."""
        if not self.folder.exists() or (self.folder / "identity.json").is_file():
            return
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else ["no folder"]
        foreign = [name for name in names if not name.startswith((".identity.json.", "ranks-", LOCK))]
        if foreign:
            raise InputError(
                f"{self.folder} holds {foreign[0]}, which belongs to no prediction; choose another --out, or move it away"
            )

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Say what the parts belong to; InputError where they belong to another prediction."""
        path = self.folder / "identity.json"
        if not path.is_file():
            write_json(path, dict(identity))
            return
        before = read_json(path)
        known = before if isinstance(before, dict) else {}
        other = [name for name, value in identity.items() if known.get(name) != value]
        if other:
            raise InputError(
                f"{self.folder} was begun with another {' and another '.join(other)}; "
                "repeat that command, delete the folder, or choose another --out"
            )

    def has(self, unit: Unit) -> bool:
        """Return True where the unit is finished, by itself or with all others of its chunk; what a power cut left torn is not."""
        return self.piece(unit.chunk) is not None or self.outcome(unit) is not None

    def forget_ranks(self) -> None:
        """Remove the meeting places of those who worked here before, and the files that they had laid out."""
        for place in self.folder.glob("ranks-*"):
            shutil.rmtree(place, ignore_errors=True)
        for suffix in (WHOLE, OUTLINE):
            for path in self.folder.glob(f"*{suffix}"):
                path.unlink(missing_ok=True)

    def keep(self, unit: Unit, outcome: Outcome, seconds: float) -> None:
        """Keep the outcome of a unit, which took so many ``seconds``."""
        arrays: dict[str, Column] = {
            f"{prediction.kind}/{name}/{tensor}": values
            for name, prediction in outcome.predictions.items()
            for tensor, values in prediction.to_arrays().items()
        }
        arrays |= {"reasons": list(outcome.reasons), "distances": outcome.distances}
        self.records.append(unit.chunk, unit.member, arrays, [seconds])

    def keep_piece(
        self, chunk: int, counts: Mapping[str, int], piece: Piece, seconds: Sequence[float], sizes: Sequence[int] = ()
    ) -> None:
        """Keep what a chunk becomes in the file, with counts of its graphs and ``sizes``; ``seconds`` of the units that were predicted for it."""
        arrays: dict[str, Column] = {f"count/{name}": np.array(count) for name, count in counts.items()}
        arrays |= {f"piece/{name}": column for name, column in piece.items()}
        self.records.append(chunk, ALL, arrays, seconds, sizes)

    def piece(self, chunk: int) -> tuple[dict[str, int], Piece] | None:
        """Counts of a chunk's graphs and what they become in the file; None where they are not there or torn."""
        arrays = self.records.read(chunk, ALL)
        if arrays is None:
            return None
        counts = {
            name.removeprefix("count/"): int(value) for name, value in arrays.items() if name.startswith("count/")
        }
        return counts, _piece_of(arrays)

    def piece_at(self, work: str, entry: Any) -> Piece | None:
        """What a chunk becomes in the file, by its entry and the name of the file that it tells of; None where that is torn."""
        arrays = self.records.content(self.folder / work, entry)
        return None if arrays is None else _piece_of(arrays)

    def outcome(self, unit: Unit) -> Outcome | None:
        """The outcome of a unit, bit for bit; None where it is not there by itself, or torn."""
        arrays = self.records.read(unit.chunk, unit.member)
        if arrays is None:
            return None
        reasons, distances = tuple(arrays.pop("reasons")), arrays.pop("distances")
        tensors_of: dict[tuple[str, str], dict[str, NDArray[Any]]] = {}
        for path, values in arrays.items():
            kind, name, tensor = path.split("/")
            tensors_of.setdefault((kind, name), {})[tensor] = values
        predictions = {name: distribution_from_arrays(kind, tensors) for (kind, name), tensors in tensors_of.items()}
        return Outcome(predictions=predictions, reasons=reasons, distances=distances)

    def delete(self) -> None:
        """Remove the folder once everything is in the file; again where a rank that comes late has written there meanwhile."""
        self.records.close()
        for _ in range(50):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
            time.sleep(0.02)


def _piece_of(arrays: Mapping[str, Column]) -> dict[str, Column]:
    return {name.removeprefix("piece/"): values for name, values in arrays.items() if name.startswith("piece/")}


OPEN = 256
"""Files that are kept open for reading."""

LOOKED_AT = 256
"""Files whose size is asked for in one look, at most: the others have their turn in the next ones."""


class Records:
    """What all processes that ever worked for a prediction have finished, as far as this one has looked."""

    def __init__(self, folder: Path) -> None:
        """The folder may not exist yet."""
        self.folder = folder
        self._logs: dict[str, Log] = {}
        self._turn = self._files = 0
        self._own: tuple[int, int] | None = None
        self._keys: NDArray[np.int64] | None = None
        self._open: dict[Path, int] = {}

    def append(
        self, chunk: int, member: int, arrays: Piece, seconds: Sequence[float], sizes: Sequence[int] = ()
    ) -> None:
        """Keep what a member, or ``ALL``, says about a chunk, and what units took that were done for it; InputError where there is no space."""
        work, index = self._own = self._own or self._begun()
        content = save_arrays(arrays)
        offset = os.lseek(work, 0, os.SEEK_END)
        entry = np.zeros(1, dtype=ENTRY)
        entry["chunk"], entry["member"], entry["offset"], entry["length"] = chunk, member, offset, len(content)
        entry["units"], entry["seconds"], entry["largest"] = len(seconds), sum(seconds), max(seconds, default=0.0)
        entry["sizes"][0, : len(sizes)] = sizes
        entry["check"] = checks(entry)
        entry["digest"] = digest_of(entry[0], content)
        self._write(work, content)
        self._write(index, entry.tobytes())

    def end(self) -> None:
        """Tell that this process adds no more to its file; what it appends later goes into another one."""
        if self._own is None:
            return
        entry = np.zeros(1, dtype=ENTRY)
        entry["chunk"] = END
        entry["check"] = checks(entry)
        entry["digest"] = digest_of(entry[0], b"")
        self._write(self._own[1], entry.tobytes())
        self._close()

    def _begun(self) -> tuple[int, int]:
        name = own_name(first=not self._files)
        self._files += 1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return open_regular(self.folder / f"{name}{WORK}", flags), open_regular(
                self.folder / f"{name}{INDEX}", flags
            )
        except OSError as error:
            raise self._refusal(error) from error

    def _write(self, file: int, content: bytes) -> None:
        try:
            if os.write(file, content) < len(content):
                os.write(file, content[:1])  # a full disk says so when it has taken nothing
                raise OSError("the disk took only a part")
        except OSError as error:
            self._close()  # the rest of a torn file is never looked at
            raise self._refusal(error) from error

    def _close(self) -> None:
        for file in self._own or ():
            os.close(file)
        self._own = None

    def _refusal(self, error: OSError) -> InputError:
        return InputError(f"cannot write into {self.folder}: {error.strerror or error}; free space, then --resume")

    def listed(self) -> list[str]:
        """The indices that are there, in order."""
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(INDEX))
        except FileNotFoundError:
            return []

    def look(self, *, all_files: bool = False) -> None:
        """See what was finished meanwhile: a look into the folder, and into files that may have grown."""
        names = self.listed()
        growing = [name for name in names if name not in self._logs or not self._logs[name].ended]
        count = len(growing) if all_files else min(LOOKED_AT, len(growing))
        self.look_at(growing[place % len(growing)] for place in range(self._turn, self._turn + count))
        self._turn += count

    def learn(
        self,
        names: Sequence[str],
        read: Sequence[int],
        ended: Sequence[bool],
        counts: Sequence[int],
        every: NDArray[Any],
    ) -> None:
        """Know what another process has seen in these indices, of which it read so many bytes with so many of the entries each."""
        stop = 0
        for name, bytes_read, has_ended, count in zip(names, read, ended, counts):
            start, stop, log = stop, stop + count, self.log(name)
            if bytes_read > log.read:
                log.entries, log.read, log.ended = every[start:stop], bytes_read, has_ended
        self._keys = None

    def look_at(self, names: Iterable[str]) -> None:
        """See what was finished meanwhile in these indices; entries that are damaged count as not there."""
        folder = str(self.folder)
        grown = [
            (log, content) for log, content in ((log, log.growth(folder)) for log in map(self.log, names)) if content
        ]
        if not grown:
            return
        every = np.frombuffer(b"".join(content for _, content in grown), dtype=ENTRY)
        sound = every["check"] == checks(every)
        every_is_sound, ends, stop = bool(sound.all()), every["chunk"] == END, 0
        for log, content in grown:
            start, stop = stop, stop + len(content) // ENTRY.itemsize
            kept = slice(start, stop) if every_is_sound else start + np.flatnonzero(sound[start:stop])
            log.read += len(content)
            log.ended = bool(ends[kept][-1:].any())
            new = every[kept][:-1] if log.ended else every[kept]
            log.entries = np.concatenate([log.entries, new]) if len(log.entries) else new
        self._keys = None

    def indices_of(self, chunks: Int[np.ndarray, " chunks"]) -> list[list[str]]:
        """For every one of these chunks, in rising order, the names of the indices that tell of it."""
        names, numbers, every = list(self._logs), self._numbers(), self.entries()
        places = np.minimum(np.searchsorted(chunks, every["chunk"]), max(0, len(chunks) - 1))
        asked = chunks[places] == every["chunk"] if len(chunks) else np.zeros(0, dtype=np.bool_)
        found: list[list[str]] = [[] for _ in chunks]
        for pair in np.unique(places[asked] * len(names) + numbers[asked]).tolist():
            found[pair // len(names)].append(names[pair % len(names)])
        return found

    def _numbers(self) -> Int[np.ndarray, " entries"]:
        """For every entry that is known the number of its index among all."""
        return np.repeat(np.arange(len(self._logs)), [len(log.entries) for log in self._logs.values()])

    def log(self, name: str) -> Log:
        """What is known of an index."""
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = Log(name=name)
        return log

    def counts(self) -> dict[str, int]:
        """The indices that were read, and how many entries of each."""
        return {name: len(log.entries) for name, log in self._logs.items()}

    def entries(self, besides: Mapping[str, int] | None = None) -> NDArray[Any]:
        """All entries that are known, index after index; none of those ``besides``."""
        known = [log.entries.tobytes() for name, log in self._logs.items() if name not in (besides or {})]
        return np.frombuffer(bytearray().join(known), dtype=ENTRY)  # numpy joins thousands of such arrays slowly

    def marks(
        self, chunks: int, members: int, only: Mapping[str, int] | None = None
    ) -> Bool[np.ndarray, "chunks members"]:
        """Which units are finished, whole or torn; as far as so many entries of the indices ``only`` say."""
        marks = np.zeros((chunks, members), dtype=np.bool_)
        counts = self.counts() if only is None else only
        for name, count in counts.items():
            entries = self._logs[name].entries[:count] if name in self._logs else np.zeros(0, dtype=ENTRY)
            chunk, member = entries["chunk"], entries["member"]
            fits = (chunk < chunks) & (member >= ALL) & (member < members)
            whole = fits & (member == ALL)
            marks[chunk[whole]] = True
            marks[chunk[fits & ~whole], member[fits & ~whole]] = True
        return marks

    def combined(self, chunks: int) -> Bool[np.ndarray, " chunks"]:
        """The chunks of which all members together have spoken, whole or torn."""
        marks, every = np.zeros(chunks, dtype=np.bool_), self.entries()
        marks[every["chunk"][(every["member"] == ALL) & (every["chunk"] < chunks)]] = True
        return marks

    def read(self, chunk: int, member: int) -> dict[str, Any] | None:
        """What was kept, bit for bit; None where it is not there, or torn."""
        for log, entry in self._candidates(chunk, member):
            content = self.content(self.folder / log.work, entry)
            if content is not None:
                return content
        return None

    def _candidates(self, chunk: int, member: int) -> Iterator[tuple[Log, Any]]:
        if self._keys is None:
            self._sort()
        assert self._keys is not None
        wanted = np.int64((chunk << 20) + member)
        first, last = np.searchsorted(self._keys, [wanted, wanted + 1])
        for place in self._order[first:last].tolist():
            number = int(np.searchsorted(self._stops, place, side="right"))
            log = self._sorted[number]
            yield log, log.entries[place - (self._stops[number - 1] if number else 0)]

    def pieces(self, chunks: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first entry of the piece of every chunk, and the names of the files that they tell of, by number."""
        every = self.entries()
        every["work"] = self._numbers()
        every = every[(every["member"] == ALL) & (every["chunk"] < chunks)]
        first = np.unique(every["chunk"], return_index=True)[1]
        return every[first], np.array([log.work.encode() for log in self._logs.values()], dtype=np.bytes_)

    def _sort(self) -> None:
        self._sorted = list(self._logs.values())
        self._stops: Int[np.ndarray, " logs"] = np.cumsum([len(log.entries) for log in self._sorted])
        every = self.entries()
        keys = (every["chunk"] << 20) + every["member"]
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def content(self, work: Path, entry: Any) -> dict[str, Any] | None:
        """The arrays of an entry; None where they are torn."""
        offset, length = int(entry["offset"]), int(entry["length"])
        try:
            file = self._opened(work)
            if offset < 0 or length < 0 or offset + length > os.fstat(file).st_size:
                return None
            content = os.pread(file, length, offset)
        except OSError:
            return None
        return load_arrays(content) if digest_of(entry, content) == entry["digest"].tobytes() else None

    def _opened(self, work: Path) -> int:
        if work not in self._open:
            if len(self._open) >= min(OPEN, allow_many_files() // 4):
                os.close(self._open.pop(next(iter(self._open))))
            self._open[work] = open_regular(work)
        return self._open[work]

    def close(self) -> None:
        """Let go of all files."""
        self._close()
        while self._open:
            os.close(self._open.popitem()[1])
