"""Selection of members among finished runs, with weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError, nearest
from hydragnn.datasets import open_store
from hydragnn.ensemble.building.basis import evidence_of
from hydragnn.ensemble.building.build import build_ensemble, check_out, stopping_at_once
from hydragnn.ensemble.building.evaluation import Evaluation
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.domain import FALSE_ALARMS
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.estimates import Evidence
from hydragnn.ensemble.member_outputs import member_outputs
from hydragnn.ensemble.members import load_run
from hydragnn.ensemble.numbers import SCORES
from hydragnn.record import FINISHED, RunRecord, read_record

METHODS = ("top-k", "greedy")
POOL = 4
"""Greedy selection looks at this many times the members asked for: the best by validation loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A run that may become a member."""

    name: str
    folder: Path
    record: RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Positions of selected candidates, best first, with weights that sum to 1."""

    members: tuple[int, ...]
    weights: tuple[float, ...]
    trace: tuple[float, ...] = ()
    """Score after every pick; lower is better, 1 is the best candidate alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Runs that become members, best first, with weights that sum to 1."""

    folders: list[Path]
    weights: list[float]
    selection: dict[str, Any]
    """How they were chosen, for the ensemble's manifest."""


def ensemble_from_runs(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    top_k: int = 5,
    method: str = "top-k",
    by: str | None = None,
    price: float = 0.0,
    nominal: float = 0.9,
    false_alarms: float = FALSE_ALARMS,
    campaign: Path | None = None,
    branch: str = "",
    baselines: Sequence[str] = (),
) -> Evaluation:
    """Choose members as ``select_runs`` does and build the ensemble; return its evaluation."""
    folders = [Path(one) for one in runs]
    out = Path(out)
    check_out(out)
    with stopping_at_once(out) as check:
        choice = select_runs(folders, top_k=top_k, method=method, by=by, price=price, campaign=campaign, branch=branch)
        check()
    return build_ensemble(
        choice.folders,
        out,
        weights=choice.weights,
        by_field=True,
        selection=choice.selection,
        nominal=nominal,
        false_alarms=false_alarms,
        branch=branch,
        baselines=baselines,
    )


def select_runs(
    runs: Sequence[Path],
    *,
    top_k: int = 5,
    method: str = "top-k",
    by: str | None = None,
    price: float = 0.0,
    campaign: Path | None = None,
    branch: str = "",
) -> Choice:
    """Return members among finished runs.

    ``top-k`` takes the best by the validation metric ``by`` with equal weights; ``greedy`` selects on CRPS with ``price`` on
    inference. Without ``by``, runs of a ``campaign`` count as given, best first, since only the campaign knows its objective;
    other runs are compared by ``valid/loss``. InputError where fewer than ``top_k`` runs finished.
    """
    if method not in METHODS:
        raise InputError(f"--method {method}: {nearest(method, list(METHODS))}")
    by = by or (None if campaign else "valid/loss")
    runs_found = candidates(runs)
    selected, weights, story = _selected(runs_found, method, top_k, by, price, branch)
    selection = {
        "method": method,
        "by": by or "the campaign's objective",
        "k": top_k,
        "candidates": len(runs_found),
        "chosen": [candidate.name for candidate in selected],
        "campaign": campaign.resolve().name if campaign else "",
        **story,
    }
    return Choice(folders=[candidate.folder for candidate in selected], weights=weights, selection=selection)


def _selected(
    runs_found: Sequence[Candidate], method: str, k: int, by: str | None, price: float, branch: str
) -> tuple[list[Candidate], list[float], dict[str, Any]]:
    """Return members with weights, and details of a greedy selection."""
    best = top_k(runs_found, k, by)
    if method == "top-k":
        return best, [1.0 / k] * k, {}
    finished = sum(candidate.record.status in FINISHED for candidate in runs_found)
    pool = top_k(runs_found, min(POOL * k, finished), by)
    members = [load_run(candidate.folder, branch=branch) for candidate in pool]
    together = ensemble_of(members)
    store = open_store(members[0].config.data.store)
    valid = member_outputs(members, store, joint_split(members, store).valid, together.needed(store))
    picked = greedy_selection(evidence_of(valid, together.targets), k, costs=valid.seconds, price=price)
    story = {
        "pool": [candidate.name for candidate in pool],
        "trace": list(picked.trace),
        "score": "crps",
        "price": price,
    }
    return [pool[position] for position in picked.members], list(picked.weights), story


