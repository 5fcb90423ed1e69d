"""The training domain: detectors with thresholds, scores of graphs, and its file."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hydragnn.base.errors import InputError
from hydragnn.base.files import file_errors
from hydragnn.base.limits import check_readable
from hydragnn.ensemble.domain.detector import Array, Detector, GraphView, Stored
from hydragnn.ensemble.domain.doubts import Latent, Spread
from hydragnn.ensemble.domain.kinds import Contacts, Kinds, OpenReferences, Statistics
from hydragnn.ensemble.domain.rarity import Rarity
from hydragnn.graphs.field import Field

FILE = "domain.safetensors"
RARITY, NODES = "rarity", "nodes"
"""Places of usual values and held-out scores, of graphs and of nodes, among tensors; no detector has such a name."""

_ALL: tuple[type[Detector], ...] = (Kinds, Contacts, Statistics, OpenReferences, Latent, Spread)
DETECTORS: Mapping[str, type[Detector]] = {one.name: one for one in _ALL}

OLD: Mapping[str, tuple[type[Detector] | None, int]] = {
    "kinds": (Kinds, 0),
    "inputs": (None, 0),
    "neighbourhoods": (Contacts, 3),
    "composition": (None, 1),
    "structure": (None, 1),
}
"""Detectors of version 1 that are here, and channels, of which the last are here; 0 for one of each field. Those of members have other values."""
LARGEST_DOUBT = 100.0
"""Logarithm of the largest excess of doubts, so that deviations stay finite."""
REASONS = 3
"""Detectors that a reason names at most."""
CONCERNED = 0.5
"""Share of the largest excess from which a detector is a reason as well."""

Kind = TypeVar("Kind", bound=Detector)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DomainScores:
    """Scores and reasons of some graphs."""

    scores: Mapping[str, Float[Array, " graphs"]]
    """By detector: 0 is usual, and one held-out graph in twenty exceeds 1 in a channel; NaN where unknown."""
    distances: Float[Array, "graphs three"]
    """P-values (``Rarity.p_values``) and two logarithms, by which uncertainties grow; NaN where unknown.

    How far members' doubts exceed the median of held-out graphs, as root mean squares over nodes or edges, mean of targets; and the distance from
    similar graphs over the usual one. 0 where they are not beyond, and without such detectors.
    """
    reasons: tuple[str, ...]
    """Reason of each flagged graph, or the detectors that see it; empty for others."""
    node_p_values: Float[Array, " nodes"] | None = None
    """The same of every node among nodes; None where they are not known."""

    @property
    def p_values(self) -> Float[Array, " graphs"]:
        """Return the p-values; NaN where unknown."""
        return self.distances[:, 0]

    def spread_over(self, graphs: Bool[np.ndarray, " all"], nodes: Bool[np.ndarray, " all_nodes"]) -> "DomainScores":
        """Return the scores as rows of more graphs, NaN for others."""
        reasons = np.full(len(graphs), "", dtype=object)
        reasons[graphs] = self.reasons
        return DomainScores(
            scores={name: _as_rows(values, graphs) for name, values in self.scores.items()},
            distances=_as_rows(self.distances, graphs),
            reasons=tuple(reasons.tolist()),
            node_p_values=None if self.node_p_values is None else _as_rows(self.node_p_values, nodes),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """Detectors and the rarity of their values; without detectors nothing is foreign."""

    detectors: tuple[Detector, ...] = ()
    rarity: Rarity | None = None
    of_nodes: Rarity | None = None
    """Rarity of nodes; None in ensembles of version 0.2."""
    scale: float = 1.0
    expected_alarms: float | None = None
    """Share of graphs like held-out ones that is flagged; None in one that was read."""

    version: ClassVar[int] = 5
    """Version 1 had a threshold per channel in place of scores of held-out graphs; both had more detectors."""

    @cached_property
    def file_content(self) -> bytes:
        """Return all tensors as bytes of a file."""
        tensors = {
            f"{detector.name}/{name}": np.ascontiguousarray(values, dtype=np.float64)
            for detector in self.detectors
            for name, values in detector.tensors().items()
        }
        for place, rarity in ((RARITY, self.rarity), (NODES, self.of_nodes)):
            if rarity is not None:
                tensors |= {f"{place}/{name}": getattr(rarity, name) for name in ("usual", "unit", "held_out")}
        return save(tensors) if self.detectors else b""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, which ``domain_from_json`` reads with the tensors."""
        return {
            "version": self.version,
            "scale": self.scale,
            "detectors": [{"name": detector.name, **detector.settings()} for detector in self.detectors],
            "sha256": hashlib.sha256(self.file_content).hexdigest() if self.file_content else "",
            **({"false_alarms": self.rarity.false_alarms} if self.rarity else {}),
        }

    def scores(self, view: GraphView) -> DomainScores:
        """Return the largest excess per detector and graph, p-values and reasons."""
        values = values_of(self.detectors, view)
        result = self.scores_of_values(values)
        if self.rarity is None:
            return result
        excesses, ends = self.rarity.standardised(values), self._ends
        reasons = [""] * len(view)
        for graph in np.flatnonzero(np.array(result.reasons, dtype=object) != "").tolist():
            says = []
            for name in result.reasons[graph].split("; "):
                number = [detector.name for detector in self.detectors].index(name)
                own = slice(ends[number], ends[number + 1])
                channel = int(excesses[graph, own].argmax())
                value = float(values[graph, own][channel])
                says.append(f"{name}: {self.detectors[number].reason(view, graph, channel, value)}")
            reasons[graph] = "; ".join(says)
        p_values = None
        if self.of_nodes is not None:
            values = node_values_of(self.detectors, view)
            p_values = self.of_nodes.p_values(self.of_nodes.standardised(values), len(self.rarity.held_out))
            p_values = np.where(np.isnan(values).all(axis=1), np.nan, p_values)
        return replace(result, reasons=tuple(reasons), node_p_values=p_values)

    def scores_of_values(self, values: Float[Array, "graphs channels"]) -> DomainScores:
        """Return scores for values of channels; reasons are names of detectors."""
        valid = ~np.isnan(values).all(axis=1)
        if self.rarity is None:
            return DomainScores(scores={}, distances=np.full((len(values), 3), np.nan), reasons=("",) * len(values))
        excesses, names = self.rarity.standardised(values), [detector.name for detector in self.detectors]
        largest = np.stack([excesses[:, a:b].max(axis=1, initial=0.0) for a, b in pairwise(self._ends)], axis=1)
        reasons = [""] * len(values)
        for graph in np.flatnonzero(valid & self.rarity.outside(excesses)).tolist():
            order = np.argsort(-largest[graph], kind="stable")[:REASONS]
            reasons[graph] = "; ".join(
                names[n] for n in order.tolist() if largest[graph, n] >= CONCERNED * largest[graph].max()
            )
        spread = [
            first + n for first, one in self._of_kind(Spread) for n, (_, column) in enumerate(one.columns) if column
        ]
        beyond = excesses * self.rarity.unit
        distances = [self.rarity.p_values(excesses)]
        for columns in (spread, [first + 1 for first, _ in self._of_kind(Statistics)]):
            own = beyond[:, columns].clip(0.0, LARGEST_DOUBT).mean(axis=1) if columns else np.zeros(len(values))
            distances.append(own)
        return DomainScores(
            scores={name: np.where(valid, column, np.nan) for name, column in zip(names, largest.T)},
            distances=np.where(valid, distances, np.nan).T,
            reasons=tuple(reasons),
        )

    def _of_kind(self, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
        """Yield the detectors of a kind, each after its first channel."""
        return ((first, one) for one, first in zip(self.detectors, self._ends) if isinstance(one, kind))

    def usual_doubt(self, target: str) -> float:
        """Return the median doubt of held-out graphs; NaN if unknown."""
        for first, spread in self._of_kind(Spread):
            if self.rarity is not None and target in spread.of_nodes:
                return float(np.exp(self.rarity.usual[first + spread.columns.index((target, 1))]))
        return math.nan

    @property
    def _ends(self) -> list[int]:
        """Return the first channel of every detector, and their number."""
        return [0, *np.cumsum([len(detector.channels) for detector in self.detectors]).tolist()]


def _as_rows(values: Float[Array, "some ..."], rows: Bool[np.ndarray, " all"]) -> Float[Array, "all ..."]:
    result = np.full((len(rows), *values.shape[1:]), np.nan)
    result[rows] = values
    return result


def values_of(detectors: Sequence[Detector], view: GraphView) -> Float[Array, "graphs channels"]:
    """Return values of these detectors, side by side."""
    return np.concatenate([np.zeros((len(view), 0)), *(one.values(view) for one in detectors)], axis=1)


def node_values_of(detectors: Sequence[Detector], view: GraphView) -> Float[Array, "nodes channels"]:
    """Return values of nodes by these detectors, side by side."""
    return np.concatenate([one.node_values(view) for one in detectors], axis=1)


def domain_from_json(value: Mapping[str, Any], folder: Path, fields: Mapping[str, Field]) -> Domain:
    """Return the domain that ``to_json`` wrote; InputError on anything else.

    ``fields`` are inputs of members by name and their predictions by target.
    """
    try:
        tensors = arrays_in(folder / FILE, value["sha256"]) if value["sha256"] else {}
        current, table = value["version"] == Domain.version, DETECTORS
        if not current:
            table = {name: kind for name, (kind, _) in OLD.items() if kind is not None}
        detectors = tuple(
            table[one["name"]].load(one, Stored(tensors=_own(tensors, one["name"]), fields=fields))
            for one in value["detectors"]
            if current or one["name"] in table
        )
        if not detectors:
            return Domain()
        channels = sum(len(detector.channels) for detector in detectors)
        rarity = _rarity(value, _own(tensors, RARITY)) if current else _old_rarity(value, detectors)
        of_nodes = _rarity(value, _own(tensors, NODES)) if current else None
        node_channels = sum(len(detector.node_channels) for detector in detectors)
        for one, count in ((rarity, channels), (of_nodes, node_channels)):
            if one is not None and (one.usual.shape != (count,) or one.unit.shape != (count,)):
                raise ValueError(f"{len(one.usual)} usual values and {len(one.unit)} units of {count} channels")
        scale = float(value["scale"])
        if not 0 < scale < math.inf:
            raise ValueError(f"the length {scale} is none")
        return Domain(detectors=detectors, rarity=rarity, of_nodes=of_nodes, scale=scale)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"the training domain is damaged ({error}); build the ensemble anew") from error


