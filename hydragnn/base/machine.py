"""Cores, memory and GPUs of this process, and workers that fit."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from hydragnn.base.errors import InputError

Workers = int | Literal["auto"]
"""Processes of this machine; ``auto``: as many as it has room for."""
ROOM = 10**9
"""Bytes that a worker takes beside its batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMachine:
    """Cores, free memory and GPUs of this process, within its limits."""

    cores: int
    """Cores that do not share their arithmetic with another one."""
    memory: int
    gpus: int

    def workers(self, batches: int = 0, sharing: int = 1) -> int:
        """Return the workers that fit: per GPU, otherwise per core.

        Each of the ``sharing`` processes of a worker needs ``ROOM``, and without GPUs the bytes of its ``batches``.

        >>> ProcessMachine(cores=8, memory=3 * 10**9, gpus=0).workers(), ProcessMachine(cores=8, memory=9 * 10**9, gpus=4).workers(sharing=4)
        (3, 2)
        """
        each = sharing * (ROOM if self.gpus else ROOM + batches)
        return max(1, min(self.gpus or self.cores, self.memory // each))

    def __str__(self) -> str:
        """Describe the resources in words."""
        gpus = f"{self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else "no GPU"
        return f"{self.cores} core{'s' * (self.cores > 1)}, {self.memory / 1e9:.1f} GB of free memory, {gpus}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def this_machine(root: Path = Path("/")) -> ProcessMachine:
    """Return the resources of this process."""
    return ProcessMachine(cores=cores(), memory=free_memory(root), gpus=visible_gpus())


def workers_here(request: Workers, batches: int = 0, sharing: int = 1) -> int:
    """Return the wanted number of workers, or one that fits."""
    return this_machine().workers(batches, sharing) if request == "auto" else request


def cores() -> int:
    """Return the cores of this process, by affinity and container quota."""
    import joblib  # a tenth of a second, which few commands need

    allowed: int = joblib.cpu_count()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def visible_gpus() -> int:
    """Return the number of GPUs that a training would see."""
    import torch  # takes seconds to load, and commands that start nothing do not need it

    return torch.cuda.device_count()


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> Iterator[int]:
    """Return the free bytes of all memory groups around this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if kinds else "sys/fs/cgroup")
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else ("memory.max", "memory.current")
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                with suppress(OSError, ValueError):  # no such group here, or "max"
                    most, own = (int((folder / name).read_text(encoding="ascii")) for name in (limit, used))
                    rows = dict(
                        line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()
                    )
                    yield most - own + int(rows.get("total_inactive_file", rows.get("inactive_file", "0")))


def numbers_in(text: str) -> list[int]:
    """Return the numbers that a list of ranges stands for.

    >>> numbers_in("0-2,7")
    [0, 1, 2, 7]
    """
    ranges = (part.partition("-") for part in text.split(",") if part.strip())
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as ``"4 GB"``.

    InputError for anything else.

    >>> bytes_of("4 GB"), bytes_of("1.5MiB"), bytes_of("4096")
    (4000000000, 1572864, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in UNITS or not float(match[1]):
        raise InputError(f"{text!r} is no amount of memory; write for example 4 GB or 512 MiB")
    return int(float(match[1]) * UNITS[match[2]])


def in_words(size: int | float) -> str:
    """Return bytes as people write them.

    >>> in_words(4_200_000_000), in_words(900)
    ('4.2 GB', '900 bytes')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
