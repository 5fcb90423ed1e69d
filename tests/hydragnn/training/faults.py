"""The worker of ``hydragnn.runs.run`` with a fault on one rank: ``python faults.py FAULT RANK RUN [options]``."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from hydragnn.distributed import leave, ranks, this_launch
from hydragnn.runs import assembly, run
from hydragnn.runs.callback import RunCallback
from hydragnn.training import executor

TOO_MUCH = 2**46  # numbers; no machine has them


def in_preparation() -> None:
    """The allocator refuses memory for the model."""
    assembly.build_branched = lambda *arguments, **options: torch.empty(TOO_MUCH)


def in_a_step_while_the_first_hangs() -> None:
    """The allocator refuses memory in the fifth step, and the first rank does not notice, as in a collective on GPUs."""
    hangs = this_launch().rank == 0
    after(executor, "loss_sums", 5, lambda: time.sleep(60) if hangs else torch.empty(TOO_MUCH))


def limited() -> None:
    """The system gives no more memory from the third step on, and what the allocator has kept is taken too."""
    taken: list[torch.Tensor] = []

    def limit() -> None:
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        size = 2**26
        while size >= 2**15:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8))
            except (RuntimeError, MemoryError):
                size //= 2

    after(executor, "loss_sums", 3, limit)


def stopped() -> None:
    """The second rank stops in the fifth step and goes on for nobody; looks at it are fast."""
    ranks.LOOK_EVERY = 0.05
    if this_launch().rank == 1:
        after(executor, "loss_sums", 5, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def killed_before_the_end() -> None:
    """The rank dies after the last checkpoint, before all ranks have come to the end."""
    save = RunCallback.save

    def save_and_die(callback: RunCallback, state: Any, **options: Any) -> None:
        save(callback, state, **options)
        if state.epoch == callback.settings.epochs:
            os.kill(os.getpid(), signal.SIGKILL)

    RunCallback.save = save_and_die


def after(owner: Any, name: str, calls: int, fault: Callable[[], object]) -> None:
    function, count = getattr(owner, name), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            fault()
        return function(*arguments, **options)

    setattr(owner, name, counted)


def signal_in_preparation() -> None:
    after(assembly, "prepare_data", 1, lambda: os.kill(os.getpid(), signal.SIGUSR1))


if __name__ == "__main__":
    if sys.argv[2] in ("all", str(this_launch().rank)):
        globals()[sys.argv[1]]()
    leave(run.main(sys.argv[3:]), seconds=0.0)
