"""Choice of members among finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, nearest
from hydragnn.datasets import open_store
from hydragnn.ensemble.building.basis import evidence_of
from hydragnn.ensemble.building.build import build_ensemble, check_out, stopping_at_once
from hydragnn.ensemble.building.evaluation import Evaluation
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.building.selection import Candidate, candidates, greedy_selection, top_k
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.member_outputs import member_outputs
from hydragnn.ensemble.members import load_run
from hydragnn.record import FINISHED

METHODS = ("top-k", "greedy")
POOL = 4
"""Greedy selection looks at this many times the members asked for: the best by validation loss."""


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
    campaign: Path | None = None,
    branch: str = "",
) -> Evaluation:
    """Choose members as ``select_runs`` does and build the ensemble; return its evaluation."""
    folders = [Path(one) for one in runs]
    out = Path(out)
    check_out(out)
    with stopping_at_once(out) as check:
        choice = select_runs(folders, top_k=top_k, method=method, by=by, price=price, campaign=campaign, branch=branch)
        check()
    return build_ensemble(
        choice.folders, out, weights=choice.weights, selection=choice.selection, nominal=nominal, branch=branch
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
    """Members among finished runs.

    ``top-k`` takes the best by the validation metric ``by`` with equal weights; ``greedy`` selects on CRPS with ``price`` on
    inference. Without ``by``, runs of a ``campaign`` count as given, best first, since only the campaign knows its objective;
    other runs are compared by ``valid/loss``. InputError where fewer than ``top_k`` runs finished.
    """
    if method not in METHODS:
        raise InputError(f"--method {method}: {nearest(method, list(METHODS))}")
    by = by or (None if campaign else "valid/loss")
    runs_found = candidates(runs)
    selected, weights, story = (_best if method == "top-k" else _greedy)(runs_found, top_k, by, price, branch)
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


def _best(
    runs_found: Sequence[Candidate], k: int, by: str | None, price: float, branch: str
) -> tuple[list[Candidate], list[float], dict[str, Any]]:
    return top_k(runs_found, k, by), [1.0 / k] * k, {}


def _greedy(
    runs_found: Sequence[Candidate], k: int, by: str | None, price: float, branch: str
) -> tuple[list[Candidate], list[float], dict[str, Any]]:
    top_k(runs_found, k, by)  # refuses what cannot be
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
