"""Cores beside a GPU; those of another socket feed it slower."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

PCI = Path("/sys/bus/pci/devices")


def bind_near(gpu: torch.device, devices: Path = PCI) -> None:
    """Bind this process to the cores beside its GPU.

    Nothing happens where a launcher has bound it already, or where the system does not tell which cores these are.
    """
    properties: Any = torch.cuda.get_device_properties(gpu)
    with suppress(OSError, AttributeError, ValueError):  # another system, driver or version of torch
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        near = cores_in((devices / address / "local_cpulist").read_text(encoding="ascii"))
        if near and near < os.sched_getaffinity(0):
            os.sched_setaffinity(0, near)


@contextmanager
def cores_given_back() -> Iterator[None]:
    """Let all threads of this process run on its present cores again at the end."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        bound = os.sched_getaffinity(0)
        for thread in Path("/proc/self/task").iterdir() if bound != before else ():
            with suppress(OSError):  # it has ended
                if os.sched_getaffinity(int(thread.name)) == bound:
                    os.sched_setaffinity(int(thread.name), before)


def cores_in(text: str) -> set[int]:
    """Return the numbers in a list of Linux.

    >>> sorted(cores_in("0-2,8"))
    [0, 1, 2, 8]
    """
    pairs = [part.partition("-") for part in text.split(",") if part.strip()]
    return {number for first, _, last in pairs for number in range(int(first), int(last or first) + 1)}
