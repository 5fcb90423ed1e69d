"""Files with one random bit turned, for tests of what readers say then."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError

FLIPS = 40


def flipped(files: Sequence[Path], seed: int) -> Iterator[tuple[Path, int]]:
    """The files with one random bit of all of them turned, ``FLIPS`` times; gives the file and the byte. They are whole again afterwards."""
    contents, generator = {file: file.read_bytes() for file in files}, random.Random(seed)
    sizes = [len(content) for content in contents.values()]
    for _ in range(FLIPS):
        (file,) = generator.choices(files, weights=sizes)
        place = generator.randrange(len(contents[file]))
        changed = bytearray(contents[file])
        changed[place] ^= 1 << generator.randrange(8)
        file.write_bytes(changed)
        yield file, place
        file.write_bytes(contents[file])


def silent(path: Path, read: Callable[[], Any], same: Callable[[Any, Any], bool]) -> tuple[list[int], int]:
    """Bytes whose change gave another value without a word, and how many changes were refused."""
    expected, found, refused = read(), [], 0
    for _, place in flipped([path], seed=len(str(path.name))):
        try:
            value = read()
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        if not same(expected, value):
            found.append(place)
    return found, refused
