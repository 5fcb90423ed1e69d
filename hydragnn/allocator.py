"""How this process keeps freed memory: large tensors are made and freed in every step, and fresh pages cost more than sums."""

import ctypes
import os
import sys

import torch

OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 * 2**20)}
"""Numbers and values of glibc's malloc.h and mallopt(3): nothing is mapped on its own, nothing is given back, and the heap grows by 64 MiB."""


def keep_memory() -> bool:
    """Let glibc keep what is freed, for a process that trains or predicts on CPUs; gives whether it does now.

    Otherwise every tensor above some MiB is mapped and its pages are zeroed anew each time that it is made: gathers of 50 MB
    take three times as long. In return the process keeps its peak memory to its end. Whoever has set ``GLIBC_TUNABLES`` has
    decided; where there is a GPU, or another C library, nothing changes.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or torch.cuda.is_available():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in OPTIONS.values())
