"""Compiled steps of a run, on all ranks or none."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from hydragnn.base.errors import InputError
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import shared_problem
from hydragnn.models import BranchedModel, CompiledModel, GraphModel, NotCompiled, compiled_model
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS
from hydragnn.runs.compile_cache import compile_cache

LONGEST = 3600.0
"""Seconds for which a run that compiles shows that it lives; whatever takes longer hangs, and a watchdog may find out."""


def compiled_on_all(
    model: GraphModel | BranchedModel,
    autocast: Callable[[], AbstractContextManager[object]],
    ranks: Ranks,
    device: torch.device,
    heartbeat: Callable[[], None],
) -> tuple[tuple[CompiledModel, ...], list[str]]:
    """Return compiled branches on every rank, or none and why.

    All ranks call it together; ``device`` is where their collectives work. Interrupted and Fenced as ``heartbeat`` raises them.
    """
    with keep_beating(heartbeat):
        compiled, reason = compiled_branches(model, autocast)
        reason = shared_problem(reason, ranks, device)
    return (compiled, []) if reason is None else ((), [f"steps are not compiled: {reason}"])


def compiled_branches(
    model: GraphModel | BranchedModel, autocast: Callable[[], AbstractContextManager[object]]
) -> tuple[tuple[CompiledModel, ...], str | None]:
    """Return compiled branches on this rank, or none and why."""
    branches = model.views if isinstance(model, BranchedModel) else (model,)
    try:
        with compile_cache():
            return tuple(compiled_model(branch, autocast) for branch in branches), None
    except (NotCompiled, InputError) as error:
        return (), str(error)


@contextmanager
def keep_beating(
    heartbeat: Callable[[], None], every: float = SECONDS_BETWEEN_BEATS, longest: float = LONGEST
) -> Iterator[None]:
    """Call ``heartbeat`` from a thread during the block; reraise its errors."""
    finished = threading.Event()
    errors: list[Exception] = []

    def beat() -> None:
        end = time.monotonic() + longest
        try:
            while not finished.wait(every) and time.monotonic() < end:
                heartbeat()
        except Exception as error:  # a fenced or interrupted run
            errors.append(error)

    heartbeat()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
    heartbeat()
    if errors:
        raise errors[0]
