"""Which finished runs become members, and their last training where it is asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydragnn.config import RunConfig
from hydragnn.datasets import make_split, open_store
from hydragnn.ensemble.build import build_ensemble, distinct_names, evidence_of
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.heard import heard
from hydragnn.ensemble.members import load_run
from hydragnn.ensemble.selection import Candidate, candidates, greedy_selection, top_k
from hydragnn.errors import InputError, nearest
from hydragnn.files import read_json
from hydragnn.record import read_record
from hydragnn.training import train

METHODS = ("top-k", "greedy")
POOL = 4
"""Greedy selection looks at this many times the members asked for: the best by validation loss."""


def ensemble_from_runs(
    runs: Sequence[Path],
    out: Path,
    *,
    top_k: int = 5,
    method: str = "top-k",
    by: str | None = None,
    price: float = 0.0,
    final_seeds: int = 0,
    nominal: float = 0.9,
    campaign: Path | None = None,
) -> dict[str, Any]:
    """Choose members among finished runs, train them anew where asked, and build the ensemble; gives its evaluation.

    ``top-k`` takes the best by the validation metric ``by`` with equal weights; ``greedy`` selects on CRPS with ``price`` on
    inference. Without ``by``, runs of a ``campaign`` count as given, best first, since only the campaign knows its objective;
    other runs are compared by ``valid/loss``. With ``final_seeds`` every chosen configuration is trained to its full budget with that many seeds, into
    ``OUT.training``, which an interrupted call continues. InputError where fewer than ``top_k`` runs finished.
    """
    if method not in METHODS:
        raise InputError(f"--method {method}: {nearest(method, list(METHODS))}")
    if out.exists():
        raise InputError(f"{out} exists already; choose another --out or delete it")
    by = by or (None if campaign else "valid/loss")
    known = candidates(runs)
    chosen, weights, story = (_best if method == "top-k" else _greedy)(known, top_k, by, price)
    folders = [candidate.folder for candidate in chosen]
    if final_seeds:
        folders = final_training(folders, out.with_name(out.name + ".training"), seeds=final_seeds)
        weights = [weight / final_seeds for weight in weights for _ in range(final_seeds)]
    selection = {
        "method": method,
        "by": by or "the campaign's objective",
        "k": top_k,
        "candidates": len(known),
        "chosen": [candidate.name for candidate in chosen],
        "final_seeds": final_seeds,
        "campaign": campaign.resolve().name if campaign else "",
        **story,
    }
    return build_ensemble(folders, out, weights=weights, selection=selection, nominal=nominal)


def _best(
    known: Sequence[Candidate], k: int, by: str | None, price: float
) -> tuple[list[Candidate], list[float], dict[str, Any]]:
    return top_k(known, k, by), [1.0 / k] * k, {}


def _greedy(
    known: Sequence[Candidate], k: int, by: str | None, price: float
) -> tuple[list[Candidate], list[float], dict[str, Any]]:
    top_k(known, k, by)  # refuses what cannot be
    finished = sum(candidate.record.status in ("finished", "stopped") for candidate in known)
    pool = top_k(known, min(POOL * k, finished), by)
    members = [load_run(candidate.folder) for candidate in pool]
    together = ensemble_of(members)
    store = open_store(members[0].config.data.store)
    valid = heard(members, store, make_split(store, members[0].config.split).valid, together.needed(store))
    picked = greedy_selection(evidence_of(valid, together.fields), k, costs=valid.seconds, price=price)
    story = {
        "pool": [candidate.name for candidate in pool],
        "trace": list(picked.trace),
        "score": "crps",
        "price": price,
    }
    return [pool[position] for position in picked.members], list(picked.weights), story


def final_training(runs: Sequence[Path], out: Path, *, seeds: int) -> list[Path]:
    """Every run's configuration trained to its full budget with seeds 0, 1, ... into folders of ``out``; continues what is there.

    InputError where a training fails, with its reason.
    """
    folders: list[Path] = []
    for run, name in zip(runs, distinct_names(runs)):
        config = RunConfig.parse(read_json(run / "config.json"), source=str(run / "config.json"))
        for seed in range(seeds):
            folder = out / f"{name}-seed{seed}"
            folders.append(folder)
            if _is_finished(folder):
                continue
            seeded = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
            record = train(seeded, folder, resume=(folder / "config.json").exists())
            if record.status not in ("finished", "stopped"):
                reason = f"{record.failure.kind}: {record.failure.message}" if record.failure else record.status
                raise InputError(
                    f"the final training in {folder} did not finish ({reason}); choose fewer members or other runs"
                )
    return folders


def _is_finished(folder: Path) -> bool:
    return (folder / "record.json").is_file() and read_record(folder).status in ("finished", "stopped")
