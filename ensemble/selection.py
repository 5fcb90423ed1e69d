"""Which runs become members, and with which weights; what they add to each other."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hydragnn.base.errors import InputError, nearest
from hydragnn.ensemble.metrics import gaussian_crps, gaussian_nll
from hydragnn.ensemble.uncertainty import total_variance
from hydragnn.record import FINISHED, RunRecord, read_record

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on

SCORES = {"crps": gaussian_crps, "nll": gaussian_nll}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A run that may become a member."""

    name: str
    folder: Path
    record: RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Chosen candidates by position, best first, with weights that sum to 1, and how the choice went."""

    members: tuple[int, ...]
    weights: tuple[float, ...]
    trace: tuple[float, ...] = ()
    """Score after every pick; lower is better, 1 is the best candidate alone."""


def candidates(folders: Sequence[Path]) -> list[Candidate]:
    """The runs in these folders with their records, named by folder; InputError where a record is missing."""
    return [Candidate(name=folder.resolve().name, folder=folder, record=read_record(folder)) for folder in folders]


def top_k(records: Sequence[Candidate], k: int, by: str | None = "valid/loss") -> list[Candidate]:
    """The k finished runs that did best on validation, best first; ties keep their order.

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
    known = sorted({name for candidate in finished for name in candidate.record.best})
    missing = [candidate.name for candidate in finished if by not in candidate.record.best]
    if missing:
        raise InputError(f"run {missing[0]} has no value {by}; {nearest(by, known)}")
    sign = -1.0 if by.endswith("/r2") else 1.0
    return sorted(finished, key=lambda candidate: sign * candidate.record.best[by])[:k]


class Evidence(ABC):
    """What all candidates predict for the labelled validation rows of one field."""

    @property
    @abstractmethod
    def candidates(self) -> int:
        """How many there are."""

    @abstractmethod
    def score(self, picks: Sequence[int], score: str) -> float:
        """Mean proper score (one of ``SCORES``) of the mixture of these picks, repeated ones counting as often; lower is better."""

    @abstractmethod
    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """How differently the members err: mean pairwise correlation of errors, and what averaging takes off the mean MSE.

        ``ambiguity`` is the weighted variance between members over their mean squared error (Krogh and Vedelsby 1994): 0
        for copies, 0.5 where averaging halves the squared error. The correlation of a member alone is 1.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NumberEvidence(Evidence):
    """What all candidates predict for the labelled validation rows of one numeric field."""

    target: Float[Array, " rows"]
    means: Float[Array, "candidates rows"]
    variances: Float[Array, "candidates rows"]

    @property
    def candidates(self) -> int:
        """How many there are."""
        return len(self.means)

    def score(self, picks: Sequence[int], score: str) -> float:
        """Mean score of the mixture of these picks: normal, with the noise that its spread leaves unexplained."""
        index = list(picks)
        weights = np.full(len(index), 1.0 / len(index))
        moments = total_variance(self.means[index], self.variances[index], weights)
        error = self.target - moments.mean
        unexplained = max(float(np.mean(error**2) - np.mean(moments.variance)), 0.0)
        std = np.sqrt(moments.variance + unexplained)
        tiny = float(np.finfo(np.float64).tiny) ** 0.5
        return float(np.mean(SCORES[score](self.target, moments.mean, np.maximum(std, tiny))))

    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """From the errors of the means."""
        errors = self.means - self.target
        moments = total_variance(self.means, self.variances, weights)
        mean_mse = float(weights @ np.mean(errors**2, axis=1))
        centred = errors - errors.mean(axis=1, keepdims=True)
        norms = np.sqrt((centred**2).sum(axis=1))
        norms[norms == 0] = 1.0
        correlation = (centred @ centred.T) / np.outer(norms, norms)
        pairs = correlation[np.triu_indices(len(errors), k=1)]
        return {
            "error_correlation": float(pairs.mean()) if len(pairs) else 1.0,
            "ambiguity": float(np.mean(moments.epistemic)) / mean_mse if mean_mse > 0 else 0.0,
        }


def greedy_selection(
    evidence: Mapping[str, Evidence],
    size: int,
    *,
    score: str = "crps",
    costs: Sequence[float] | None = None,
    price: float = 0.0,
) -> Selection:
    """Forward selection with replacement on a proper score, never worse than the best candidate alone on it.

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
    return _as_selection(best, [value for _, value in trace])


def _as_selection(picks: tuple[int, ...], trace: list[float]) -> Selection:
    """Members by weight, the first pick first among equals."""
    order = sorted(dict.fromkeys(picks), key=lambda c: -picks.count(c))
    return Selection(
        members=tuple(order), weights=tuple(picks.count(c) / len(picks) for c in order), trace=tuple(trace)
    )


def _against(value: float, alone: float, score: str) -> float:
    """A field's score in units that fields can be averaged in: 1 is the best candidate alone."""
    if score == "nll":
        return 1.0 + value - alone  # nats have no scale, and may be negative
    return value / alone if alone > 0 else 1.0 + value
