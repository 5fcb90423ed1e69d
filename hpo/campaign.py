"""A search, from its checks to its result."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError
from hydragnn.base.machine import ProcessMachine, Workers, bytes_of, this_machine, workers_here
from hydragnn.hpo.controller import Controller, OnEvent, trial_folder
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import Journal
from hydragnn.hpo.launching.allocation import Allocation
from hydragnn.hpo.launching.allocation_launcher import Launcher, Limits
from hydragnn.hpo.launching.job_step import OWN_AT_ONCE, OWN_RATE, STEP_RATE, STEPS_AT_ONCE
from hydragnn.hpo.launching.local import LocalLauncher, gpus_of_workers
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import read_allocation, site_of
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, is_begun, plan_on, write_settings
from hydragnn.hpo.scheduling.state import FAILED, State, Trial
from hydragnn.hpo.scheduling.trouble import LONGEST
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.default import left_out_words
from hydragnn.hpo.space.points import Point, space_of
from hydragnn.hpo.status.facts import CampaignStatus, campaign_status
from hydragnn.runs.signals import handled_by


def run_search(
    settings: CampaignSettings,
    out: Path,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    launcher: Launcher | None = None,
    on_event: OnEvent | None = None,
    on_note: Callable[[str], None] | None = None,
) -> CampaignStatus:
    """Search in folder ``out`` until the budget is spent, or continue there.

    Returns early on SIGINT, SIGTERM, SIGHUP and SIGUSR1. InputError for anything wrong with the settings, for a folder in use, and where every trial fails. With ``resume``, a
    folder without a campaign is begun, and one whose campaign is complete gives its result. ``on_note`` is called with what
    the user should know before anything starts.
    """
    note = on_note or (lambda text: None)
    settings, space = as_begun(settings, out), space_of(settings.search.space, settings.source)
    begun = is_begun(out)

    def checked_again() -> list[Point]:
        """Check the folder again where another search has begun in it."""
        return check_folder(settings, space, out, resume=resume) if is_begun(out) and not begun else enqueued

    check_campaign(settings, space, begun=begun)
    enqueued = check_folder(settings, space, out, resume=resume, on_note=on_note)
    with ExitStack() as stack:
        launcher = launcher or launcher_of(settings, out, workers)
        with ExitStack() as unless_it_fits:
            unless_it_fits.callback(launcher.close)
            plan = plan_on(launcher, settings)
            unless_it_fits.pop_all()
        if isinstance(launcher, LocalLauncher):
            chosen = (workers or settings.search.workers) == "auto"
            if text := local_note(launcher, this_machine(), chosen=chosen):
                note(text)
        if launcher.note:
            note(launcher.note)
        enqueued = checked_again()
        journal = stack.enter_context(Journal(out / JOURNAL))
        stack.callback(launcher.close)
        enqueued = checked_again()
        for text in journal.notes:
            note(text)
        write_settings(settings, enqueued, out)
        if settings.left_out and not begun:
            note(f"left out of the default space, as they cannot do what is asked: {left_out_words(settings.left_out)}")
        controller = Controller(settings, space, out, journal, launcher, enqueued, on_event)
        with handled_by(lambda number, _: controller.stop(signal.Signals(number).name)):
            state = controller.run(plan)
            ended = campaign_status(out)  # before another process can continue
            stack.close()  # with signals heard, so that a second Ctrl-C does not cut it short
        check_result(state, out, settings.source)
        return ended


def check_result(state: State, out: Path, source: str) -> None:
    """Raise InputError where a closed campaign came to nothing."""
    if state.best is None and state.ending in ("finished", "hopeless"):
        failures = [trial for trial in state.trials.values() if trial.failure and trial.status in FAILED]
        raise InputError(f"{source}: {_without_success(state, failures, out)}")


def _without_success(state: State, failures: list[Trial], out: Path) -> str:
    """Return why a campaign has no result, and the next move."""
    if failures:
        return f"all {len(failures)} trials failed; {_failure_of(failures[0], out)}"
    out_of_order = sorted(name for name, node in state.health.items() if node.status == "quarantined")
    tried = sorted(trial.number for trial in state.trials.values() if trial.failure)
    if tried and len(out_of_order) < len(state.nodes):
        return (
            f"for {LONGEST / 60:.0f} minutes nothing that was started came to anything, on any node; "
            f"{_failure_of(state.trials[tried[-1]], out)}; find out what all nodes share, then continue with --resume"
        )
    if out_of_order:
        reason = state.health[out_of_order[0]].message or "unknown"
        return (
            f"all {len(out_of_order)} nodes are out of order before any trial succeeded; {out_of_order[0]}: {reason}; "
            "take other nodes, then continue with --resume"
        )
    return "not one configuration could be tried; widen search.space"


def _failure_of(trial: Trial, out: Path) -> str:
    return f"trial {trial.number}: {trial.reason} (log: {trial_folder(out, trial.number) / 'log.txt'})"


def launcher_of(settings: CampaignSettings, out: Path, workers: Workers | None = None) -> Launcher:
    """Return a launcher of local workers, or of an allocation's steps."""
    search = settings.search
    if workers is not None and search.launcher == "auto":
        return local_launcher(settings, workers)
    allocation = read_allocation(environment(), want=search.launcher)
    if workers is not None:
        settings = replace(settings, search=search.model_copy(update={"workers": workers}))
    return launcher_for(settings, allocation, out)


