"""Energy of a run and busy share of its device."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import torch

from hydragnn.distributed.ranks import PCI, pci_address

MOST = 1e5
"""Watts that no counter of a node exceeds: what is more is a damaged counter, and not energy."""


class Counter(NamedTuple):
    """Counter of energy, and the part of it that is this process's."""

    source: str
    read: Callable[[], list[float]]
    """Returns joules so far, or watts."""
    share: float | None = None
    """None: this process's share of the machine's CPU time."""
    limits: Sequence[float] = ()
    """Joules after which each begins anew; a step back by less is a reset."""
    is_power: bool = False


def numbers_in(paths: Sequence[Path], unit: float = 1.0) -> list[float]:
    """Return the number at the start of every file; ValueError for others, and for units but joules."""
    words = [path.read_text(encoding="ascii").split() for path in paths]
    numbers = [float(number) * unit for number, *_ in words]
    if not all(map(math.isfinite, numbers)) or any(one[1:2] not in ([], ["J"]) for one in words):
        raise ValueError("no finite numbers of joules")
    return numbers


def counters(device: torch.device, sharing: int, root: Path) -> Iterator[Counter]:
    """Yield counters that may be there; ``sharing`` processes use the device."""
    cray = root / "sys/cray/pm_counters"
    node = Counter("pm_counters, this run's share of CPU time", partial(numbers_in, [cray / "energy"]))
    if device.type != "cuda":
        yield node
        zones = sorted(root.glob("sys/class/powercap/intel-rapl:*"))
        zones = [zone for zone in zones if (zone / "name").read_text(encoding="ascii").startswith(("package", "dram"))]
        joules, limits = ([zone / name for zone in zones] for name in ("energy_uj", "max_energy_range_uj"))
        source = "RAPL, this run's share of CPU time"
        yield Counter(source, partial(numbers_in, joules, 1e-6), limits=numbers_in(limits, 1e-6))
        return
    # a card may have two GPUs, and a process see one of them
    cards, dies = cray.glob("accel[0-9]*_energy"), root.glob("sys/class/drm/card*/device/gpu_busy_percent")
    gpus = max(torch.cuda.device_count(), len([*cards]), len([*dies]))
    yield node._replace(source="pm_counters, this run's share of GPUs", share=1 / gpus / sharing)
    with suppress(ImportError):
        import pynvml

        def read() -> list[float]:
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByPciBusId(pci_address(device))
            return [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3]

        yield Counter("NVML", read, 1 / sharing)
    for name in ("average", "input"):  # not every GPU has the first
        files = sorted((root / PCI / pci_address(device)).glob(f"hwmon/hwmon*/power1_{name}"))[:1]
        yield Counter("ROCm, power", partial(numbers_in, files, 1e-6), 1 / sharing, is_power=True)


def counter_of(device: torch.device, sharing: int = 1, root: Path = Path("/")) -> Counter | None:
    """Return the first counter that can be read."""
    with suppress(Exception):  # drivers raise errors of their own
        for counter in counters(device, sharing, root):
            with suppress(Exception):
                if counter.read():
                    return counter
    return None


class Meter:
    """Joules of a process and busy share of its device."""

    def __init__(self, device: torch.device, sharing: int = 1, root: Path = Path("/")) -> None:
        self.device, self.root, self.counter = device, root, counter_of(device, sharing, root)
        self.lock, self.last, self.joules, self.shares = threading.Lock(), list[float](), 0.0, list[float]()
        self.start, self.cpu_start = time.monotonic(), time.process_time()
        self.sample()

    def values(self) -> list[float]:
        """Return joules, and busy share of GPU or threads; NaN where unknown."""
        self.sample()
        busy = sum(self.shares) / len(self.shares) if self.shares else math.nan
        if self.device.type != "cuda":
            cores = max(1e-9, time.monotonic() - self.start) * torch.get_num_threads()
            busy = min(1.0, (time.process_time() - self.cpu_start) / cores)
        return [self.joules if self.counter else math.nan, busy]

    def sample(self) -> None:
        """Add what was used since the last look."""
        with self.lock:
            if self.device.type == "cuda":
                with suppress(Exception):  # neither the file nor nvidia-ml-py or amdsmi is there
                    busy = self.root / PCI / pci_address(self.device) / "gpu_busy_percent"
                    percent = numbers_in([busy])[0] if busy.exists() else torch.cuda.utilization(self.device)
                    self.shares.append(percent / 100)
            try:
                self.joules += self._joules(self.counter) if self.counter else 0.0
            except Exception:  # the counter is gone: from here on nothing is known
                self.counter = None

    def _joules(self, counter: Counter) -> float:
        """Return this process's joules since the last look."""
        ticks = [int(one) for one in (self.root / "proc/stat").read_text(encoding="ascii").split()[1:9]]
        machine = (sum(ticks[:3]) + sum(ticks[5:])) / os.sysconf("SC_CLK_TCK")  # without idle times
        now = [time.monotonic(), time.process_time(), machine, *counter.read()]
        seconds, own, machine, *used = (new - old for new, old in zip(now, self.last or now))
        if counter.share is None and machine <= 0 and self.last:
            return 0.0  # no tick since then: the next look counts it all
        self.last, share = now, min(1.0, own / machine if machine else 0.0) if counter.share is None else counter.share
        if counter.is_power:
            return share * seconds * sum(now[3:])
        if max(used) > MOST * (1.0 + seconds):  # counters move in steps
            raise ValueError("more joules than a node can take")
        pairs = zip_longest(used, counter.limits, fillvalue=0.0)
        return share * sum(max(one, one % limit if one < 0 < limit / 16 > one % limit else 0.0) for one, limit in pairs)
