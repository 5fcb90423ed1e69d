"""Contents of a store, and predictions of a run on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.places import StorePlace, stores_from_json
from hydragnn.config import RunConfig
from hydragnn.datasets import GraphStore, WithoutEdges, disk_store, make_split, open_store
from hydragnn.datasets.tools import missing_in_graphs, present_graphs, store_notes
from hydragnn.ensemble import Ensemble, part_evaluation
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.runs.folder import is_data
from hydragnn.scripts.report.facts import Data, GraphErrors, Part, PartGraphs, Points
from hydragnn.training.baselines import VOLUME, BaselineMetrics, baseline_errors, fitted_baselines

SAMPLE_GRAPHS, SAMPLE_NODES = 2_000, 400_000  # enough for a histogram, little enough for any store
PREDICTED_GRAPHS, PREDICTED_NODES = 400, 40_000  # seconds on one core, and enough for a cloud of dots


def data_facts(config: RunConfig, path: StorePlace) -> Data:
    """Return the contents of the store at ``path``.

    InputError where there is no store, or where the split does not fit it.
    """
    store = open_store(path)
    split, sizes = make_split(store, config.split), store.sizes()
    graphs = {name: getattr(split, name) for name in split.counts}
    picked = {name: evenly_spaced(own, sizes.nodes, SAMPLE_GRAPHS, SAMPLE_NODES) for name, own in graphs.items()}
    fields = {field.name: field for field in store.fields()}
    targets = [name for name in config.targets if name in fields]
    read = {name: store.read(indices, targets) for name, indices in picked.items() if len(indices)}
    present: dict[str, dict[str, int]] = {}
    labels: dict[str, dict[str, tuple[int, int]]] = {}
    for name, field in fields.items():
        has = present_graphs(store, field)
        items = {"node": sizes.nodes, "edge": sizes.edges}.get(field.on, np.ones(len(store), dtype=np.int64))
        numbers = items * field.width
        labelled = numbers * has - missing_in_graphs(store, field)
        present[name] = {part: int(has[own].sum()) for part, own in graphs.items()}
        labels[name] = {part: (int(labelled[own].sum()), int(numbers[own].sum())) for part, own in graphs.items()}
    return Data(
        path=path,
        store=store,
        sizes=sizes,
        parts={name: count for name, count in split.counts.items() if count or name != "calibration"},
        present=present,
        labels=labels,
        notes=store_notes(disk) if (disk := disk_store(store)) else (),
        targets={
            name: {part: batch[name][batch.labelled(name)].double().numpy() for part, batch in read.items()}
            for name in targets
        },
        sampled=sum(len(indices) for indices in picked.values()),
    )


def evenly_spaced(indices: NDArray[np.int64], nodes: NDArray[np.int64], graphs: int, budget: int) -> NDArray[np.int64]:
    """Return an even sample of graphs with about ``budget`` nodes."""
    if not len(indices):
        return indices
    affordable = int(budget / max(1.0, float(nodes[indices].mean())))
    count = min(len(indices), graphs, max(1, affordable))
    return np.asarray(indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)], dtype=np.int64)


def part_graphs(path: StorePlace, part: Part) -> PartGraphs | None:
    """Return a sample of a part's graphs, with those of ``graph_ranks``."""
    store = open_store(path)
    every = np.unique(np.concatenate([np.zeros(0, np.int64), *(points.graph for points in part.points.values())]))
    if not len(every) or every[-1] >= len(store):
        return None
    ranked = [errors.number[ranks] for errors, ranks in map(graph_ranks, part.numbers.values())]
    sample = evenly_spaced(every, store.sizes().nodes, PREDICTED_GRAPHS, PREDICTED_NODES)
    numbers = np.unique(np.concatenate([sample, *ranked]))
    fields = {field.name: field for field in store.fields()}
    targets = [name for name in part.numbers if name in fields and fields[name].on != "graph"]
    batch = store.read(numbers, [*targets, *(name for name in (ATOMIC_NUMBERS, VOLUME) if name in fields)])
    items = {name: _items_of(part.numbers[name], batch, numbers) for name in targets}
    return PartGraphs(numbers=numbers, batch=batch, items=items)


def graph_ranks(points: Points) -> tuple[GraphErrors, NDArray[np.int64]]:
    """Return errors of graphs, and places of best, median and worst."""
    errors = points.graph_errors()
    order = np.argsort(errors.rmse, kind="stable")
    return errors, order[np.unique([0, len(order) // 2, len(order) - 1])]


def _items_of(points: Points, batch: GraphBatch, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the item of every row; -1 where labels differ."""
    labelled = batch.labelled(points.field).numpy()
    labels = batch[points.field].numpy()[labelled].astype(np.float64)
    item = np.nonzero(labelled)[0]
    ends = np.searchsorted(batch.owner(batch.fields[points.field].on).numpy()[item], np.arange(len(numbers) + 1))
    result, order = np.full(len(points.graph), -1, dtype=np.int64), np.argsort(points.graph, kind="stable")
    first, last = (np.searchsorted(points.graph[order], numbers, side=side) for side in ("left", "right"))
    for a, b, begin, end in zip(first, last, ends[:-1], ends[1:]):
        if np.array_equal(points.target[order[a:b]], labels[begin:end]):
            result[order[a:b]] = item[begin:end]
    return result


def with_store(config: Mapping[str, Any], place: Path, data_hash: str) -> Mapping[str, Any]:
    """Return the configuration with its moved store; InputError for another store."""
    if "data" not in config:
        raise InputError(
            f"--store {place}: there is not one store to move; give the report of a branch's ensemble, or of a run"
        )
    store = open_store(place)
    if data_hash and not is_data(store, data_hash):
        facts = f"fingerprint {store.fingerprint}, trained on {data_hash}"
        raise InputError(
            f"the store {place} is not what was trained on ({facts}); give the original store, or a copy of it"
        )
    return {**config, "data": {**config["data"], "store": str(place.resolve())}}


def units_of_branches(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the units of fields of all branches with readable stores."""
    units: dict[str, str] = {}
    for branch in config.get("branches", []):
        try:
            fields = open_store(stores_from_json(branch["data"]["store"])).fields()
        except InputError:
            continue
        units |= {f"{field.name}@{branch['name']}": field.unit for field in fields}
    return units


def run_rows(model: Ensemble, config: RunConfig) -> tuple[dict[str, NDArray[Any]], BaselineMetrics]:
    """Return predictions on a sample of validation graphs, and baselines' errors.

    InputError without its store; there are no baselines where it holds other graphs.
    """
    store: GraphStore = open_store(config.data.store)
    split, member = make_split(store, config.split), model.members[0]
    graphs = evenly_spaced(split.valid, store.sizes().nodes, PREDICTED_GRAPHS, PREDICTED_NODES)
    outputs = member_outputs(model.members, store, graphs, model.needed(store))
    _, rows = part_evaluation(model, outputs)
    if not is_data(store, member.record.data_hash):
        return rows, {}
    used = store if config.data.edges else WithoutEdges(store)
    fitted = fitted_baselines(used, split.train, model.targets, member.model.inputs)
    return rows, baseline_errors([(fitted, split.valid)], used, model.targets)
