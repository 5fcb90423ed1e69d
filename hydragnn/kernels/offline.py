"""Triton kernels compiled for absent architectures, for a cache or a report."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.errors import InputError
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.op import Case
from hydragnn.kernels.ops import OPS, random_graph
from hydragnn.kernels.triton import launch as triton_launch
from hydragnn.kernels.triton.forms import POWERS

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90")
"""MI200, MI300, MI350, A100, H100 and H200."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Compiled kernel of one architecture, with its resources.

    Registers are those of a thread; occupancy is waves per SIMD or warps per SM.
    """

    kernel: str
    constants: Mapping[str, Any]
    architecture: str
    registers: int
    spilled: int
    """Registers, or on NVIDIA bytes of local memory, that do not fit."""
    shared: int
    """Bytes of LDS or shared memory."""
    occupancy: str
    loads: Mapping[int, int]
    """Load instructions from memory by bytes per thread."""
    expected: tuple[int, int]
    """Number and bytes of the loads of a tile: 16 bytes each if width, dtype and tile allow."""
    swaps: int
    """Compare-and-swap instructions: what float atomics become where the architecture has none."""

    @property
    def faults(self) -> list[str]:
        """Faults: spilled registers, narrow loads, compare-and-swap."""
        loads, size = self.expected
        wide = sum(count for width, count in self.loads.items() if width >= size)
        result = {
            f"{self.spilled} registers spilled": self.spilled > 0,
            f"{wide} loads of {size} bytes instead of {loads}": wide < loads,
            "atomics by compare-and-swap": self.swaps > 0,
        }
        return [fault for fault, present in result.items() if present]

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON, with its faults."""
        return {**asdict(self), "constants": dict(self.constants), "loads": dict(self.loads), "faults": self.faults}


def _times(constants: Mapping[str, Any], bit: int) -> int:
    """Return how often a tensor is read: twice with its own direction."""
    return 2 if constants["TANGENTS"] & bit else 1


READS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "sum_rows": lambda c: (
        c["INNER"] * (c["GROUP"] if c["X_AXES"] else 1) * _times(c, 1) + (c["WEIGHT"] == 2) * _times(c, 2)
    ),
    "sum_windows": lambda c: READS["sum_rows"](c),
    "join_windows": lambda c: 1,
    "multiply_ends": lambda c: c["AXES"] * (_times(c, 2) + c["GATHER"] * _times(c, 1)) + c["FACTOR"] * _times(c, 4),
    "dot_ends": lambda c: _times(c, 1) + c["GROUP"] * _times(c, 2) + c["WEIGHT"] * _times(c, 4),
    "add_ends": lambda c: 1 + c["RECEIVED"] + c["CARRIED"],
    "function_gradient": lambda c: 1 + (3 if c["FUNCTION"] == POWERS else 1) + c["TANGENTS"],
    "silu_slope_gradients": lambda c: 3,
    "reduce_rows": lambda c: 1,
    "reduce_rows_gradient": lambda c: 1,
    "reduce_rows_second": lambda c: 3,
    "reduce_windows": lambda c: 1,
    "join_reductions": lambda c: 2 * c["MOMENTS"] + c["LOW"] + c["HIGH"],
    "reduce_windows_gradient": lambda c: 1,
    "softmax_rows": lambda c: 2,
    "softmax_rows_gradient": lambda c: 3 + c["CURVED"],
    "softmax_windows": lambda c: 1,
    "join_softmax": lambda c: 2,
    "softmax_parts": lambda c: 1,
    "lengths_orders": lambda c: 1,
    "radial_orders": lambda c: min(c["ORDER"], 1),
    "ended_orders": lambda c: 1 + c["ORDER"],
    "standard_orders": lambda c: 1 + c["ORDER"],
    "beside_orders": lambda c: 4,
    "root_orders": lambda c: 1 + c["ORDER"],
    "norms_orders": lambda c: 1 + 2 * c["DIM"],
    "gated_orders": lambda c: 2 + c["DIM"],
}
"""Tiles that a kernel reads in each turn of its loops."""


def _expected(kernel: str, constants: Mapping[str, Any], number: int, lanes: int) -> tuple[int, int]:
    """Return the number and bytes of the loads that these tiles need."""
    # bytes of a thread in a tile
    share = constants["BE"] * constants["BF"] * number // (constants["num_warps"] * lanes)
    size = max(number, min(16, constants["VEC"] * number, share))
    return READS[kernel](constants) * max(1, share // size), size


def compiled(
    architecture: str, channels: Sequence[int], dtypes: Sequence[torch.dtype], only: str = ""
) -> Iterator[Compiled]:
    """Compile every kernel that ops launch with these widths and dtypes.

    Forward and backward; kernels in Triton's cache are read there. The architecture is checked when the first is asked for.
    InputError where it is unknown or Triton is missing.
    """
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"unknown architecture {architecture}; Triton kernels are compiled for {', '.join(ARCHITECTURES)}"
        )
    try:
        collector = _Collector(architecture)
    except ImportError as error:
        raise InputError(f"Triton is not installed ({error}): pip install 'hydragnn-ensemble[kernels]'") from None
    graphs, ops = {"long rows": random_graph(64, 10), "short rows": random_graph(32, 10)}, OPS.items()
    for width, dtype, op in product(channels, dtypes, [op for name, op in ops if only in name]):
        for _, case in op.cases(graphs, width):
            yield from collector.launched_in(op.call, case.to("meta", dtype))


