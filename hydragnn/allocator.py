"""How this process keeps freed memory: large tensors are made and freed in every step, and fresh pages cost more than sums."""

import ctypes
import os
import sys
import sysconfig
from pathlib import Path

OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 * 2**20)}
"""Numbers and values of glibc's malloc.h and mallopt(3): nothing is mapped on its own, nothing is given back, and the heap grows by 64 MiB."""

LARGE_PAGE = 2 * 2**20
MADV_HUGEPAGE = 14
"""The advice of madvise(2) that Linux may back memory by large pages ("transparent huge pages", as it does on request by default)."""
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
STRICT = "2"
"""What is in that file where address space that nobody uses counts as used."""


ALLOCATES = b"libc10.so"
"""The library of torch that allocates tensors."""
LIBRARY = Path(__file__).resolve().with_name(f"arena.{sysconfig.get_platform()}.so")
VERSION = 1
"""That of ``arena.cpp``, which this module calls."""


def keep_memory() -> bool:
    """Let this process keep what is freed, if it trains or predicts on CPUs; gives whether it does now.

    Otherwise every tensor above some MiB is mapped and its pages are zeroed anew each time that it is made: gathers of 50 MB
    take three times as long. Tensors get a stretch of address space of their own (``arena.cpp``), in pages of 2 MiB, which take a step
    on a CPU a tenth less time, and no more of it is ever resident than they took at their most, and a little; the process keeps
    that to its end. Where the arena was not built, glibc keeps what was freed, with its holes. Whoever has set ``GLIBC_TUNABLES``
    has decided; where there is a GPU, or another C library, nothing changes.
    """
    import torch  # here, so that commands that compute nothing can start without it

    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or torch.cuda.is_available():
        return False
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or not all(mallopt(option, value) == 1 for option, value in OPTIONS.values()):
        return False
    if OVERCOMMIT.exists() and OVERCOMMIT.read_text().strip() != STRICT and not address_space_is_limited():
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if not takes_tensors(memory):
            _ask_for_large_pages(libc, memory // 2)
    return True


def address_space_is_limited() -> bool:
    """Return True where this process has a limit on addresses (``ulimit -v``), of which a reserve would leave too few for libraries."""
    import resource  # not on every system

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def takes_tensors(size: int) -> bool:
    """Let tensors from now on come from ``size`` bytes of address space of their own; False where that cannot be had, which changes nothing."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return False
    if library.version() != VERSION:
        return False
    library.take_over.argtypes, library.take_over.restype = [ctypes.c_char_p, ctypes.c_int64], ctypes.c_int64
    return bool(library.take_over(ALLOCATES, size))


def _ask_for_large_pages(libc: ctypes.CDLL, size: int) -> None:
    """Let the next ``size`` bytes of the heap come in pages of 2 MiB, where the kernel has them; none is taken before it is used.

    The heap is grown once and freed again, which ``OPTIONS`` keep. Where it may not grow so far, pages stay small.
    """
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.madvise.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    place = libc.malloc(size)
    if place:
        begin = -(-place // LARGE_PAGE) * LARGE_PAGE
        libc.madvise(begin, (place + size - begin) // LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE)
        libc.free(place)
