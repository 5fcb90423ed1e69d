"""Stores made by ranks of a launcher, or by local workers."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.base.machine import Workers
from hydragnn.datasets.build import one_thread
from hydragnn.datasets.building import Progress, build_together, reserved
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.distributed.group import join_group, join_parent, worker_group


def build_with_ranks(
    read: Callable[[], BuildSettings], out: Path, workers: Workers = 1, progress: Progress | None = None
) -> None:
    """Make a store on all ranks that a launcher started, see ``build_together``."""
    with ExitStack() as place, join_group() as group:

        def settings() -> BuildSettings:
            if workers != 1:
                raise InputError(
                    "--workers starts processes, and a launcher has started ranks already; leave --workers out and start as many ranks as there "
                    "are cores"
                )
            own = read()
            if group.rank == 0:
                place.enter_context(reserved(out))
            return own

        build_together(group, settings, out, progress)


def build_with_workers(settings: BuildSettings, out: Path, workers: int, progress: Progress | None = None) -> None:
    """Make a store as ``build_store`` does, in several processes.

    Python's rule for scripts that start processes holds: call it under ``if __name__ == "__main__":``.
    """
    remedy = 'take fewer workers, and call this in a program under if __name__ == "__main__":'
    with reserved(out), one_thread(), worker_group(workers, _build_as_child, settings, out, allowed_code()) as group:
        build_together(group, lambda: settings, out, progress, remedy)


def _build_as_child(
    rank: int, size: int, threads: int, store: str, settings: BuildSettings, out: Path, allowed: Sequence[str]
) -> None:
    """Build as a local worker."""
    allow_code(allowed)
    keep_memory()
    with suppress(KeyboardInterrupt, SaidByFirst), join_parent(rank, size, store) as group:
        build_together(group, lambda: settings, out)
