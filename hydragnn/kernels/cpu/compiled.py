"""Library of compiled loops, built from ``csr.cpp`` into this folder.

They serve dense CPU tensors of one dtype, fp32 or fp64. Where they are not built, or built from another version, one
sentence on stderr says so, once, and plain torch serves. Only the installed package is looked into, never the current folder.
"""

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hydragnn.kernels.counting import bytes_of, open_counters

LIBRARY = Path(__file__).resolve().with_name(f"csr.{sysconfig.get_platform()}.so")
VERSION = 13
"""Version of ``csr.cpp`` that this module calls."""
FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., float]]] = {
    "weighted_sum": (6, 6, lambda t, e, r, a, c, w: 2 * e * a * c),
    "edge_product": (6, 6, lambda t, e, r, a, c, w: e * c * (2 * a - (w == 1 and t[4] is None))),
    "sum_and_product": (8, 7, lambda t, e, r, p, a, c, w: e * c * (4 * a - (w == 1 and t[5] is None))),
    "both_sums": (8, 7, lambda t, e, r, s, a, c, w: 4 * e * a * c),
    "edge_dot": (5, 3, lambda t, e, c: 2 * e * c),
    "outer_sum": (4, 4, lambda t, r, a, c: 2 * len(t[0]) * a * c),
    "along_directions": (4, 4, lambda t, e, a, c: e * c * (2 * a - 1)),
    "along_channels": (4, 4, lambda t, e, a, c: 2 * e * a * c),
    "sum_along": (7, 4, lambda t, r, a, c: len(t[2]) * c * (2 * a + 1)),
    "collect_along": (7, 5, lambda t, e, r, a, c: e * c * (2 * a + 1)),
    "multiply_along": (7, 5, lambda t, e, p, a, c: e * c * (2 * a + (t[5] is not None))),
    "contract_along": (7, 4, lambda t, e, a, c: e * c * (2 * a + 1)),
    "along_gradient": (10, 6, lambda t, e, r, p, a, c: e * c * (4 * a + 4)),
    "gather_add": (7, 3, lambda t, e, c: e * c * ((t[0] is not None) + (t[2] is not None))),
    "scatter_sum": (3, 4, lambda t, e, r, c: e * c),
    "ascends": (1, 3, lambda *_: 0),
    "pair_edges": (6, 3, lambda *_: 0),
    "statistics": (6, 4, lambda t, e, r, c: e * c * sum(one is not None for one in (*t[2:], t[3], t[3]))),
    "statistics_gradient": (11, 4, lambda t, e, r, c: 2 * e * c * sum(one is not None for one in t[5:9])),
    "holders": (4, 4, lambda t, e, r, c: e * c),
    "silu_slope_gradient": (5, 2, lambda t, count: 10 * count),
    "activated_sum": (4, 4, lambda t, e, r, c: 3 * e * c),
    "activated_gradient": (6, 3, lambda t, e, c: 5 * e * c),
    "activated_second": (9, 4, lambda t, e, r, c: 18 * e * c),
    "power_sums": (4, 4, lambda t, e, r, c: 12 * e * c),
    "power_gradient": (6, 4, lambda t, e, r, c: 22 * e * c),
    "power_second": (9, 4, lambda t, e, r, c: 50 * e * c),
    "table_value": (4, 4, lambda t, e, k, c: 12 * e * c),
    "table_slope": (5, 4, lambda t, e, k, c: 14 * e * c),
}
"""Numbers of arrays and of integers that each takes, and its operations by these.

Of arrays t: e edges, r rows, p weights, a axes, c channels, w channels of a weight, k intervals of a table.
"""
UNUSABLE = (OSError, AttributeError, ValueError)
"""Exceptions of ``load`` without a library that fits."""
DTYPES = (torch.float32, torch.float64)


def serves(*tensors: Tensor | None) -> bool:
    """Return True if the compiled loops accept these tensors.

    They accept CPU tensors of one dtype, fp32 or fp64, if the library was built.
    """
    dtype = next(tensor.dtype for tensor in tensors if tensor is not None)
    return (
        dtype in DTYPES
        and all(
            tensor is None or (tensor.dtype == dtype and tensor.is_cpu and type(tensor) in (Tensor, torch.nn.Parameter))
            for tensor in tensors
        )
        and library() is not None
    )


def call(name: str, arrays: Sequence[Tensor | None], integers: Sequence[int], *outs: Tensor | None) -> bool:
    """Call the loop ``name``, which writes ``outs``.

    Arrays are made dense first. Returns False if the loop refuses its input.
    """
    loaded = library()
    assert loaded is not None
    dense = [None if array is None else array.contiguous() for array in arrays]  # kept alive until the call is over
    pointers = [None if array is None else array.data_ptr() for array in (*dense, *outs)]
    number = next(array.element_size() for array in arrays if array is not None)
    # ctypes takes more arguments than were declared, of other sizes then, and the loop writes beyond its arrays
    *takes, flops = FUNCTIONS[name]
    assert [len(pointers), len(integers) + 1] == takes, f"{name} takes {takes} arrays and integers"
    status: int = getattr(loaded, name)(*pointers, *integers, number)
    if open_counters and status == 0 and _get_current_dispatch_mode():  # batches are made in a thread of their own
        open_counters[-1].add(name, lambda: (flops((*dense, *outs), *integers), bytes_of(dense, outs)))
    return status == 0


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled loops, or None with one note on stderr."""
    try:
        return load(LIBRARY)
    except UNUSABLE as error:
        print(f"note: {reason(error)}; plain torch is used instead", file=sys.stderr, flush=True)
        return None


def reason(error: Exception) -> str:
    """Why there are no compiled loops, and the way to get them."""
    way = "install the package again where there is a C++ compiler"
    if isinstance(error, FileNotFoundError):
        return f"the compiled kernels for CPUs are not built; {way}"
    return f"the compiled kernels for CPUs cannot be used ({error}); {way}"


def load(path: Path) -> ctypes.CDLL:
    """Load the library at a path and declare its functions.

    Raises OSError without it, AttributeError or ValueError if it is another version.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    loaded = ctypes.CDLL(str(path))
    if loaded.version() != VERSION:
        raise ValueError(f"{path.name} was built from another version")
    for name, (arrays, integers, _) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes = [*[ctypes.c_void_p] * arrays, *[ctypes.c_int64] * integers]
        function.restype = ctypes.c_int64
    return loaded