def _rarity(value: Mapping[str, Any], own: Mapping[str, Array]) -> Rarity:
    """Return the rarity in these tensors; ValueError where they are none."""
    false_alarms = float(value["false_alarms"])
    usual, unit, held_out = own["usual"], own["unit"], own["held_out"]
    arrays = (usual, unit, held_out)
    finite = all(one.ndim == 1 and one.dtype == np.float64 and np.isfinite(one).all() for one in arrays)
    if not finite or not (unit > 0).all() or not (np.diff(held_out) >= 0).all() or not 0 < false_alarms < 1:
        raise ValueError("scores of held-out graphs do not ascend, or units are not above 0")
    return Rarity(usual=usual, unit=unit, held_out=held_out, false_alarms=false_alarms)


def _old_rarity(value: Mapping[str, Any], detectors: Sequence[Detector]) -> Rarity:
    """Return thresholds of version 1 as units, for these detectors."""
    waiting, first = list(detectors), 0
    rows: list[int] = []
    for one in value["detectors"]:
        kind, channels = OLD.get(one["name"], (None, 0))
        end = first + (channels or len(one.get("fields", ())))
        rows += range(end - len(waiting.pop(0).channels), end) if kind else ()
        first = end
    usual, limit = (np.array([value[name][row] for row in rows], dtype=np.float64) for name in ("usual", "limit"))
    if not np.isfinite([*usual, *limit]).all() or not (limit > usual).all():
        raise ValueError(f"limits {limit.tolist()} above {usual.tolist()}")
    return Rarity(usual=usual, unit=limit - usual, held_out=np.zeros(0))


def _own(tensors: Mapping[str, Array], detector: str) -> dict[str, Array]:
    start = f"{detector}/"
    return {name.removeprefix(start): values for name, values in tensors.items() if name.startswith(start)}


def arrays_in(path: Path, expected: str) -> dict[str, Array]:
    """Return the arrays of a safetensors file; InputError unless it has this SHA-256."""
    check_readable(path)
    with file_errors(f"cannot read {path}", "copy the whole folder again"):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(f"{path} differs from what was saved; copy the whole folder again")
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # also numbers of a type that numpy has not
        raise InputError(f"{path} is damaged ({error}); copy the whole folder again") from error
