"""Local workers whose libraries load once, in a process beside this one, which then forks them."""

import multiprocessing
import signal
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

_begun = False


def load_early(*modules: str) -> None:
    """Begin the process that loads these modules; called before this one loads them, which takes as long."""
    global _begun
    multiprocessing.set_forkserver_preload([*modules])
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: this process ends the workers
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, ctrl_c)
    _begun = True


def workers_context() -> ForkServerContext | SpawnContext:
    """How workers start: forked from the process of ``load_early``; where there is none, as processes that load everything themselves."""
    return multiprocessing.get_context("forkserver") if _begun else multiprocessing.get_context("spawn")
