"""Several runs in one process, each in its folder."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from hydragnn.base.errors import InputError
from hydragnn.config import AnyConfig
from hydragnn.datasets import GraphStore
from hydragnn.distributed.ranks import join_ranks
from hydragnn.record import RunRecord
from hydragnn.runs.attempt import Attempt
from hydragnn.runs.callback import RunCallback
from hydragnn.runs.folder import alone_in, check_folder
from hydragnn.runs.session import check_request, ready_run, select_device, steps_to_end
from hydragnn.runs.signals import trap_signals
from hydragnn.training.loop import StepRequest, Steps
from hydragnn.training.together import Member, Outcome, Together


def train_together(
    configs: Sequence[AnyConfig],
    outs: Sequence[Path],
    *,
    until: int | None = None,
    resume: bool = False,
    store: GraphStore | None = None,
    device: torch.device | str | None = None,
) -> list[RunRecord]:
    """Train several configurations in one process; return their records.

    Every folder is what ``train`` would leave there, and either goes on where the other was killed. Runs whose models have
    one shape take their steps as one where that is faster, which is measured in their first steps; the numbers differ by
    rounding alone. They may differ in seed, learning rate and whatever else is no matter of shape. A run that diverges is recorded as failed, and the others go on.

    Raises InputError for bad input before any run begins, Interrupted after a signal with all checkpoints written, and the first
    defect once all other runs have ended.
    """
    check_request(until, 1)
    check_folders(configs, outs)
    own = select_device(device)
    with join_ranks(outs[0], own) as ranks, ExitStack() as locks:
        if ranks.size > 1:
            raise InputError("runs are trained together by one process; start it without torchrun or mpirun")
        ready = []
        for config, out in zip(configs, outs):
            this = Attempt(folder=out)
            check_folder(config.to_json(), out, resume)
            locks.enter_context(alone_in(this, ranks, own))
            ready.append(ready_run(config, this, ranks, own, resume=resume, store=store, members=len(outs)))
        with trap_signals() as signals:
            members: dict[Member, Steps[RunRecord]] = {}
            for run, heart, stopwatch in ready:
                callback = RunCallback(run, ranks, stopwatch, signals, heart, None)
                member = Member(state=run.state, context=run.context, note=callback.add_note)
                members[member] = steps_to_end(run, callback, until)
            return records_of(members)


def check_folders(configs: Sequence[AnyConfig], outs: Sequence[Path]) -> None:
    """Raise InputError unless every configuration has a folder of its own."""
    if not outs or len(configs) != len(outs) or len({out.resolve() for out in outs}) < len(outs):
        raise InputError(f"{len(configs)} configurations and {len(set(outs))} folders; give each its own")


def records_of(members: dict[Member, Steps[RunRecord]]) -> list[RunRecord]:
    """Take the steps of all runs; return their records in order.

    What a member raises ends that member alone, and is raised again when all have ended.
    """
    together = Together()
    outcomes: dict[Member, Outcome | None] = dict.fromkeys(members)
    records: dict[Member, RunRecord] = {}
    raised: list[Exception] = []
    while outcomes:
        requests: dict[Member, StepRequest] = {}
        for member, outcome in outcomes.items():
            try:
                requests[member] = advance(members[member], outcome)
            except StopIteration as end:
                records[member] = end.value
            except Exception as error:
                raised.append(error)
        outcomes = dict(together.take(requests)) if requests else {}
    if raised:
        raise raised[0]
    return [records[member] for member in members]


def advance(steps: Steps[RunRecord], outcome: Outcome | None) -> StepRequest:
    """Return a run's next step; StopIteration carries its record."""
    if isinstance(outcome, Exception):
        return steps.throw(outcome)
    return next(steps) if outcome is None else steps.send(outcome)