def candidates(folders: Sequence[Path]) -> list[Candidate]:
    """Return the runs in these folders, named by folder."""
    return [Candidate(name=folder.resolve().name, folder=folder, record=read_record(folder)) for folder in folders]


def top_k(records: Sequence[Candidate], k: int, by: str | None = "valid/loss") -> list[Candidate]:
    """Return the k best finished runs on validation, best first.

    ``by`` is a name in ``RunRecord.best``: ``valid/loss``, ``valid/energy/mae``, ``valid/energy/r2`` (higher is better).
    The loss compares runs only where they share loss functions and weights; choose a field's error where they do not. None
    takes the order given.
    InputError where fewer than k runs finished, or where none has ``by``.
    """
    finished = [candidate for candidate in records if candidate.record.status in FINISHED]
    if k < 1:
        raise InputError(f"an ensemble of {k} members has no meaning; give a top-k of at least 1")
    if k > len(finished):
        raise InputError(
            f"top-k = {k} exceeds the {len(finished)} finished runs of {len(records)}; lower it or let more runs finish"
        )
    if by is None:
        return finished[:k]
    score_names = sorted({name for candidate in finished for name in candidate.record.best})
    missing = [candidate.name for candidate in finished if by not in candidate.record.best]
    if missing:
        raise InputError(f"run {missing[0]} has no value {by}; {nearest(by, score_names)}")
    sign = -1.0 if by.endswith("/r2") else 1.0
    return sorted(finished, key=lambda candidate: sign * candidate.record.best[by])[:k]


def greedy_selection(
    evidence: Mapping[str, Evidence],
    size: int,
    *,
    score: str = "crps",
    costs: Sequence[float] | None = None,
    price: float = 0.0,
) -> Selection:
    """Select forward with replacement on a proper score (Caruana).

    Caruana et al. 2004, doi:10.1145/1015330.1015432. Starts with the best candidate and adds the one that lowers the
    score most, picks repeating as weights, until ``size`` different ones and three picks for each are there; the best
    prefix is kept. The score is the mean over fields of CRPS (or NLL) of the mixture, against the best candidate's.
    ``price`` is the relative improvement that as much inference as the mean candidate's must bring (0.01: 1 %).
    """
    if score not in SCORES:
        raise InputError(f"selection score {score}: {nearest(score, list(SCORES))}")
    number = next(iter(evidence.values())).candidates
    if not 1 <= size <= number:
        raise InputError(f"a selection of {size} from {number} finished runs is impossible; choose 1 to {number}")
    relative = np.array(costs if costs is not None else [1.0] * number, dtype=np.float64)
    relative = relative / relative.mean()
    best_alone = [min(e.score((c,), score) for c in range(number)) for e in evidence.values()]

    def total(picks: tuple[int, ...]) -> float:
        scores = [e.score(picks, score) for e in evidence.values()]
        against = [_against(value, alone, score) for value, alone in zip(scores, best_alone)]
        return float(np.mean(against)) + price * float(relative[list(set(picks))].sum())

    trace: list[tuple[tuple[int, ...], float]] = []
    picks: tuple[int, ...] = ()
    while len(picks) < 3 * size:
        allowed = range(number) if len(set(picks)) < size else sorted(set(picks))
        picks = min(((*picks, c) for c in allowed), key=total)
        trace.append((picks, total(picks)))
    best, _ = min(trace, key=lambda step: step[1])
    # by weight, the first pick first among equals
    members = tuple(sorted(dict.fromkeys(best), key=lambda c: -best.count(c)))
    weights = tuple(best.count(c) / len(best) for c in members)
    return Selection(members=members, weights=weights, trace=tuple(value for _, value in trace))


def _against(value: float, alone: float, score: str) -> float:
    """Return a field's score relative to the best candidate alone."""
    if score == "nll":
        return 1.0 + value - alone  # nats have no scale, and may be negative
    return value / alone if alone > 0 else 1.0 + value
