"""Local attempts: every worker process is a pack of one node.

Each rank of an attempt has one thread and at most one GPU.

No attempt outlives its controller, works before the journal has it, or has a successor while it runs: see ``worker.py``.
"""

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError
from hydragnn.base.machine import visible_gpus
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.attempts import seconds_between_beats
from hydragnn.hpo.launching.job_step import end_process
from hydragnn.hpo.launching.launcher import Task, identity_of
from hydragnn.hpo.launching.packs import Pack, PackLauncher
from hydragnn.hpo.launching.rank import gpu_variables
from hydragnn.hpo.launching.sites.local import Local
from hydragnn.hpo.scheduling.events import Identity, Probed, node_of


class LocalLauncher(PackLauncher):
    """Launcher of attempts by ``workers`` processes of this machine."""

    variables = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
    )
    ending = ((signal.SIGKILL, 60.0),)  # a busy machine

    def __init__(
        self,
        workers: int,
        *,
        sharing: int = 1,
        ranks: int = 1,
        hang_seconds: float = 600.0,
        gpus: Sequence[Mapping[str, str | None]] = (),
    ) -> None:
        """Share the GPU of each worker between ``sharing`` trials.

        Or train each trial in ``ranks`` processes. ``gpus`` are variables that select the GPUs of each worker.
        """
        names = [f"worker-{number}" for number in range(workers)]
        super().__init__(
            Local(),
            Allocation(by=Local.name, nodes=alike(names, cores=1)),
            shares=sharing,
            log=None,
            sharing=sharing,
            limits=Limits(rate=1e9, hang_seconds=hang_seconds),
        )
        self._gpus, self.ranks = dict(zip(names, gpus)), ranks

    @property
    def beat_seconds(self) -> float:
        """Seconds between heartbeats of each run, in its folder."""
        return seconds_between_beats(len(self.slots), self._limits.hang_seconds)

    def probe(self, node: str) -> None:
        """Find the slot healthy: a machine that runs this code computes."""
        self._reports.append(Probed(node=node, healthy=True))

    def close(self) -> None:
        """End the workers, and with them every attempt."""
        identities = [attempt.identity for attempt in self._attempts.values() if attempt.identity is not None]
        super().close()
        for identity in identities:
            end_process(identity, self.ending)

    def _worker_options(self, nodes: tuple[str, ...]) -> dict[str, Any]:
        return {"ranks": self.ranks}

    def _environment_of(self, nodes: tuple[str, ...]) -> dict[str, str]:
        variables = {**self._environment, **self._gpus.get(nodes[0], {})}
        return {name: value for name, value in variables.items() if value is not None}

    def _arguments(self, task: Task) -> list[str]:
        return [*task.arguments, *(["--ranks", str(self.ranks)] if self.ranks > 1 else [])]

    def _identity(self, pack: Pack, slot: str, pid: int) -> Identity:
        return identity_of(pid)

    def _look_at_nodes(self, now: float) -> None:
        """Do nothing: a worker that ends closes its pipe."""

    def _give_up(self, pack: Pack) -> None:
        for attempt in self._attempts.values():
            if attempt.identity is not None and node_of(attempt.task.slots[0]) in pack.nodes:
                end_process(attempt.identity, self.ending)
        super()._give_up(pack)


def gpus_of_workers(workers: int, ranks: int) -> tuple[Mapping[str, str | None], ...]:
    """Return the variables that select the GPUs of each worker.

    InputError for more ranks than GPUs: two trainings on one GPU by accident run out of memory, or take turns.
    """
    gpus = visible_gpus()
    if not gpus:
        return ({},) * workers
    if workers * ranks > gpus:
        raise InputError(
            f"{workers} workers, but this process sees {gpus} GPU(s), and each worker trains on {ranks} of its own; set workers to at "
            f"most {max(1, gpus // ranks)} or lower search.ranks_per_node, let trials share a GPU (search.trials_per_device), or hide the "
            "GPUs to train on the CPU: export CUDA_VISIBLE_DEVICES="
        )
    return tuple(gpu_variables(environment(), worker, gpus // ranks, gpus) for worker in range(workers))