class _Collector(triton_launch.KernelLauncher):
    """Takes kernels instead of a device, and compiles each variant once."""

    def __init__(self, name: str) -> None:
        from triton.runtime import driver

        self.name = name
        self.seen: set[Any] = set()
        self.new: list[Compiled] = []
        with suppress(ImportError):  # Triton before 3.4 has no knobs
            from triton import knobs

            knobs.compilation.store_binary_only = False  # the report reads assembler text
        driver.set_active(_Driver(name))

    def architecture(self, device: torch.device) -> str:
        return self.name

    def __call__(self, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        arguments = [value.dtype if isinstance(value, torch.Tensor) else value for value in inputs]
        key = (kernel.__name__, *(str(a) for a in arguments if isinstance(a, torch.dtype)), *map(str, options.values()))
        if key in self.seen:
            return
        self.seen.add(key)
        binary = kernel.warmup(*arguments, grid=(1,), **options)
        named = dict(zip(kernel.arg_names, inputs))
        number = next(named[name].itemsize for name in ("x", "x0", "rhs", "sent", "partial") if name in named)
        expected = _expected(kernel.__name__, options, number, 32 if self.name.startswith("sm_") else 64)
        if not {"amdgcn", "ptx"} & binary.asm.keys():
            raise InputError(
                f"Triton's cache has kernel {kernel.__name__} without its assembler text, as TRITON_STORE_BINARY_ONLY leaves it, and the report "
                "reads that; set TRITON_CACHE_DIR to another folder"
            )
        about = read_amd(binary.asm["amdgcn"]) if "amdgcn" in binary.asm else _read_nvidia(binary, options["num_warps"])
        constants = {key: str(v) for key, v in options.items() if key not in ("enable_fp_fusion", "SPLIT")}
        result = {"kernel": kernel.__name__, "constants": constants, "architecture": self.name, "expected": expected}
        self.new.append(Compiled(**result, **about))

    def launched_in(self, call: Any, case: Case) -> list[Compiled]:
        """Yield the kernels that a call and its two derivatives launch first."""
        tensors = tuple(tensor.detach().requires_grad_() for tensor in case.tensors)
        self.new = []
        with taken_for("meta", "cuda"), triton_launch.launched_by(self):
            call(*case.tensors, *case.rest)  # no gradient is recorded
            value = call(*tensors, *case.rest)
            parts = value if isinstance(value, tuple) else (value,)
            scalar = sum((part.square().sum() for part in parts), tensors[0].new_zeros(()))
            first = torch.autograd.grad(scalar, tensors, create_graph=True)
            torch.autograd.grad([part.square().sum() for part in first], tensors, allow_unused=True)
        return self.new


class _Driver:
    """Stand-in for the driver of a device that is absent."""

    def __init__(self, architecture: str) -> None:
        from triton.backends.compiler import GPUTarget

        nvidia = architecture.startswith("sm_")
        self.target = GPUTarget("cuda", int(architecture[3:]), 32) if nvidia else GPUTarget("hip", architecture, 64)
        self.device = ARCHITECTURES.index(architecture)  # each architecture has its own kernels in the process

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


LOADED = re.compile(r"^\s+(?:global|buffer|flat)_load_(?:(\w*)dword(?:x(\d))?|[su](byte|short)\w*)", re.MULTILINE)
LOADED_PTX = re.compile(r"\bld\.global(?:\.\w+)*?(?:\.v(\d))?\.[bufs](\d+)")


def read_amd(text: str) -> dict[str, Any]:
    """Read resources from assembler text for AMD."""

    def number(pattern: str) -> int:
        result = re.search(pattern + r":\s+(\d+)", text)
        return int(result[1]) if result else 0

    loads: dict[int, int] = {}
    for _, words, narrow in LOADED.findall(text):
        size = {"byte": 1, "short": 2}.get(narrow) or 4 * int(words or 1)
        loads[size] = loads.get(size, 0) + 1
    return {
        "registers": number(r"\.vgpr_count"),
        "spilled": number(r"\.vgpr_spill_count") + number(r"\.sgpr_spill_count"),
        "shared": number(r"\.group_segment_fixed_size"),
        "occupancy": f"{number('; Occupancy')}/8",
        "loads": loads,
        "swaps": len(re.findall(r"_cmpswap|_cmpst", text)),
    }


def _read_nvidia(binary: Any, warps: int) -> dict[str, Any]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        message = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, local = (int(re.search(rf"{name}:(\d+)", message)[1]) for name in ("REG", "LOCAL"))  # type: ignore[index]
    loads: dict[int, int] = {}
    for vector, bits in LOADED_PTX.findall(binary.asm["ptx"]):
        size = int(vector or 1) * int(bits) // 8
        loads[size] = loads.get(size, 0) + 1
    # 65536 registers in blocks of 256 per warp, 64 warps and 32 programs per SM
    held = min(64, 65536 // (-(-registers // 8) * 256), 32 * warps)
    return {
        "registers": registers,
        "spilled": local,
        "shared": binary.metadata.shared,
        "occupancy": f"{held}/64",
        "loads": loads,
        "swaps": len(re.findall(r"\batom\S*\.cas", binary.asm["ptx"])),
    }
