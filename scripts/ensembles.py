"""Sources of ``hydragnn ensemble``, and the final training of a campaign's best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydragnn.base.errors import InputError, Interrupted, OutOfWalltime, nearest
from hydragnn.base.machine import Workers
from hydragnn.base.places import check_kind
from hydragnn.ensemble.building.build import check_finished
from hydragnn.hpo import CampaignView, best_runs, finished_runs, given_runs, run_final, trial_folder
from hydragnn.hpo.objective import bounds_of, goals_of, quantity_text
from hydragnn.hpo.preflight import open_campaign
from hydragnn.hpo.records import campaign_history
from hydragnn.hpo.status.facts import front_trials


def campaign_or_runs(sources: Sequence[Path]) -> Path | list[Path]:
    """Return the campaign or the finished runs; InputError for anything else."""
    if not sources:
        raise InputError("an ensemble needs a campaign or finished runs; give their folders")
    kinds = [check_kind(source, "a campaign", "a run") for source in sources]
    campaigns = [source for source, kind in zip(sources, kinds) if kind == "a campaign"]
    if not campaigns:
        places = [run.resolve() for run in sources]
        for run, place in zip(sources, places):
            if places.count(place) > 1:
                raise InputError(f"the run {run} is given twice; give every member once")
            check_finished(run)
        return list(sources)
    if len(sources) > 1:
        other = next(source for source in sources if source != campaigns[0] or sources.count(source) > 1)
        raise InputError(
            f"{campaigns[0]} is a campaign, and {other} was given beside it; give one campaign, whose best trials are chosen, or "
            f"runs alone, which all become members (those of a campaign lie in {campaigns[0]}/trials)"
        )
    return campaigns[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Runs that become members, best first."""

    folders: list[Path]
    selection: dict[str, Any] = field(default_factory=dict)
    """Facts of the choice, for the ensemble's manifest."""


def bounds_from(texts: Sequence[str]) -> dict[str, float]:
    """Return bounds by objective; InputError for a text without a number.

    >>> bounds_from(["cost/ms_per_graph=2"])
    {'cost/ms_per_graph': 2.0}
    """
    bounds = dict[str, float]()
    for text in texts:
        name, _, number = (part.strip() for part in text.rpartition("="))
        try:
            bound = float(number)
        except ValueError:
            bound = math.nan
        if not name or not math.isfinite(bound):
            raise InputError(f"--at-most {text!r} is no bound; give OBJECTIVE=NUMBER, such as cost/ms_per_graph=2")
        if bounds.setdefault(name, bound) != bound:
            raise InputError(f"--at-most {text!r} is the second bound of {name}; give one")
    return bounds


def front_of_campaign(campaign: Path, top_k: int | None, at_most: Mapping[str, float]) -> Choice:
    """Return the trials of a front within bounds; of ``top_k`` those with the lowest first objective."""
    history = campaign_history(campaign)
    objective = history.settings.search.objective
    names, bounds = [quantity_text(goal.of) for goal in goals_of(objective)], list(bounds_of(objective))
    if not bounds:
        raise InputError(
            f"{campaign} has one objective ({names[0]}), and no front; leave --from-front and --at-most out"
        )
    limits = {name: bound for name, bound in zip(names, bounds) if bound is not None} | dict(at_most)
    for name, bound in at_most.items():
        if name not in names:
            raise InputError(f"--at-most {name}: {campaign} has no such objective; {nearest(name, names)}")
        bounds[names.index(name)] = bound + 5e-6 * abs(bound)  # six digits are shown, which can be rounded down
    front = front_trials(history.trials, tuple(bounds))
    if not front or len(front) < (top_k or 1):
        ends = [trial.objectives for trial in history.trials if trial.status == "finished"]
        words = ", ".join(
            f"{name} up to {limits[name]:.10g}"
            + (f" (the least is {min(values[place] for values in ends):.6g})" if ends else "")
            for place, name in enumerate(names)
            if name in limits
        )
        raise InputError(
            f"the front of {campaign} has {len(front)} finished trials{' with ' * bool(words)}{words}, fewer than {top_k or 1}; "
            + ("widen the bound, or let more trials finish" if words and ends else "let more trials finish")
        )
    folders = [trial.folder for trial in front[:top_k]]
    return _choice(campaign, folders, method="front", by=", ".join(names), at_most=limits)


