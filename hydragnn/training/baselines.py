"""Simple baselines by scikit-learn, on composition and on statistics of inputs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from hydragnn.datasets import Budget, GraphStore, Loader
from hydragnn.datasets.tools import present_graphs
from hydragnn.graphs.batch import GraphBatch, edge_vectors, volumes
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location
from hydragnn.kernels import segment_max, segment_mean, segment_min, segment_sum, segment_variance
from hydragnn.models import Point, Target
from hydragnn.training.metrics import Errors, RunningMoments, target_moments

Array = np.ndarray
BaselineMetrics = dict[str, dict[str, dict[str, float | None]]]
"""Metrics by target and baseline."""

BASELINES: Mapping[str, str] = {
    "composition": "linear in composition",
    "ridge": "ridge on statistics of inputs",
    "boosting": "boosting on statistics of inputs",
}
"""Baselines in words."""

GRAPHS, ITEMS, ROWS = 3_000, 1_000_000, 3_000
"""Most training graphs, nodes and edges in them, and labelled items that a baseline is fitted on."""
FEWEST = 10
"""Labelled items without which nothing is fitted."""
COMPONENTS = 32
"""Components of an input that are used, and classes of it, the most frequent ones."""
BOOSTED = 6
"""Components of a target up to which each is boosted."""
FARTHEST = 10.0
"""Standardised inputs of ridge are cut here, so that a foreign graph does not get any value whatever."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """Numbers about graphs, nodes and edges that no rotation and no numbering changes."""

    inputs: tuple[Field, ...]
    kinds: Mapping[str, Int[Tensor, " kinds"]]
    """The classes of training graphs, by field."""

    def of(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items features"]:
        """Return the features of every graph, node or edge."""
        own = self.own(batch, location)
        if location == "graph":
            counts = torch.stack([batch.counts("node"), batch.counts("edge"), volumes(batch)], dim=1).double()
            ratios = counts[:, 1:] / counts[:, :1].clamp(min=1)
            return torch.cat([own, counts, ratios, self._statistics(batch, "node"), self._statistics(batch, "edge")], 1)
        nodes, of_graph = self.own(batch, "node"), self.own(batch, "graph")[batch.owner(location)]
        if location == "edge":
            return torch.cat([own, nodes[batch.senders], nodes[batch.receivers], of_graph], dim=1)
        received = torch.cat([nodes[batch.senders], self.own(batch, "edge")], dim=1)
        return torch.cat([own, segment_mean(received, batch.receivers, batch.num_nodes), of_graph], dim=1)

    def own(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items features"]:
        """Return inputs, of nodes also the number of neighbours, of edges the length."""
        columns = [invariants(batch[f.name], f, self.kinds.get(f.name)) for f in self.inputs if f.on == location]
        if location == "node":
            columns.append(batch.topology.row_offsets.diff().double()[:, None])
        if location == "edge" and batch.dim:
            columns.append(edge_vectors(batch).double().norm(dim=1, keepdim=True))
        return torch.cat([torch.zeros(batch.num_items(location), 0, dtype=torch.float64), *columns], dim=1)

    def composition(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items species"]:
        """Return the share of every element in a graph, or at a node."""
        if ATOMIC_NUMBERS not in self.kinds or location == "edge":
            return torch.zeros(batch.num_items(location), 0, dtype=torch.float64)
        species = (batch[ATOMIC_NUMBERS].reshape(-1, 1) == self.kinds[ATOMIC_NUMBERS]).double()
        return species if location == "node" else segment_mean(species, batch.owner("node"), batch.num_graphs)

    def _statistics(self, batch: GraphBatch, location: Location) -> Float[Tensor, "graphs features"]:
        """Return sum, mean, standard deviation, smallest and largest of every column."""
        values = self.own(batch, location)
        if not values.shape[1]:
            return torch.zeros(batch.num_graphs, 0, dtype=torch.float64)
        to = (batch.owner(location), batch.num_graphs)
        deviation = segment_variance(values, *to).clamp(min=0).sqrt()
        every = [segment_sum(values, *to), segment_mean(values, *to), deviation]
        return torch.cat([*every, segment_min(values, *to), segment_max(values, *to)], dim=1)


def invariants(values: Tensor, field: Field, kinds: Int[Tensor, " kinds"] | None) -> Float[Tensor, "items features"]:
    """Return columns of a field: numbers, kinds, lengths of vectors, traces and norms of tensors."""
    if kinds is not None:
        return (values.reshape(-1, field.width)[:, :COMPONENTS, None] == kinds).double().flatten(1)
    values = values.double()
    if field.parity == "vector":
        values = values.norm(dim=-1)
    elif field.parity == "tensor":
        trace = values.diagonal(dim1=-2, dim2=-1).sum(-1)
        values = torch.stack([trace, values.flatten(-2).norm(dim=-1)], dim=-1)
    return values.reshape(len(values), math.prod(values.shape[1:]))[:, :COMPONENTS]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TargetBaselines:
    """Fitted baselines of one target; extensive ones are fitted per node."""

    coefficients: Float[Array, "species width"]
    shown: tuple[str, ...]
    """Baselines that say something: composition only where it is not the trivial predictor."""
    mean: Float[Array, " features"]
    scale: Float[Array, " features"]
    """Infinite for features that are constant in training."""
    ridge: Any
    boosting: tuple[Any, ...]
    """One per component."""

    def predict(
        self, features: Float[Array, "items features"], shares: Float[Array, "items species"]
    ) -> dict[str, Float[Array, "items width"]]:
        """Return what each baseline predicts."""
        base = shares @ self.coefficients
        left = {
            "composition": lambda: 0.0,
            "ridge": lambda: self.ridge.predict(self.standardised(features)).reshape(base.shape),
            "boosting": lambda: np.stack([one.predict(features) for one in self.boosting], axis=1),
        }
        return {name: base + left[name]() for name in self.shown}

    def standardised(self, features: Float[Array, "items features"]) -> Float[Array, "items features"]:
        """Return features with mean 0 and deviation 1 in training, cut far outside."""
        return np.clip(np.nan_to_num((features - self.mean) / self.scale), -FARTHEST, FARTHEST)


def fitted_target(
    target: Target,
    features: Float[Array, "rows features"],
    shares: Float[Array, "rows species"],
    values: Float[Array, "rows width"],
) -> TargetBaselines:
    """Fit the baselines of one target; ridge and boosting learn what composition leaves."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    coefficients = np.linalg.lstsq(shares, values, rcond=None)[0]
    left = values - shares @ coefficients
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    scale = np.where(deviation > 1e-6 * np.abs(mean), deviation, np.inf)
    boosted = target.field.width <= BOOSTED
    is_trivial = target.references or shares.shape[1] < 2
    names = (*(() if is_trivial else ("composition",)), "ridge", *(("boosting",) if boosted else ()))
    one = TargetBaselines(
        coefficients=coefficients,
        shown=names,
        mean=mean,
        scale=scale,
        ridge=RidgeCV(alphas=np.logspace(-6, 4, 11), alpha_per_target=True),
        boosting=tuple(
            HistGradientBoostingRegressor(
                max_leaf_nodes=15,
                min_samples_leaf=min(20, max(2, len(values) // 20)),
                early_stopping=False,
                random_state=0,
            ).fit(features, left[:, component])
            for component in range(target.field.width if boosted else 0)
        ),
    )
    one.ridge.fit(one.standardised(features), left)
    return one


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Baselines:
    """Fitted baselines of all targets that have any."""

    features: Features
    targets: tuple[Target, ...]
    fitted: Mapping[str, TargetBaselines]
    """By target."""

    def predict(self, batch: GraphBatch) -> dict[str, dict[str, Point]]:
        """Return predictions by target and baseline, in the units of labels."""
        result: dict[str, dict[str, Point]] = {}
        every: dict[Location, tuple[Array, Array]] = {}
        for target in self.targets:
            at, like = target.field.on, batch[target.field.name]
            if at not in every:
                every[at] = (self.features.of(batch, at).numpy(), self.features.composition(batch, at).numpy())
            size = sizes_of(target, batch)
            predicted = self.fitted[target.name].predict(*every[at])
            means = {name: torch.from_numpy(values * size).view(like.shape) for name, values in predicted.items()}
            result[target.name] = {name: Point(mean=mean) for name, mean in means.items()}
        return result


def sizes_of(target: Target, batch: GraphBatch) -> Float[Array, "items 1"]:
    """Return the nodes of every graph for extensive targets, else ones."""
    counts = batch.counts("node").clamp(min=1) if target.extensive else torch.ones(batch.num_items(target.field.on))
    return counts.double().numpy()[:, None]


def fitted_baselines(
    store: GraphStore, train: NDArray[np.int64], targets: Sequence[Target], inputs: Sequence[str]
) -> Baselines:
    """Fit the baselines of scalar targets on at most ``GRAPHS`` of the graphs ``train``.

    The graphs are drawn with a fixed seed, from those with labels. Vectors, tensors, derivatives of energies and classes have
    no baselines, nor have targets with less than ``FEWEST`` labels.
    """
    numeric = [t for t in targets if t.field.parity == "scalar" and not t.derivative and not t.field.classes]
    fields = {field.name: field for field in store.fields()}
    names = [*dict.fromkeys([*inputs, *((ATOMIC_NUMBERS,) if any(t.references for t in targets) else ())])]
    graphs = np.unique(np.concatenate([np.zeros(0, np.int64), *(_sample(store, train, t) for t in numeric)]))
    batches = list(_batches(store, graphs, [*names, *(target.field.name for target in numeric)]))
    classes = [name for name in names if fields[name].classes and batches]
    kinds = {name: _kinds(torch.cat([batch[name].flatten() for batch in batches])) for name in classes}
    features = Features(inputs=tuple(fields[name] for name in names), kinds=kinds)
    fitted: dict[str, TargetBaselines] = {}
    with threadpool_limits(1):
        for target in numeric:
            rows = _rows(target, features, batches) if batches else ()
            if rows and len(rows[0]) >= FEWEST:
                fitted[target.name] = fitted_target(target, *rows)
    return Baselines(features=features, targets=tuple(t for t in numeric if t.name in fitted), fitted=fitted)


def _sample(store: GraphStore, train: NDArray[np.int64], target: Target) -> NDArray[np.int64]:
    """Return graphs with labels in a random order that is always the same."""
    order = np.random.default_rng(0).permutation(np.sort(train))
    labelled, sizes = order[present_graphs(store, target.field)[order]][:GRAPHS], store.sizes()
    items = np.cumsum(sizes.nodes[labelled] + sizes.edges[labelled])
    return np.asarray(labelled[: max(1, int((items <= ITEMS).sum()))], dtype=np.int64)


def _batches(store: GraphStore, graphs: NDArray[np.int64], fields: Sequence[str]) -> Iterator[GraphBatch]:
    """Yield these graphs in batches of up to 100,000 nodes and a million edges."""
    if len(graphs):
        sizes = store.sizes()
        most = [max(limit, int(of[graphs].max())) for limit, of in ((100_000, sizes.nodes), (ITEMS, sizes.edges))]
        budget = Budget(max_graphs=1024, max_nodes=most[0], max_edges=most[1])
        yield from (
            batch for _, batch in Loader(store, graphs, budget, shuffle=False, fields=dict.fromkeys(fields)).epoch(0)
        )


def _kinds(values: Int[Tensor, " items"]) -> Int[Tensor, " kinds"]:
    """Return the most frequent classes, ascending."""
    kinds, counts = values.unique(return_counts=True)
    return kinds[counts.sort(descending=True, stable=True).indices[:COMPONENTS]].sort().values


def _rows(target: Target, features: Features, batches: Sequence[GraphBatch]) -> tuple[Array, Array, Array]:
    """Return features, shares of species and labels of at most ``ROWS`` labelled items."""
    at, parts = target.field.on, []
    for batch in batches:
        values = batch[target.field.name].double().reshape(-1, target.field.width).numpy() / sizes_of(target, batch)
        present = batch.present(target.field.name)[batch.owner(at)].numpy()
        parts.append((features.of(batch, at).numpy(), features.composition(batch, at).numpy(), values, present))
    columns, shares, values, present = (np.concatenate(part) for part in zip(*parts, strict=True))
    use = np.flatnonzero(present & np.isfinite(columns).all(axis=1) & np.isfinite(values).all(axis=1))
    use = np.sort(np.random.default_rng(0).permutation(use)[:ROWS])
    return columns[use], shares[use], values[use]


def baseline_errors(
    folds: Sequence[tuple[Baselines, NDArray[np.int64]]], store: GraphStore, targets: Sequence[Target]
) -> BaselineMetrics:
    """Return errors of baselines, each on graphs of its own, taken together.

    A baseline that is not fitted in every fold is left out.
    """
    names = {
        target.name: [one for one in BASELINES if all(one in _shown(fold, target) for fold, _ in folds)]
        for target in targets
    }
    some = [target for target in targets if folds and names[target.name]]
    errors = {(t.name, one): Errors([t]) for t in some for one in names[t.name]}
    moments: dict[str, RunningMoments] = {}
    for baselines, graphs in folds if some else ():
        inputs = [field.name for field in baselines.features.inputs]
        for batch in _batches(store, graphs, [*inputs, *(target.field.name for target in baselines.targets)]):
            with threadpool_limits(1):
                predictions = baselines.predict(batch)
            for target in some:
                for one in names[target.name]:
                    errors[target.name, one].add(target, predictions[target.name][one], batch)
            parts = target_moments(some, batch)
            moments = {name: moments[name].merged(part) if moments else part for name, part in parts.items()}
    return {t.name: {one: errors[t.name, one].values(moments)[t.name] for one in names[t.name]} for t in some}


def _shown(baselines: Baselines, target: Target) -> tuple[str, ...]:
    fitted = baselines.fitted.get(target.name)
    return fitted.shown if fitted else ()
