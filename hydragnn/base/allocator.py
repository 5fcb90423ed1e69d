"""Memory allocator of processes that compute on CPUs.

Steps make and free large tensors, and fresh pages cost more than sums.
"""

import ctypes
import os
import sys
from pathlib import Path

from hydragnn.base.environment import environment

OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 * 2**20)}
"""Numbers and values of glibc's malloc.h and mallopt(3): nothing is mapped on its own, nothing is given back, and the heap grows by 64 MiB."""

LARGE_PAGE = 2 * 2**20
MADV_HUGEPAGE = 14
"""The advice of madvise(2) that Linux may back memory by large pages ("transparent huge pages", as it does on request by default)."""
ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Files of the drivers of GPUs: NVIDIA's, AMD's, and Windows' below Linux."""
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
STRICT = "2"
"""Value of that file where unused address space counts as used."""


def keep_memory() -> bool:
    """Keep freed memory in this process; return True on success.

    Otherwise every tensor above some MiB is mapped and its pages are zeroed each time that it is made: gathers of 50 MB take three times
    as long. The heap asks for pages of 2 MiB, with which a step takes a tenth less time on a CPU. Nothing changes where ``GLIBC_TUNABLES``
    is set, where there is a GPU, or with another C library. For lower peaks of memory preload another allocator (docs/launchers.md).
    """
    hidden = any(environment().get(name) in ("", "-1") for name in HIDING)
    has_gpu = not hidden and any(path.exists() for path in ACCELERATORS)  # without loading torch
    if sys.platform != "linux" or "GLIBC_TUNABLES" in environment() or has_gpu:
        return False
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or not all(mallopt(option, value) == 1 for option, value in OPTIONS.values()):
        return False
    import resource  # not on every system

    is_unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # libraries take addresses, too
    if is_unlimited and OVERCOMMIT.exists() and OVERCOMMIT.read_text().strip() != STRICT:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _ask_for_large_pages(libc, memory // 2)
    return True


def _ask_for_large_pages(libc: ctypes.CDLL, size: int) -> None:
    """Ask for pages of 2 MiB for the heap's next bytes.

    No page is taken before it is used. The heap is grown once and freed again, which ``OPTIONS`` keep. Where it may not
    grow so far, pages stay small.
    """
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.madvise.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    place = libc.malloc(size)
    if place:
        begin = -(-place // LARGE_PAGE) * LARGE_PAGE
        libc.madvise(begin, (place + size - begin) // LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE)
        libc.free(place)
