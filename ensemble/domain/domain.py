"""The training domain: detectors with thresholds, scores of graphs, and its file."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_regular
from hydragnn.ensemble.domain.detector import Detector, Stored
from hydragnn.ensemble.domain.doubts import Latent, Spread
from hydragnn.ensemble.domain.geometry import Neighbourhoods, Structure
from hydragnn.ensemble.domain.inputs import Inputs
from hydragnn.ensemble.domain.kinds import Composition, Kinds
from hydragnn.ensemble.domain.limits import Limits
from hydragnn.ensemble.domain.view import Array, GraphView
from hydragnn.graphs.field import Field

FILE = "domain.safetensors"

DETECTORS: Mapping[str, type[Detector]] = {
    one.name: one for one in (Kinds, Inputs, Composition, Neighbourhoods, Structure, Latent, Spread)
}

WITHOUT_DEGREE = ("kinds", "composition")
"""Detectors of graphs that consist of something else, which means little for the errors of members."""


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
        """Return all tensors as bytes of a file."""
        tensors = {
            f"{detector.name}/{name}": np.ascontiguousarray(values, dtype=np.float64)
            for detector in self.detectors
            for name, values in detector.tensors().items()
        }
        return save(tensors) if self.detectors else b""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, which ``domain_from_json`` reads with the tensors."""
        of_limits = {"usual": self.limits.usual.tolist(), "limit": self.limits.limit.tolist()} if self.limits else {}
        return {
            "version": self.version,
            "scale": self.scale,
            "detectors": [{"name": detector.name, **detector.settings()} for detector in self.detectors],
            "sha256": hashlib.sha256(self.file_content).hexdigest() if self.file_content else "",
            **of_limits,
        }

    def scores(self, view: GraphView) -> DomainScores:
        """Return the largest score per detector and graph, with reasons."""
        if self.limits is None:
            return DomainScores(scores={}, reasons=("",) * len(view))
        values = values_of(self.detectors, view)
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
        joined = ("; ".join(says for _, says in sorted(some, key=lambda one: -one[0])) for some in reasons)
        return DomainScores(scores=of_detectors, reasons=tuple(joined))

    def largest(self, scores: Float[Array, "graphs channels"]) -> Float[Array, "graphs detectors"]:
        """Return the largest score of each detector."""
        ends = np.cumsum([0, *(len(detector.channels) for detector in self.detectors)])
        columns = [scores[:, first:last].max(axis=1, initial=0.0) for first, last in pairwise(ends)]
        return np.stack([*columns, np.zeros(len(scores))], axis=1)[:, :-1]


def joint_score(scores: Mapping[str, Float[Array, " graphs"]], graphs: int) -> Float[Array, " graphs"]:
    """Return one score from those of all detectors; NaN if unknown.

    Up to 1 the largest; of a graph outside 1 plus the mean of log(1 + score), in which detectors ``WITHOUT_DEGREE`` count 1 at most.

    >>> joint_score({"kinds": np.array([0.0, 10.0]), "spread": np.array([0.4, 1.0])}, 2).round(3)
    array([0.4  , 1.693])
    """
    largest: Float[Array, " graphs"] = np.fmax.reduce([np.full(graphs, np.nan), *scores.values()])
    counted = [np.minimum(one, 1.0) if name in WITHOUT_DEGREE else one for name, one in scores.items()]
    beyond = np.log1p(np.nan_to_num(counted)).mean(axis=0) if counted else 0.0
    return np.where(largest > 1, 1 + beyond, largest)


def values_of(detectors: Sequence[Detector], view: GraphView) -> Float[Array, "graphs channels"]:
    """Return values of these detectors, side by side."""
    columns = [detector.values(view) for detector in detectors]
    return np.concatenate([np.zeros((len(view), 0)), *columns], axis=1)


def domain_from_json(value: Mapping[str, Any], folder: Path, fields: Mapping[str, Field], dim: int) -> Domain:
    """Return the domain that ``to_json`` wrote; InputError on anything else.

    ``fields`` are inputs of members by name and their predictions by target; ``dim`` is the dimension of graphs.
    """
    try:
        tensors = _tensors(folder / FILE, value["sha256"]) if value["sha256"] else {}
        detectors = tuple(
            DETECTORS[one["name"]].load(one, Stored(tensors=_own(tensors, one["name"]), fields=fields, dim=dim))
            for one in value["detectors"]
        )
        if not detectors:
            return Domain()
        channels = sum(len(detector.channels) for detector in detectors)
        usual, limit = (np.array(value[name], dtype=np.float64) for name in ("usual", "limit"))
        finite = np.isfinite([*usual.ravel(), *limit.ravel()]).all()
        if usual.shape != (channels,) or limit.shape != (channels,) or not finite or not (limit > usual).all():
            raise ValueError(f"limits {limit.tolist()} above {usual.tolist()} for {channels} channels")
        scale = float(value["scale"])
        if not 0 < scale < math.inf:
            raise ValueError(f"the length {scale} is none")
        return Domain(detectors=detectors, limits=Limits(usual=usual, limit=limit), scale=scale)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"the training domain is damaged ({error}); build the ensemble anew") from error


def _own(tensors: Mapping[str, Array], detector: str) -> dict[str, Array]:
    start = f"{detector}/"
    return {name.removeprefix(start): values for name, values in tensors.items() if name.startswith(start)}


def _tensors(path: Path, expected: str) -> dict[str, Array]:
    check_regular(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; copy the whole folder again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(f"{path} differs from what was saved; copy the whole folder again")
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # also numbers of a type that numpy has not
        raise InputError(f"{path} is damaged ({error}); copy the whole folder again") from error
