"""Local workers, forked from a process that loads libraries once."""

import multiprocessing
import signal
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

_begun = False


def load_early(*modules: str) -> None:
    """Start the process that loads these modules, while this one loads them."""
    global _begun
    multiprocessing.set_forkserver_preload([*modules])
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: this process ends the workers
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, ctrl_c)
    _begun = True


def workers_context() -> ForkServerContext | SpawnContext:
    """Return the context that starts workers: forked if ``load_early`` was called."""
    return multiprocessing.get_context("forkserver") if _begun else multiprocessing.get_context("spawn")
