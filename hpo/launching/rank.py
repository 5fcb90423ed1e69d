"""Start of a rank: binds itself, then becomes the program.

    python rank.py V1,V2,... PARTS GPUS PROGRAM [ARGUMENT ...]

V1, V2, ... may hold the rank's number on its node, which is divided into PARTS and has GPUS. The one place that binds; packs do it by fork (``worker.py``). In arguments, ``{part}`` becomes the rank's number on its node and ``{threads}`` the number of cores of the share. Run by its
path, with nothing but the standard library, because it starts on every node at once.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
HIDDEN = ("", "-1", "NoDevFiles")  # values that hide all GPUs, Slurm's included
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(variables: str, parts: str, gpus: str, *program: str) -> None:
    """Bind this process and become the program."""
    part = local_rank(os.environ, variables.split(","))
    values = {"{part}": str(part), "{threads}": str(bind(part, int(parts), int(gpus)))}
    os.execvp(program[0], [values.get(word, word) for word in program])


def bind(part: int, parts: int, gpus: int) -> int:
    """Bind this process to a part; return its number of cores."""
    cores = share(own_cores(), part, parts)
    with suppress(OSError, AttributeError):  # some systems cannot bind; then the threads still are as many as the cores
        os.sched_setaffinity(0, {thread for core in cores for thread in siblings(core)})
    for name, value in gpu_variables(os.environ, part, parts, gpus).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.environ.update(dict.fromkeys(THREADS, str(len(cores))))
    return len(cores)


def threads_of(parts: int) -> dict[str, str]:
    """Return variables with a thread per core of a part."""
    return dict.fromkeys(THREADS, str(max(1, len(own_cores()) // parts)))


def local_rank(environment: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the rank's number on its node, from these variables."""
    return next((int(environment[name]) for name in names if name in environment), 0)


def share(items: Sequence[int], part: int, parts: int) -> list[int]:
    """Return the consecutive items of a part, at least one.

    >>> share([0, 1, 2, 3, 4], 1, 2), [share([0, 1], part, 4) for part in range(4)]
    ([2, 3, 4], [[0], [0], [1], [1]])
    """
    low, high = part * len(items) // parts, (part + 1) * len(items) // parts
    return list(items[low:high]) or [items[low]]


def own_cores() -> list[int]:
    """The cores that this process may use, one hardware thread of each."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    return [cpu for cpu in allowed if min(siblings(cpu) & set(allowed)) == cpu]


def siblings(cpu: int) -> set[int]:
    """All hardware threads of the core that one belongs to."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return {cpu}
    pairs = (part.partition("-") for part in text.strip().split(","))
    return {cpu} | {n for first, _, last in pairs for n in range(int(first), int(last or first) + 1)}


def gpu_variables(environment: Mapping[str, str], part: int, parts: int | None, gpus: int) -> dict[str, str | None]:
    """Return variables that select a part's GPUs; None removes a variable.

    Without ``parts`` each has one GPU. GPUs that are hidden stay hidden.

    >>> gpu_variables({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, part=1, parts=2, gpus=4)["CUDA_VISIBLE_DEVICES"]
    '6,7'
    >>> gpu_variables({"CUDA_VISIBLE_DEVICES": ""}, part=1, parts=2, gpus=4)
    {}
    """
    lists = {name: [one.strip() for one in environment[name].split(",")] for name in VISIBLE if name in environment}
    if not gpus or any(first in HIDDEN for first, *_ in lists.values()):
        return {}
    name = next(iter(lists), "ROCR_VISIBLE_DEVICES" if Path("/dev/kfd").exists() else "CUDA_VISIBLE_DEVICES")
    devices = lists.pop(name, [str(number) for number in range(gpus)])
    for inner in list(lists.values())[:1]:
        # numbers within what the outer variable leaves; some schedulers write the same list into all of them
        if inner != devices and all(number.isdigit() and int(number) < len(devices) for number in inner):
            devices = [devices[int(number)] for number in inner]
    visible = ",".join(devices[index] for index in share(range(len(devices)), part, parts or len(devices)))
    return {**dict.fromkeys(VISIBLE), name: visible}


if __name__ == "__main__":
    main(*sys.argv[1:])
