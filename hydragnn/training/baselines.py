"""Simple baselines by scikit-learn, on composition and on statistics of inputs."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as member
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt16
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget, GraphStore, Loader
from hydragnn.datasets.tools import present_graphs
from hydragnn.graphs.batch import GraphBatch, edge_vectors, volumes
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location
from hydragnn.kernels import segment_mean, segment_statistics, segment_sum
from hydragnn.models import Categorical, Distribution, Point, Target
from hydragnn.training.evaluate import errors_of_folds

Array = np.ndarray
Predictor = Callable[[Array, Array], Array]
"""From features and shares of species to values, or to probabilities of classes."""
BaselineMetrics = dict[str, dict[str, dict[str, float | None]]]

BASELINES: Mapping[str, str] = {
    "composition": "linear in composition",
    "ridge": "ridge on statistics of inputs",
    "logistic": "logistic regression on statistics of inputs",
    "mixture": "ridge on means by volume and their products",
    "boosting": "boosting on statistics of inputs",
}
GRAPHS, ITEMS, ROWS, FEWEST = 3_000, 1_000_000, 3_000, 10
"""Most training graphs, nodes and edges in them, and labelled items that a baseline is fitted on; fewest items."""
COMPONENTS, BOOSTED, MULTIPLIED = 32, 6, 12
"""Most components and classes of an input, components of a boosted target, and means by volume that are multiplied."""
BOOSTED_CLASSES, RAREST = 12, 1e-6
"""Most classes of a boosted target, and the smallest probability of a class, also of one that training lacks."""
VOLUME = "volume"
"""Node input that weights means: the volumes of grains or cells."""
FARTHEST = 10.0
"""Standardised inputs of ridge are cut here, so that no foreign graph gets an absurd value."""
AT_ONCE = 1_000
"""Rows that trees decide about at once, which bounds their memory."""
TREES, LEAVES, EVERY = 100, 16, np.uint16(2**16 - 1)
"""Boosted trees of a component, most leaves of each, and all of them as bits."""
LOWEST = np.log2(np.append(1, np.arange(1, 2**16) & -np.arange(1, 2**16))).astype(np.int64)
"""Number of the lowest bit of all sets of leaves; of none the first."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """Numbers about graphs, nodes and edges that no rotation and no numbering changes."""

    inputs: tuple[Field, ...] = ()
    kinds: Mapping[str, Int[Tensor, " kinds"]] = member(default_factory=dict)
    """The classes of training graphs, by field."""

    def of(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items features"]:
        """Return the features of every graph, node or edge."""
        own = self.own(batch, location)
        if location == "graph":
            counts = torch.stack([batch.counts("node"), batch.counts("edge"), volumes(batch)], dim=1).double()
            ratios = counts[:, 1:] / counts[:, :1].clamp(min=1)
            statistics = self._statistics(batch, "node"), self._statistics(batch, "edge")
            return torch.cat([own, counts, ratios, *statistics, self.mixture(batch)], 1)
        nodes, of_graph = self.own(batch, "node"), self.own(batch, "graph")[batch.owner(location)]
        if location == "edge":
            return torch.cat([own, nodes[batch.senders], nodes[batch.receivers], of_graph], dim=1)
        received = torch.cat([nodes[batch.senders], self.own(batch, "edge")], dim=1)
        return torch.cat([own, segment_mean(received, batch.receivers, batch.num_nodes), of_graph], dim=1)

    def arrays(self, batch: GraphBatch, location: Location) -> tuple[Array, Array]:
        """Return features and composition of every graph, node or edge."""
        features = self.of(batch, location)
        if features.requires_grad:
            raise InputError("a simple predictor is a member, and has no gradients by inputs; take a run of it")
        return np.nan_to_num(features.numpy()), self.composition(batch, location).numpy()

    def own(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items features"]:
        """Return inputs, with the neighbours of nodes and the lengths of edges."""
        columns = [invariants(batch[f.name], f, self.kinds.get(f.name)) for f in self.inputs if f.on == location]
        if location == "node":
            columns.append(batch.topology.row_offsets.diff().double()[:, None])
        if location == "edge" and batch.dim:
            columns.append(edge_vectors(batch).double().norm(dim=1, keepdim=True))
        return torch.cat([torch.zeros(batch.num_items(location), 0, dtype=torch.float64), *columns], dim=1)

    def composition(self, batch: GraphBatch, location: Location) -> Float[Tensor, "items species"]:
        """Return the share of every element in graphs, or at nodes."""
        if ATOMIC_NUMBERS not in self.kinds or location == "edge":
            return torch.zeros(batch.num_items(location), 0, dtype=torch.float64)
        species = (batch[ATOMIC_NUMBERS].reshape(-1, 1) == self.kinds[ATOMIC_NUMBERS]).double()
        return species if location == "node" else segment_mean(species, batch.owner("node"), batch.num_graphs)

    def mixture(self, batch: GraphBatch) -> Float[Tensor, "graphs features"]:
        """Return means of node inputs by volume, and inputs of graphs."""
        volumes_of = [field for field in self.inputs if field.name == VOLUME and field.on == "node"]
        if not volumes_of or volumes_of[0].width != 1 or volumes_of[0].classes:
            return torch.zeros(batch.num_graphs, 0, dtype=torch.float64)
        parts = [f for f in self.inputs if f.on == "node" and f.name != VOLUME]
        columns = [invariants(batch[f.name], f, self.kinds.get(f.name)) for f in parts]
        volume = batch[VOLUME].double().reshape(-1, 1)
        to = (batch.owner("node"), batch.num_graphs)
        whole = segment_sum(volume, *to)
        means = [segment_sum(volume * values, *to) / whole for values in columns]
        return torch.cat([whole[:, :0], *means, self.own(batch, "graph")], dim=1)

    def _statistics(self, batch: GraphBatch, location: Location) -> Float[Tensor, "graphs features"]:
        """Return sum, mean, standard deviation, smallest and largest of every column."""
        values = self.own(batch, location)
        if not values.shape[1]:
            return torch.zeros(batch.num_graphs, 0, dtype=torch.float64)
        to = (batch.owner(location), batch.num_graphs)
        _, low, high, deviation = segment_statistics(values, *to, floor=0.0)
        return torch.cat([segment_sum(values, *to), segment_mean(values, *to), deviation, low, high], dim=1)


def invariants(values: Tensor, field: Field, kinds: Int[Tensor, " kinds"] | None) -> Float[Tensor, "items features"]:
    """Return columns of a field: numbers, kinds, lengths, traces and norms."""
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
class Linear:
    """Linear predictor, of shares of species and of standardised terms."""

    shares: Float[Array, "species width"]
    first: int = 0
    """First feature among the terms."""
    products: bool = False
    """True where products of two features are terms, too."""
    mean: Float[Array, " terms"]
    scale: Float[Array, " terms"]
    slopes: Float[Array, "terms width"]
    intercept: Float[Array, " width"]

    def __call__(self, features: Float[Array, "rows features"], shares: Float[Array, "rows species"]) -> Array:
        """Return values; InputError for features of other inputs."""
        of_features = terms(features, self.first, products=self.products)
        check_inputs((of_features.shape[1], shares.shape[1]), (len(self.mean), len(self.shares)))
        standard = ((of_features - self.mean) / self.scale).clip(-FARTHEST, FARTHEST)
        return np.asarray(shares @ self.shares + (standard @ self.slopes + self.intercept))


@dataclass(frozen=True, kw_only=True, eq=False)
class Trees:
    """Boosted trees of what composition leaves, as arrays of all their decisions.

    A tree's leaves are bits, the first from the left the lowest. A decision takes the leaves on its left away, and the first that stays
    is the tree's (Lucchese et al. 2015, doi:10.1145/2766462.2767733).
    """

    shares: Float[Array, "species width"]
    features: int
    """Number of features that trees read."""
    tree: Int[Array, " decisions"]
    feature: Int[Array, " decisions"]
    threshold: Float[Array, " decisions"]
    rest: UInt16[Array, " decisions"]
    """Leaves that stay for features above the threshold."""
    value: Float[Array, "trees leaves"]
    """Values of leaves; trees in the order of components."""
    intercept: Float[Array, " width"]

    @cached_property
    def steps(self) -> list[tuple[int, Float[Array, " thresholds"], UInt16[Array, "ranks trees"]]]:
        """Return every feature that decides, its thresholds, and the leaves that stay above so many of them."""
        result = []
        for feature in np.unique(self.feature).tolist():
            own = np.flatnonzero(self.feature == feature)
            own = own[self.threshold[own].argsort()]
            stays = np.full((len(own) + 1, len(self.value)), EVERY)
            stays[np.arange(len(own)) + 1, self.tree[own]] = self.rest[own]
            result.append((feature, self.threshold[own], np.bitwise_and.accumulate(stays)))
        return result

    def __call__(self, features: Float[Array, "rows features"], shares: Float[Array, "rows species"]) -> Array:
        """Return values; InputError for features of other inputs."""
        check_inputs((features.shape[1], shares.shape[1]), (self.features, len(self.shares)))
        values, first_of = shares @ self.shares + self.intercept, LEAVES * np.arange(len(self.value))
        for first in range(0, len(features), AT_ONCE):
            some = features[first : first + AT_ONCE]
            stays = np.full((len(some), len(self.value)), EVERY)
            for feature, thresholds, table in self.steps:
                stays &= table[thresholds.searchsorted(some[:, feature])]
            own = self.value.take(first_of + LOWEST.take(stays))
            values[first : first + AT_ONCE] += own.reshape(len(some), values.shape[1], -1).sum(axis=2)
        return values


def check_inputs(columns: tuple[int, int], fitted: tuple[int, int]) -> None:
    """Raise InputError for other numbers of columns than were fitted."""
    if columns != fitted:
        raise InputError("a simple predictor was fitted on other inputs; build the ensemble again")


def fitted_trees(
    features: Float[Array, "rows features"], rest: Float[Array, "rows width"], shares: Float[Array, "species width"]
) -> Trees:
    """Fit boosted trees to what shares of species leave."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    settings = {"max_iter": TREES, "max_leaf_nodes": LEAVES - 1, "min_samples_leaf": _leaf(rest)}
    settings |= {"early_stopping": False, "random_state": 0}
    models = [HistGradientBoostingRegressor(**settings).fit(features, column) for column in rest.T]
    trees = [tree.nodes for model in models for (tree,) in model._predictors]
    nodes, tree = np.concatenate(trees), np.repeat(np.arange(len(trees)), [*map(len, trees)])
    is_leaf, start = nodes["is_leaf"].astype(np.bool_), np.searchsorted(tree, tree)
    # leaves; a node comes before those on its left, and these before the others
    before = np.append(0, is_leaf.cumsum())
    place, inner = before[:-1] - before[start], np.flatnonzero(~is_leaf)
    on_left = before[start[inner] + nodes["right"][inner]] - before[inner]
    value = np.zeros((len(trees), LEAVES))
    value[tree[is_leaf], place[is_leaf]] = nodes["value"][is_leaf]
    return Trees(
        shares=shares,
        features=features.shape[1],
        tree=tree[inner],
        feature=nodes["feature_idx"][inner].astype(np.int64),
        threshold=np.nan_to_num(nodes["num_threshold"][inner]),
        rest=(~(((1 << on_left) - 1) << place[inner])).astype(np.uint16),
        value=value,
        intercept=np.array([model._baseline_prediction.item() for model in models]),
    )