def launcher_for(settings: CampaignSettings, allocation: Allocation, out: Path) -> Launcher:
    """Return the launcher for an allocation."""
    search, (smallest, largest) = settings.search, settings.search.nodes_of_a_trial
    if allocation.by == "local":
        return local_launcher(settings)
    allocation, site = allocation.fastest_kind(), site_of(allocation)
    own = allocation.managed or site.own_steps
    at_once, rate = (OWN_AT_ONCE, OWN_RATE) if own else (STEPS_AT_ONCE, STEP_RATE)
    limits = Limits(at_once=at_once, rate=rate, hang_seconds=60.0 * search.hang_minutes)
    gpus = max(1, *(node.gpus for node in allocation.nodes))
    ranks, shares = search.ranks_per_node or gpus, search.trials_per_node
    shares = shares if search.trials_per_device == 1 else search.trials_per_device * gpus
    if shares > 1 or (largest == ranks == 1 and len(allocation.nodes) > STEPS_AT_ONCE):
        log = out / "packs.txt"
        return PackLauncher(site, allocation, shares=shares, sharing=-(-shares // gpus), log=log, limits=limits)
    if min(search.trials, len(allocation.nodes) // smallest) > at_once:
        raise InputError(
            f"{settings.source}: trials of {smallest} node(s) on {len(allocation.nodes)} nodes need more job steps at once "
            f"than the {at_once} that an allocation carries; set nodes_per_trial to at least "
            f"{-(-len(allocation.nodes) // at_once)}"
        )
    return StepLauncher(site, allocation, ranks=search.ranks_per_node, limits=limits)


def local_launcher(settings: CampaignSettings, at_once: Workers | None = None) -> LocalLauncher:
    """Return a launcher of ``at_once`` trials, or of ``search.workers``."""
    search, ranks = settings.search, settings.search.ranks_per_node or 1
    at_once = search.workers if at_once is None else at_once
    sharing = search.trials_per_device
    memory = settings.base.get("batch", {}).get("memory")  # of a trial's steps
    workers = workers_here(at_once, bytes_of(memory) if memory else 0, sharing)
    workers = max(1, workers // ranks) if at_once == "auto" else workers
    gpus = gpus_of_workers(workers, ranks)
    patience = 60.0 * search.hang_minutes
    return LocalLauncher(workers, sharing=sharing, ranks=ranks, hang_seconds=patience, gpus=gpus)


def local_note(launcher: LocalLauncher, machine: ProcessMachine, *, chosen: bool) -> str:
    """Return a note on trials at once, or an empty text."""
    trials, ranks = len(launcher.slots), launcher.ranks
    each = f" of {ranks} ranks each" if ranks > 1 else ""
    turns = ranks > 1 and not machine.gpus and trials * ranks > machine.cores
    if not chosen and not turns:
        return ""
    slow = "; ranks take turns on the cores, so that times of layouts mean little" if turns else ""
    return f"{trials} trial{'s' * (trials > 1)} at once{each}: this machine has {machine}{slow}"
