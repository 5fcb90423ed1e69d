"""Speed of arithmetic and memory that a device can reach."""

from collections.abc import Mapping
from functools import cache
from timeit import repeat
from typing import NamedTuple

import torch


class Peaks(NamedTuple):
    """Most operations and bytes per second of a device; 0 where unknown."""

    flops: float = 0.0
    bytes: float = 0.0
    source: str = "unknown"


PRECISIONS = ("fp64", "fp32", "tf32", "bf16")
GPUS: Mapping[str, tuple[float, float, float, float, float]] = {
    "NVIDIA H200": (67, 67, 495, 990, 4.8),
    "NVIDIA H100 80GB HBM3": (67, 67, 495, 990, 3.35),
    "NVIDIA H100 PCIe": (51, 51, 378, 756, 2.0),
    "NVIDIA A100-SXM4-40GB": (19.5, 19.5, 156, 312, 1.555),
    "NVIDIA A100-SXM4-80GB": (19.5, 19.5, 156, 312, 2.039),
    "NVIDIA A100-PCIE-40GB": (19.5, 19.5, 156, 312, 1.555),
    "NVIDIA A100 80GB PCIe": (19.5, 19.5, 156, 312, 1.935),
    "AMD Instinct MI250X": (47.9, 47.9, 47.9, 191.5, 1.6),
    "AMD Instinct MI300A": (122.6, 122.6, 490.3, 980.6, 5.3),
    "AMD Instinct MI300X": (163.4, 163.4, 653.7, 1307.4, 5.3),
}
"""Stated 1e12 operations per second by precision, for dense products of matrices, and 1e12 bytes per second, by full name.

Parts of a GPU and its variants have other figures, and an MI250X is one of two dies.
"""

SIDE, COPIED = 512, 2**25
"""Rows of the matrices that a CPU multiplies, and the bytes that it copies: more than its caches hold."""


def peaks_of(device: torch.device, precision: str) -> Peaks:
    """Return stated peaks of a GPU, or measured ones of these cores."""
    if device.type != "cuda":
        return measured_peaks("fp32" if precision == "tf32" else precision)
    name = torch.cuda.get_device_name(device)
    if name not in GPUS:
        return Peaks(source=f"no figures of {name}")
    *speeds, memory = GPUS[name]
    return Peaks(1e12 * speeds[PRECISIONS.index(precision)], 1e12 * memory, f"data sheet of {name}")


@cache
def measured_peaks(precision: str) -> Peaks:
    """Return the measured speed of a matrix product and a large copy."""
    dtype = {"fp64": torch.float64, "bf16": torch.bfloat16}.get(precision, torch.float32)
    with torch.no_grad():
        matrix, numbers = torch.ones(SIDE, SIDE, dtype=dtype), torch.ones(COPIED, dtype=torch.uint8)
        product, copy = torch.empty_like(matrix), torch.ones_like(numbers)
        multiplied = min(repeat(lambda: torch.mm(matrix, matrix, out=product), number=1, repeat=12))
        copied = min(repeat(lambda: copy.copy_(numbers), number=1, repeat=12))
    return Peaks(2.0 * SIDE**3 / multiplied, 2.0 * COPIED / copied, "measured")