def terms(features: Float[Array, "rows features"], first: int, *, products: bool) -> Float[Array, "rows terms"]:
    """Return the features from ``first`` on, and their products."""
    some = features[:, first:]
    one, other = np.triu_indices(some.shape[1] if products else 0)
    return np.concatenate([some, some[:, one] * some[:, other]], axis=1)


def fitted_linear(
    features: Float[Array, "rows features"],
    rest: Float[Array, "rows width"],
    shares: Float[Array, "species width"],
    first: int,
    *,
    products: bool = False,
) -> Linear:
    """Fit ridge on terms to what shares of species leave."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    of_features, shape = terms(features, first, products=products), rest.shape[1]
    if not of_features.shape[1]:
        none, slopes, intercept = np.zeros(0), np.zeros((0, shape)), np.zeros(shape)
        return Linear(shares=shares, first=first, mean=none, scale=none, slopes=slopes, intercept=intercept)
    scaler, ridge = StandardScaler(), RidgeCV(alphas=np.logspace(-6, 4, 11), alpha_per_target=True)
    ridge.fit(scaler.fit_transform(of_features).clip(-FARTHEST, FARTHEST), rest)
    facts = {"mean": scaler.mean_, "scale": scaler.scale_, "slopes": np.atleast_2d(ridge.coef_).T}
    facts |= {"intercept": np.atleast_1d(ridge.intercept_)}
    return Linear(shares=shares, first=first, products=products, **facts)


def fitted_target(
    target: Target,
    features: Float[Array, "rows features"],
    shares: Float[Array, "rows species"],
    values: Float[Array, "rows width"],
    means: int = 0,
) -> dict[str, Predictor]:
    """Fit a target's baselines; the last ``means`` features are means by volume."""
    coefficients, count = np.linalg.lstsq(shares, values, rcond=None)[0], features.shape[1]
    rest = values - shares @ coefficients
    is_trivial = target.references or shares.shape[1] < 2
    first = {"ridge": 0} if is_trivial else {"composition": count, "ridge": 0}
    models: dict[str, Predictor] = {name: fitted_linear(features, rest, coefficients, at) for name, at in first.items()}
    if means:
        products = means <= MULTIPLIED
        models["mixture"] = fitted_linear(features, rest, coefficients, count - means, products=products)
    if target.field.width <= BOOSTED:
        models["boosting"] = fitted_trees(features, rest, coefficients)
    return models


