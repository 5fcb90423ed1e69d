"""The training domain: detectors with thresholds, and scores of graphs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from safetensors.numpy import save

from hydragnn.ensemble.domain.detector import Detector
from hydragnn.ensemble.domain.limits import Limits
from hydragnn.ensemble.domain.view import Array, GraphView

FILE = "domain.safetensors"

WITHOUT_DEGREE = ("kinds", "composition")
"""Detectors that say that a graph consists of something else, which says little of how wrong members are about it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DomainScores:
    """Scores and reasons of some graphs."""

    scores: Mapping[str, Float[Array, " graphs"]]
    """By detector: 0 is usual, above 1 foreign."""
    reasons: tuple[str, ...]
    """What is foreign about each graph; empty where nothing is."""

    def spread_over(self, rows: Any, graphs: int) -> "DomainScores":
        """Return the scores as rows of more graphs; NaN for the others."""
        reasons = np.full(graphs, "", dtype=object)
        reasons[rows] = self.reasons
        scores = {name: np.full(graphs, np.nan) for name in self.scores}
        for name, values in self.scores.items():
            scores[name][rows] = values
        return DomainScores(scores=scores, reasons=tuple(reasons.tolist()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """Detectors and the limits of their channels; without detectors nothing is foreign."""

    detectors: tuple[Detector, ...] = ()
    limits: Limits | None = None
    scale: float = 1.0

    version: ClassVar[int] = 1

    @cached_property
    def file_content(self) -> bytes:
        """All tensors."""
        tensors = {
            f"{detector.name}/{name}": np.ascontiguousarray(values, dtype=np.float64)
            for detector in self.detectors
            for name, values in detector.tensors().items()
        }
        return save(tensors) if self.detectors else b""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; with the tensors ``domain_from_json`` gives the same domain back."""
        of_limits = {"usual": self.limits.usual.tolist(), "limit": self.limits.limit.tolist()} if self.limits else {}
        return {
            "version": self.version,
            "scale": self.scale,
            "detectors": [{"name": detector.name, **detector.settings()} for detector in self.detectors],
            "sha256": hashlib.sha256(self.file_content).hexdigest() if self.file_content else "",
            **of_limits,
        }

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Values of all detectors, side by side."""
        return values_of(self.detectors, view)

    def scores(self, view: GraphView) -> DomainScores:
        """Return the largest score per detector and graph, with reasons."""
        if self.limits is None:
            return DomainScores(scores={}, reasons=("",) * len(view))
        values = self.values(view)
        scores = self.limits.scores(values)
        reasons: list[list[tuple[float, str]]] = [[] for _ in range(len(view))]
        of_detectors = dict(zip((one.name for one in self.detectors), self.largest(scores).T))
        first = 0
        for detector in self.detectors:
            own = slice(first, first + len(detector.channels))
            for graph in np.flatnonzero(of_detectors[detector.name] > 1).tolist():
                channel = int(scores[graph, own].argmax())
                says = detector.reason(view, graph, channel, float(values[graph, own][channel]))
                score = float(of_detectors[detector.name][graph])
                reasons[graph].append((score, f"{detector.name}: {says} (score {score:.3g})"))
            first = own.stop
        return DomainScores(scores=of_detectors, reasons=tuple(_joined(of_graph) for of_graph in reasons))

    def largest(self, scores: Float[Array, "graphs channels"]) -> Float[Array, "graphs detectors"]:
        """Of the scores of all channels the largest of each detector."""
        ends = np.cumsum([0, *(len(detector.channels) for detector in self.detectors)])
        columns = [scores[:, first:last].max(axis=1, initial=0.0) for first, last in pairwise(ends)]
        return np.stack([*columns, np.zeros(len(scores))], axis=1)[:, :-1]


def joint_score(scores: Mapping[str, Float[Array, " graphs"]], graphs: int) -> Float[Array, " graphs"]:
    """Return one score from those of all detectors; NaN where nothing is known.

    Up to 1 the largest; of a graph outside 1 plus the mean of log(1 + score), in which detectors ``WITHOUT_DEGREE`` count 1 at most.

    >>> joint_score({"kinds": np.array([0.0, 10.0]), "spread": np.array([0.4, 1.0])}, 2).round(3)
    array([0.4  , 1.693])
    """
    largest: Float[Array, " graphs"] = np.fmax.reduce([np.full(graphs, np.nan), *scores.values()])
    counted = [np.minimum(one, 1.0) if name in WITHOUT_DEGREE else one for name, one in scores.items()]
    beyond = np.log1p(np.nan_to_num(counted)).mean(axis=0) if counted else 0.0
    return np.where(largest > 1, 1 + beyond, largest)


def values_of(detectors: Sequence[Detector], view: GraphView) -> Float[Array, "graphs channels"]:
    """Values of these detectors, side by side."""
    columns = [detector.values(view) for detector in detectors]
    return np.concatenate([np.zeros((len(view), 0)), *columns], axis=1)


def _joined(reasons: Sequence[tuple[float, str]]) -> str:
    """Reasons, the weightiest first."""
    return "; ".join(says for _, says in sorted(reasons, key=lambda one: -one[0]))
