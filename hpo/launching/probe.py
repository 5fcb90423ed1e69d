"""Probe of a node: small computation and communication with a known answer.

    python probe.py [--rank R] [--ranks N] [--meet NAME] [--threads T]

Prints ``healthy``, from rank 0 and only when all ranks of the node agree, and how many seconds a fixed piece of work took; what it finds wrong goes to
stderr.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from hydragnn.distributed.launch import Launch
from hydragnn.distributed.ranks import process_group

SIZE = 256
PATTERN_MB = 64
WORK_SIZE, WORK_REPEATS = 768, 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hydragnn.hpo.launching.probe", description=__doc__)
    parser.add_argument("--rank", type=int, default=0, help="which of the node's ranks this is")
    parser.add_argument("--ranks", type=int, default=1, help="how many ranks the node has")
    parser.add_argument("--meet", default="probe", help="name under which the ranks meet on this node")
    parser.add_argument("--threads", type=int, default=1, help="threads of this process")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wrong = computation(device) or (collective(options.rank, options.ranks, options.meet) if options.ranks > 1 else "")
    if wrong:
        print(f"rank {options.rank}: {wrong}", file=sys.stderr, flush=True)
    elif options.rank == 0:
        print(f"seconds {work_seconds(device):.6f}\nhealthy", flush=True)
    return 1 if wrong else 0


def computation(device: torch.device) -> str:
    """Return the fault of arithmetic or memory; empty without one.

    Small whole numbers, so that every sum is exact in float32, whatever the order.
    """
    rows = torch.arange(SIZE, device=device).unsqueeze(1)
    first, right = (rows * 7 + rows.T * 3) % 11, (rows * 5 + rows.T) % 13
    product = first.float() @ right.float()
    expected = (first.cpu().unsqueeze(2) * right.cpu().unsqueeze(0)).sum(dim=1)
    if not torch.equal(product.cpu().long(), expected):
        return f"a product of matrices on {device} is wrong"
    pattern = torch.arange(PATTERN_MB * 2**18, dtype=torch.int32, device=device)
    if int(pattern.long().sum()) != pattern.numel() * (pattern.numel() - 1) // 2:
        return f"memory of {device} does not keep what was written"
    return ""


def work_seconds(device: torch.device) -> float:
    """Return the seconds of the fastest of a few equal computations."""
    values, times = torch.ones(WORK_SIZE, WORK_SIZE, device=device), list[float]()
    for _ in range(WORK_REPEATS):
        begin = time.perf_counter()
        float((values @ values).sum())
        times.append(time.perf_counter() - begin)
    return min(times)


def collective(rank: int, ranks: int, meet: str) -> str:
    """Return the fault of a sum over ranks; empty without one."""
    launch = Launch(by="torchrun", rank=rank, size=ranks, step=meet)
    values = torch.full((1024,), float(rank + 1))
    with process_group(launch, Path(tempfile.gettempdir()), "gloo"):
        dist.all_reduce(values)
        dist.barrier()
    total = ranks * (ranks + 1) / 2
    return "" if bool((values == total).all()) else f"a sum over {ranks} ranks is {float(values[0])}, not {total}"


if __name__ == "__main__":
    try:
        code = main()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    os._exit(code)  # past gloo's threads, which can abort a process that has done its work