def fitted_classes(
    target: Target, features: Float[Array, "rows features"], values: Int[Array, " rows"]
) -> dict[str, Predictor]:
    """Fit the baselines of one target of classes; none for one class."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if len(np.unique(values)) < 2:
        return {}
    trees = HistGradientBoostingClassifier(
        max_iter=40, max_leaf_nodes=15, min_samples_leaf=_leaf(values), early_stopping=False, random_state=0
    )
    cut = FunctionTransformer(np.clip, kw_args={"a_min": -FARTHEST, "a_max": FARTHEST})
    models = {"logistic": make_pipeline(StandardScaler(), cut, LogisticRegression(max_iter=1_000))}
    models |= {"boosting": trees} if target.field.classes <= BOOSTED_CLASSES else {}

    def predict(model: Any, features: Array, _: Array) -> Array:
        probabilities = np.full((len(features), target.field.classes), RAREST)
        probabilities[:, model.classes_] = model.predict_proba(features).clip(RAREST)
        return probabilities

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a thousand steps are enough for a baseline
        for model in models.values():
            model.fit(features, values)
    return {name: partial(predict, model) for name, model in models.items()}


def _leaf(values: Array) -> int:
    """Return the fewest rows of a leaf of boosted trees."""
    return min(20, max(2, len(values) // 20))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Baselines:
    """Fitted baselines of all targets that have any."""

    features: Features = Features()
    fitted: Mapping[str, Mapping[str, Predictor]] = member(default_factory=dict)
    """By target and name; extensive targets are fitted per node."""

    def prediction(self, baseline: str, target: Target, batch: GraphBatch) -> Distribution:
        """Return the prediction of a target in the unit of labels."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.fitted[target.name][baseline](*self.features.arrays(batch, target.field.on))
            if target.field.classes:
                return Categorical(logits=torch.from_numpy(values).log())
            mean = torch.from_numpy(values * sizes_of(target, batch))
        return Point(mean=mean.view(len(mean), *target.field.shape))

    def predictor(self, baseline: str, targets: Sequence[Target]) -> Callable[[GraphBatch], dict[str, Distribution]]:
        """Return the predictor of these targets."""
        return lambda batch: {target.name: self.prediction(baseline, target, batch) for target in targets}

    def only(self, names: Mapping[str, str]) -> "Baselines":
        """Return one predictor of each of these targets."""
        fitted = {target: {name: self.fitted[target][name]} for target, name in names.items()}
        return Baselines(features=self.features if fitted else Features(), fitted=fitted)

    @property
    def arrays(self) -> dict[str, Array]:
        """Return the arrays of linear predictors and trees, by place."""
        return {
            f"{target}/{name}/{key}": values
            for target, own in self.fitted.items()
            for name, one in own.items()
            for key, values in _parts(one, arrays=True).items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON of all but ``arrays``, for ``predictors_from``."""
        return {
            "inputs": [field.name for field in self.features.inputs],
            "kinds": {name: kinds.tolist() for name, kinds in self.features.kinds.items()},
            "fitted": {
                target: {name: _parts(one, arrays=False) for name, one in own.items()}
                for target, own in self.fitted.items()
            },
        }


def _parts(predictor: Any, *, arrays: bool) -> dict[str, Any]:
    """Return the arrays of a predictor, or all else."""
    return {key: one for key, one in asdict(predictor).items() if isinstance(one, np.ndarray) == arrays}


def predictors_from(value: Mapping[str, Any], arrays: Mapping[str, Array], fields: Mapping[str, Field]) -> Baselines:
    """Return predictors of ``to_json`` and ``arrays``; KeyError, TypeError or ValueError on anything else."""

    def predictor(target: str, name: str, own: Mapping[str, Any]) -> Predictor:
        width, trees = fields[target].width, name == "boosting"
        if fields[target].classes or len(value["fitted"][target]) > 1:
            raise ValueError(f"{target} has classes, or several simple members")

        def numbers(key: str, *shape: int | None, dtype: type = np.float64) -> Array:
            values = arrays[f"{target}/{name}/{key}"]
            fits = len(shape) == values.ndim and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
            if not fits or values.dtype != dtype or not np.isfinite(values).all():
                raise ValueError(f"{key} of {name} of {target} is not finite, or has another shape")
            return values

        common = {"shares": numbers("shares", None, width), "intercept": numbers("intercept", width)}
        if trees:
            leaves, tree = numbers("value", TREES * width, LEAVES), numbers("tree", None, dtype=np.int64)
            count, columns = len(tree), int(own["features"])
            feature = numbers("feature", count, dtype=np.int64)
            sound = (tree >= 0) & (tree < len(leaves)) & (feature >= 0) & (feature < columns)
            if not sound.all() or count > leaves.size or width > BOOSTED:
                raise ValueError(f"the trees of {target} lead nowhere")
            rest, threshold = numbers("rest", count, dtype=np.uint16), numbers("threshold", count)
            decisions = {"tree": tree, "feature": feature, "threshold": threshold, "rest": rest}
            return Trees(features=columns, value=leaves, **common, **decisions)
        mean = numbers("mean", None)
        scale, slopes = numbers("scale", len(mean)), numbers("slopes", len(mean), width)
        if not (scale > 0).all():
            raise ValueError(f"the scale of {name} of {target} is not above 0")
        return Linear(
            first=int(own["first"]), products=bool(own["products"]), mean=mean, scale=scale, slopes=slopes, **common
        )

    return Baselines(
        features=Features(
            inputs=tuple(fields[name] for name in value["inputs"]),
            kinds={
                name: torch.from_numpy(np.array([*map(int, own)], np.int64)) for name, own in value["kinds"].items()
            },
        ),
        fitted={
            target: {name: predictor(target, name, one) for name, one in own.items()}
            for target, own in value["fitted"].items()
        },
    )


def sizes_of(target: Target, batch: GraphBatch) -> Float[Array, "items 1"]:
    """Return the nodes of every graph for extensive targets, else ones."""
    counts = batch.counts("node").clamp(min=1) if target.extensive else torch.ones(batch.num_items(target.field.on))
    return counts.double().numpy()[:, None]


def fitted_baselines(
    store: GraphStore, train: NDArray[np.int64], targets: Sequence[Target], inputs: Sequence[str]
) -> Baselines:
    """Fit the baselines of scalars and classes on some training graphs.

    The graphs are drawn with a fixed seed, from those with labels. Vectors, tensors, derivatives of energies and several classes
    per item have no baselines, nor have targets with less than ``FEWEST`` labels.
    """
    fields = {field.name: field for field in store.fields()}
    names = [*dict.fromkeys([*inputs, *((ATOMIC_NUMBERS,) if any(t.references for t in targets) else ())])]
    scalars = [
        t
        for t in targets
        if t.field.parity == "scalar" and not t.derivative and not (t.field.classes and t.field.shape)
    ]
    samples = [_sample(store, train, target) for target in scalars]
    graphs = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *samples]))
    if not len(graphs):
        return Baselines()
    read = dict.fromkeys([*names, *(target.field.name for target in scalars)])
    batches = [batch for _, batch in Loader(store, graphs, _budget(store), shuffle=False, fields=read).epoch(0)]
    classes = [name for name in names if fields[name].classes]
    kinds = {name: _kinds(torch.cat([batch[name].flatten() for batch in batches])) for name in classes}
    features = Features(inputs=tuple(fields[name] for name in names), kinds=kinds)
    fitted: dict[str, dict[str, Predictor]] = {}
    with threadpool_limits(1):
        for target in scalars:
            rows = _rows(target, features, batches)
            if len(rows[0]) >= FEWEST and target.field.classes:
                fitted[target.name] = fitted_classes(target, rows[0], rows[2].ravel().astype(np.int64))
            elif len(rows[0]) >= FEWEST:
                means = features.mixture(batches[0]).shape[1] if target.field.on == "graph" else 0
                fitted[target.name] = fitted_target(target, *rows, means)
    return Baselines(features=features, fitted=fitted)


def _sample(store: GraphStore, train: NDArray[np.int64], target: Target) -> NDArray[np.int64]:
    """Return graphs with labels in a random, but fixed order."""
    order = np.random.default_rng(0).permutation(np.sort(train))
    labelled, sizes = order[present_graphs(store, target.field)[order]][:GRAPHS], store.sizes()
    items = np.cumsum(sizes.nodes[labelled] + sizes.edges[labelled])
    return np.asarray(labelled[: max(1, int((items <= ITEMS).sum()))], dtype=np.int64)


def _budget(store: GraphStore) -> Budget:
    most = [max(limit, int(of.max())) for limit, of in ((100_000, store.sizes().nodes), (ITEMS, store.sizes().edges))]
    return Budget(max_graphs=1024, max_nodes=most[0], max_edges=most[1])


def _kinds(values: Int[Tensor, " items"]) -> Int[Tensor, " kinds"]:
    """Return the most frequent classes, ascending."""
    kinds, counts = values.unique(return_counts=True)
    return kinds[counts.sort(descending=True, stable=True).indices[:COMPONENTS]].sort().values


def _rows(target: Target, features: Features, batches: Sequence[GraphBatch]) -> tuple[Array, Array, Array]:
    """Return features, shares of species and labels of ``ROWS`` items at most."""
    at, name, parts = target.field.on, target.field.name, []
    for batch in batches:
        values = batch[name].double().reshape(-1, target.field.width).numpy() / sizes_of(target, batch)
        present = batch.labelled(name).reshape(len(values), -1).all(dim=1).numpy()
        parts.append([one[present] for one in (*features.arrays(batch, at), values)])
    columns, shares, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    use = np.sort(np.random.default_rng(0).permutation(len(values))[:ROWS])
    return columns[use], shares[use], values[use]


def baseline_errors(
    folds: Sequence[tuple[Baselines, NDArray[np.int64]]], store: GraphStore, targets: Sequence[Target]
) -> BaselineMetrics:
    """Return the errors of baselines that are fitted in every fold."""
    result: BaselineMetrics = {}
    for name in BASELINES if folds else ():
        some = [target for target in targets if all(name in fold.fitted.get(target.name, {}) for fold, _ in folds)]
        predictors = [(fold.predictor(name, some), graphs) for fold, graphs in folds] if some else []
        with threadpool_limits(1):
            for target, metrics in errors_of_folds(predictors, store, some, _budget(store)).items():
                result.setdefault(target, {})[name] = metrics
    return result
