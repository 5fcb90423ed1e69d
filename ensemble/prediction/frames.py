"""Files of structures in blocks that can be read alone."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from ase import Atoms

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.ase import species_problem

FRAMES = 256
"""Structures in a block, unless that makes too many."""

BLOCKS = 512
"""Blocks at the most, since each becomes a part of a store."""


LONGEST = 20
"""Letters of a number of atoms."""


def blocks_of(path: Path) -> list[tuple[int, int, int]]:
    """First structure, first byte and last byte of every block.

    One block where the format has to be read as a whole.

    Extended XYZ says at the head of every structure how many lines it has, so that structures are found without being
    understood. Anything unexpected is left to ASE.
    """
    starts = _starts(path) if path.suffix in (".xyz", ".extxyz") else None
    if starts is None:
        return [(0, 0, path.stat().st_size)]
    count = len(starts) - 1
    step = max(FRAMES, -(-count // BLOCKS))
    return [(first, starts[first], starts[min(first + step, count)]) for first in range(0, count, step)]


def frames_of(path: Path, block: tuple[int, int, int]) -> Iterator[Atoms]:
    """The structures of a block one by one.

    InputError, with the structure's number from 0, where ASE cannot read them.
    """
    from ase.io import iread
    from ase.io.formats import UnknownFileTypeError

    number, start, stop = block
    # parallel=False: under MPI, ASE would let rank 0 read for all ranks, which read different blocks
    try:
        if (start, stop) == (0, path.stat().st_size):
            structures = iread(path, index=":", parallel=False)
        else:
            with path.open("rb") as file:
                file.seek(start)
                text = file.read(stop - start).decode()
            structures = iread(StringIO(text), index=":", format="extxyz", parallel=False)
        for atoms in structures:
            yield atoms
            number += 1
    except (UnknownFileTypeError, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        if problem := species_problem(error):
            raise InputError(f"{path}: structure {number} {problem}") from error
        raise InputError(
            f"{path} is neither a store nor a file that ASE can read (structure {number}: {error}); check it"
        ) from error


def _starts(path: Path) -> list[int] | None:
    """Return the first byte of every structure; None where unclear."""
    starts: list[int] = []
    place = 0
    with path.open("rb") as file:
        while line := file.readline():
            if not line.strip():
                if any(more.strip() for more in file):
                    raise InputError(
                        f"{path}: an empty line stands before structure {len(starts)}, where readers of XYZ end without a word; remove such lines"
                    )
                break
            if not line.strip().isdigit() or len(line) > LONGEST:
                return None
            starts.append(place)
            place += len(line)
            for _ in range(int(line) + 1):
                atom = file.readline()
                place += len(atom)
                if not atom:
                    raise InputError(
                        f"{path}, structure {len(starts) - 1}: the file ends before its {int(line)} atoms; it was cut off, or the number is wrong"
                    )
    return [*starts, place] if starts else None