def best_trials(campaign: Path, top_k: int, *, finished: bool = True) -> Choice:
    """Return the best trials of a campaign; only ``finished`` ones by default."""
    ranked = finished_runs(campaign) if finished else best_runs(campaign)
    if len(ranked) < top_k:
        raise InputError(
            f"top-k = {top_k} exceeds the {len(ranked)} finished runs of {campaign}; lower it or let more runs finish"
            if finished
            else f"{campaign} has {len(ranked)} configurations with a result, fewer than top-k = {top_k}; lower it"
        )
    by = "the campaign's objective"
    return _choice(campaign, ranked[:top_k], method="top-k", by=by, candidates=len(ranked))


def _choice(campaign: Path, folders: list[Path], **facts: Any) -> Choice:
    """Return these trials of a campaign with the facts of their choice."""
    names = [folder.name for folder in folders]
    facts |= {"k": len(names), "chosen": names, "campaign": campaign.resolve().name}
    return Choice(folders=folders, selection=facts)


def members_of(
    campaign: Path | list[Path],
    out: Path,
    top_k: int | None,
    quiet: bool,
    *,
    train: bool,
    seeds: int,
    epochs: int | None,
    workers: Workers | None,
    from_front: bool = False,
    at_most: Mapping[str, float] = MappingProxyType({}),
) -> Choice:
    """Return the best trials, trained anew if asked, or the given runs; InputError for options without meaning.

    ``seeds`` are runs of every configuration: 0 is one, and none without ``train`` or ``epochs``.
    """
    options: dict[str, Any] = {"--top-k": top_k, "--train": train, "--final-seeds": seeds, "--epochs": epochs}
    options |= {"--workers": workers, "--from-front": from_front, "--at-most": at_most}
    if top_k is not None and top_k < 1:
        raise InputError(f"top-k = {top_k} chooses no trial; write 1 or more")
    if isinstance(campaign, list):
        for name in (name for name, value in options.items() if value):
            problem = f"{name} has no meaning for given runs, which all become members as they are"
            raise InputError(f"{problem}; leave it out, or give the campaign instead of its runs")
        return Choice(folders=campaign)
    if at_most and not from_front:
        raise InputError("--at-most bounds the trials of a front; add --from-front")
    if from_front and (train or seeds or epochs):
        raise InputError(
            "--from-front takes finished trials as they are; leave --train, --final-seeds and --epochs out"
        )
    if from_front:
        return front_of_campaign(campaign, top_k, at_most)
    if train or seeds or epochs:
        return trained_trials(campaign, out, top_k or 5, max(1, seeds), epochs, workers, quiet)
    if workers is not None:
        raise InputError("workers train, and nothing is trained anew here; leave them out, or add --train")
    return best_trials(campaign, top_k or 5)


def trained_trials(
    campaign: Path, out: Path, top_k: int, seeds: int, epochs: int | None, workers: Workers | None, quiet: bool
) -> Choice:
    """Train the best configurations in ``OUT.training``; return their runs.

    Every run has a seed of its own. A call that was interrupted is continued by the same call. Interrupted where a signal, or
    OutOfWalltime where the end of the allocation, comes before the end.
    """
    choice, folder = best_trials(campaign, top_k, finished=False), out.with_name(f"{out.name}.training")
    runs = given_runs(choice.folders, campaign, seeds=seeds, epochs=epochs)
    with CampaignView(folder, quiet=quiet) as view:
        search = open_campaign(campaign).search
        status = run_final(runs, folder, like=search, workers=workers, on_event=view)
    if status.status != "finished":
        kind = OutOfWalltime if status.status == "walltime" else Interrupted
        raise kind(f"{status.trials['finished']} of {len(runs)} final trainings are done; the same command continues")
    return Choice(
        folders=[trial_folder(folder, number) for number in range(len(runs))],
        selection={**choice.selection, "final_seeds": seeds, **({"final_epochs": epochs} if epochs else {})},
    )
