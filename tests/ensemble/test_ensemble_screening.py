"""A store may hold anything: graphs that are not valid get their reason, all others their prediction."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Never

import h5py
import numpy as np
import pytest
from ase.io import read

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import BatchSettings, MemoryStore, check_store, open_store
from hydragnn.datasets.manifest import checksum
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.ensemble.prediction import work
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.runs import train
from tests.acting import first_acts
from tests.ensemble.finished import arrays_of, assert_same
from tests.once import shared

BAD = 5
"""The graph that is spoiled."""
Spoil = Callable[[h5py.File, slice, slice], None]
BATCH = BatchSettings(max_graphs=16)


def spoiled(stored: Path, place: Path, spoil: Spoil, graphs: Sequence[int] = (BAD,)) -> Path:
    """A copy of the store with graphs spoiled, whose manifest fits, as one that another program has written."""
    shutil.copytree(stored, place)
    part = place / "part-00000.h5"
    with h5py.File(part, "r+") as file:
        for graph in graphs:
            nodes, edges = (
                slice(int(stops[graph - 1]) if graph else 0, int(stops[graph]))
                for stops in (file["node_stops"], file["edge_stops"])
            )
            spoil(file, nodes, edges)
    manifest = json.loads((place / "manifest.json").read_text())
    del manifest["checksum"]
    whole = checksum(part)
    manifest["parts"][0]["files"]["part-00000.h5"] = {"bytes": whole.bytes, "blake2b": whole.blake2b}
    manifest["fingerprint"] = place.name
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def put(name: str, items: str, value: Callable[[Any, int], Any]) -> Spoil:
    """Return a change of the first number of the graph: ``value`` gets it and how many nodes the graph has."""

    def spoil(file: h5py.File, nodes: slice, edges: slice) -> None:
        place = {"node": nodes.start, "edge": edges.start, "graph": BAD}[items]
        file[name][place] = value(file[name][place], nodes.stop - nodes.start)

    return spoil


def in_disorder(file: h5py.File, nodes: slice, edges: slice) -> None:
    file["receivers"][edges] = file["receivers"][edges][::-1]


def no_node(file: h5py.File, nodes: slice, edges: slice) -> None:
    file["node_stops"][BAD] = nodes.start


INTO_THE_NEXT_GRAPH = put("senders", "edge", lambda before, nodes: nodes + 1)
FAR_AWAY = put("senders", "edge", lambda before, nodes: 2**31 - 1)
NO_ELEMENT = put("node/atomic_numbers", "node", lambda before, nodes: 200)
FAULTS: list[tuple[str, Spoil]] = [
    ("graph 5, senders: node index [0-9]+ is out of range; the graph has [0-9] nodes", INTO_THE_NEXT_GRAPH),
    ("graph 5, senders: node index 2147483647 is out of range", FAR_AWAY),
    ("graph 5, receivers: node index -1 is out of range", put("receivers", "edge", lambda before, nodes: -1)),
    ("graph 5: edges are not sorted by receiver", in_disorder),
    ("graph 5, positions: nan in row 0", put("positions", "node", lambda before, nodes: np.nan)),
    ("graph 5, field atomic_numbers: class 200 is out of range", NO_ELEMENT),
    ("graph 5 is not as it was written", put("positions", "node", lambda before, nodes: before + 1e-3)),
    ("graph 5 is not as it was written", put("graph/energy", "graph", lambda before, nodes: before + 1.0)),
]
"""Words that are said of a graph, and what is wrong with it."""


@shared
def fine(tmp_path_factory: pytest.TempPathFactory, ensemble: Path, stored: Path) -> dict[str, np.ndarray]:
    """Return the predictions of the store before it was spoiled."""
    out = tmp_path_factory.mktemp("fine") / "fine.h5"
    predict_to_file(ensemble, stored, out, batch=BATCH)
    return arrays_of(out)


@pytest.mark.parametrize(("words", "fault"), FAULTS, ids=[words for words, _ in FAULTS])
def test_the_bad_graph_has_its_reason_in_predictions_trainings_and_checks_and_all_others_their_prediction(
    words: str,
    fault: Spoil,
    ensemble: Path,
    runs: list[Path],
    stored: Path,
    fine: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    store = spoiled(stored, tmp_path / "spoiled.h5", fault)
    result = predict_to_file(ensemble, store, tmp_path / "out.h5", batch=BATCH)
    out = arrays_of(tmp_path / "out.h5")
    status = str(out["status"][BAD])
    assert result.failed == 1 and re.match(words, status)
    assert set(out["status"][np.arange(len(out["status"])) != BAD]) == {"ok"}
    owners = np.repeat(out["graph"], out["nodes"])
    for name, rows in (("energy", out["graph"]), ("forces", owners)):
        mean = out[f"fields/{name}/mean"]
        assert np.isnan(mean[rows == BAD]).all()
        assert np.allclose(mean[rows != BAD], fine[f"fields/{name}/mean"][rows != BAD], rtol=1e-4, atol=1e-5)
    assert any(problem.endswith(status) for problem in check_store(store))
    table = json.loads((runs[0] / "config.json").read_text())
    table["data"]["store"] = str(store)
    table["split"] |= {"train": 0.7, "valid": 0.3}
    with pytest.raises(InputError, match=words):
        train(RunConfig.parse(table), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_graph_without_nodes_is_told_and_its_nodes_belong_to_the_next(
    ensemble: Path, stored: Path, tmp_path: Path
) -> None:
    store = spoiled(stored, tmp_path / "spoiled.h5", no_node)
    predict_to_file(ensemble, store, tmp_path / "out.h5", batch=BATCH)
    out = arrays_of(tmp_path / "out.h5")
    assert out["status"][BAD] == "graph 5 has no nodes; leave empty graphs out"
    assert out["nodes"][BAD] == 0
    assert len(out["fields/forces/mean"]) == out["nodes"].sum()


def test_workers_and_a_prediction_that_is_resumed_say_the_same(
    ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = spoiled(stored, tmp_path / "spoiled.h5", INTO_THE_NEXT_GRAPH, graphs=(5, 6, 40))
    predict_to_file(ensemble, store, tmp_path / "alone.h5", batch=BATCH)
    predict_to_file(ensemble, store, tmp_path / "three.h5", batch=BATCH, workers=3)

    def fail() -> Never:
        raise RuntimeError("gone")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="gone"):
        first_acts(patch, work, "outcome_of", fail, 3)
        predict_to_file(ensemble, store, tmp_path / "again.h5", batch=BATCH)
    predict_to_file(ensemble, store, tmp_path / "again.h5", batch=BATCH, resume=True)
    assert np.flatnonzero(arrays_of(tmp_path / "alone.h5")["status"] != "ok").tolist() == [5, 6, 40]
    for name in ("three.h5", "again.h5"):
        assert_same(tmp_path / name, tmp_path / "alone.h5")


@pytest.mark.parametrize("suffix", [".csv", ".xyz", ".h5"])
def test_a_store_without_any_valid_graph_is_told_in_every_format(
    ensemble: Path, stored: Path, tmp_path: Path, suffix: str
) -> None:
    count = len(open_store(stored))
    store = spoiled(stored, tmp_path / "spoiled.h5", NO_ELEMENT, graphs=range(count))
    result = predict_to_file(ensemble, store, tmp_path / f"out{suffix}", batch=BATCH)
    assert (result.graphs, result.failed) == (count, count)
    if suffix == ".xyz":
        frames = read(tmp_path / "out.xyz", index=":")
        assert [len(atoms) for atoms in frames] == [0] * count
        assert "class 200 is out of range" in frames[7].info["status"]


def test_what_members_said_about_a_part_leaves_bad_graphs_out(ensemble: Path, stored: Path, tmp_path: Path) -> None:
    store = open_store(spoiled(stored, tmp_path / "spoiled.h5", FAR_AWAY))
    together = Ensemble.load(ensemble)
    output = member_outputs(together.members, store, np.arange(10), together.needed(store))
    assert list(output.failures) == [BAD]
    assert not output.usable(together.targets[0])[BAD]
    assert output.usable(together.targets[0]).sum() == 9


def test_a_batch_in_python_is_screened_too(ensemble: Path, store: MemoryStore) -> None:
    batch = store.read(range(8))
    batch.senders[0] = 10**6
    output = Ensemble.load(ensemble).predict(batch)
    assert (
        output.status[0]
        == f"graph 0, senders: node index 1000000 is out of range; the graph has {output.nodes_per_graph[0]} nodes"
    )
    assert set(output.status[1:]) == {"ok"}


def test_a_store_that_cannot_be_read_is_refused_before_any_work(ensemble: Path, stored: Path, tmp_path: Path) -> None:
    def falling(file: h5py.File, nodes: slice, edges: slice) -> None:
        file["node_stops"][BAD] = 0

    store = spoiled(stored, tmp_path / "spoiled.h5", falling)
    with pytest.raises(InputError, match="node offsets do not rise"):
        predict_to_file(ensemble, store, tmp_path / "out.h5")
    assert not list(tmp_path.glob("out*"))


def test_a_folder_of_other_files_is_not_taken_for_parts(ensemble: Path, stored: Path, tmp_path: Path) -> None:
    (tmp_path / "out.h5.parts").mkdir()
    (tmp_path / "out.h5.parts" / "thesis.tex").write_text("years")
    for resume in (False, True):
        with pytest.raises(InputError, match=r"holds thesis.tex, which belongs to no prediction"):
            predict_to_file(ensemble, stored, tmp_path / "out.h5", resume=resume)
    assert (tmp_path / "out.h5.parts" / "thesis.tex").read_text() == "years"
