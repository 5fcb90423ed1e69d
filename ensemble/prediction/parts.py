"""Finished work units on disk, so that an interrupted prediction continues where it was."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.plan import Unit
from hydragnn.ensemble.prediction.records import ALL, Records
from hydragnn.ensemble.prediction.sinks import Piece
from hydragnn.errors import InputError
from hydragnn.files import lock_file, read_json, read_sealed, write_json
from hydragnn.models import distribution_from_arrays

LOCK = "lock"
PLAN = {"planned", "measured"}
"""What the plan beside a prediction holds."""


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

    def check_plan(self, plan: Path) -> None:
        """Raise InputError where ``plan``, which the prediction will replace, is no plan of an earlier one."""
        if not os.path.lexists(plan):
            return
        try:
            before = read_sealed(plan)
        except InputError:
            before = None
        if not isinstance(before, dict) or before.keys() != PLAN:
            raise InputError(
                f"{plan} exists already and is no plan of a prediction; choose another --out or move it away"
            )

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
        """Remove the meeting places of those who worked here before."""
        for place in self.folder.glob("ranks-*"):
            shutil.rmtree(place, ignore_errors=True)

    def keep(self, unit: Unit, outcome: Outcome, seconds: float) -> None:
        """Keep the outcome of a unit, which took so many ``seconds``."""
        arrays = {
            f"{prediction.kind}/{name}/{tensor}": values
            for name, prediction in outcome.predictions.items()
            for tensor, values in prediction.to_arrays().items()
        }
        arrays |= {"reasons": np.array(outcome.reasons, dtype=np.str_), "distances": outcome.distances}
        self.records.append(unit.chunk, unit.member, arrays, [seconds])

    def keep_piece(self, chunk: int, counts: Mapping[str, int], piece: Piece, seconds: Sequence[float]) -> None:
        """Keep what a chunk becomes in the file, with counts of its graphs; ``seconds`` of the units that were predicted for it."""
        arrays = {f"count/{name}": np.array(count) for name, count in counts.items()} | {
            f"piece/{name}": values for name, values in piece.items()
        }
        self.records.append(chunk, ALL, arrays, seconds)

    def piece(self, chunk: int) -> tuple[dict[str, int], Piece] | None:
        """Counts of a chunk's graphs and what they become in the file; None where they are not there or torn."""
        arrays = self.records.read(chunk, ALL)
        if arrays is None:
            return None
        counts = {
            name.removeprefix("count/"): int(value) for name, value in arrays.items() if name.startswith("count/")
        }
        return counts, {name.removeprefix("piece/"): v for name, v in arrays.items() if name.startswith("piece/")}

    def outcome(self, unit: Unit) -> Outcome | None:
        """The outcome of a unit, bit for bit; None where it is not there by itself, or torn."""
        arrays = self.records.read(unit.chunk, unit.member)
        if arrays is None:
            return None
        reasons, distances = tuple(arrays.pop("reasons").tolist()), arrays.pop("distances")
        tensors_of: dict[tuple[str, str], dict[str, NDArray[Any]]] = {}
        for path, values in arrays.items():
            kind, name, tensor = path.split("/")
            tensors_of.setdefault((kind, name), {})[tensor] = values
        predictions = {name: distribution_from_arrays(kind, tensors) for (kind, name), tensors in tensors_of.items()}
        return Outcome(predictions=predictions, reasons=reasons, distances=distances)

    def delete(self) -> None:
        """Remove the folder once everything is in the file."""
        self.records.close()
        shutil.rmtree(self.folder, ignore_errors=True)
