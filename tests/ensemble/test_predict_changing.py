"""What changes, is not valid, or ends while it is predicted is told in a sentence and never mixed in."""

import json
import os
import re
import shutil
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import psutil
import pytest
import torch
from ase.io import read, write
from torch.distributed import FileStore

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.config import RunConfig
from hydragnn.datasets import BatchSettings, MemoryStore, StoreWriter, check_store, open_store
from hydragnn.datasets.manifest import checksum
from hydragnn.distributed import group
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.ensemble.prediction import predict as predict_module
from hydragnn.ensemble.prediction import reporting, sources, work
from hydragnn.ensemble.prediction.formats import sink
from hydragnn.ensemble.prediction.job import PredictionJob
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.rules import digest_of, rules_for
from hydragnn.runs import assembly, train
from tests.acting import first_acts
from tests.ensemble.conftest import Predict, config_of, refused
from tests.ensemble.finished import arrays_of, assert_same, edit_json
from tests.once import shared

SMALL = BatchSettings(max_graphs=4)


@pytest.mark.parametrize("what", ["ensemble", "source"])
def test_replacements_are_refused(predict: Predict, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = predict_module.begin
    monkeypatch.setattr(predict_module, "begin", lambda *known: original(*known) | {what: "another digest"})
    monkeypatch.setattr(work, "outcome_of", None)
    refused("was replaced while the prediction began", predict, "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_a_local_worker_that_finds_something_else_says_so_in_a_line(
    ensemble: Path, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = PredictionJob(model=ensemble, sources=(stored,), out=tmp_path / "out.h5")
    opening = {"fresh": True, "finished": [], "ensemble": "another digest", "source": "", "error": ""}
    FileStore(str(tmp_path / "store"), -1).set("opening", json.dumps(opening))
    predict_module._predict_as_child(group.join_parent(1, 2, str(tmp_path / "store")), job)
    said = f"worker 1 ended: {ensemble} was replaced while the prediction began; nothing was predicted of it here: start it again"
    assert capsys.readouterr().err.splitlines() == [said]
    opening["error"] = "no such format"  # of the first process, which prints it
    FileStore(str(tmp_path / "another"), -1).set("opening", json.dumps(opening))
    predict_module._predict_as_child(group.join_parent(1, 2, str(tmp_path / "another")), job)
    assert not capsys.readouterr().err


def test_moving_fails(predict: Predict, structures_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shutil.copy(structures_file(8), tmp_path / "moving.xyz")
    frames = read(path, index=":")
    first_acts(monkeypatch, sources.Graphs, "build", lambda: write(path, frames[::-1], format="extxyz"))
    refused("was changed while graphs were made of it", predict, "out.h5", path)
    assert not list(tmp_path.glob("out*"))
    predict("out.h5", path)


def test_a_full_disk_is_no_fault_of_one(predict: Predict, ensemble: Path, structures_file: Any, tmp_path: Path) -> None:
    """Several ranks leave a folder behind, which says nothing of the disk: once there is space, the prediction goes on."""
    path, full = structures_file(8), "the disk is full"
    rules = rules_for([path], Ensemble.load(ensemble))

    def building() -> sources.Graphs:
        return sources.Graphs(rules, tmp_path / "out.h5.parts", digest_of(rules))

    with patch.object(StoreWriter, "write", side_effect=InputError(full)):
        refused(full, building().build, 0)
        refused(full, predict, "new.h5", path)
    assert building().missing() == [0] and not list(tmp_path.glob("new*"))
    building().build(0)
    building().join()
    source = building().source()
    assert len(source.numbers) + len(source.failures) == 8


def test_replaced_stores_stay(predict: Predict, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict("whole.h5", batch=SMALL)
    store = shutil.copytree(stored, tmp_path / "replaced.h5")
    with monkeypatch.context() as context:
        first_acts(context, work, "outcome_of", lambda: shutil.rmtree(store))
        predict("replaced-out.h5", store, batch=SMALL)
    assert_same(tmp_path / "replaced-out.h5", tmp_path / "whole.h5")
    store = shutil.copytree(stored, tmp_path / "store.h5")
    (part,) = store.glob("*.h5")
    positions = open_store(store).read(np.arange(1)).positions.numpy().tobytes()

    def overwrite() -> None:
        place = part.read_bytes().index(positions)
        with part.open("r+b") as file:
            file.seek(place)
            file.write(bytes(8))

    first_acts(monkeypatch, work, "outcome_of", overwrite)
    refused("changed while it was read", predict, "out.h5", store, batch=SMALL)
    assert not (tmp_path / "out.h5").exists()


def in_weak_callback(kind: signal.Signals) -> None:
    thing = {kind}
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), kind))
    del thing
    assert reference() is None


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(what.exc_type))
    return seen


@pytest.fixture(scope="module")
def structures(structures_file: Any) -> Path:
    return structures_file(20)


UNITS = (work, "outcome_of")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *((UNITS, kind) for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        ((sources.Graphs, "build"), signal.SIGTERM),
        ((sink.Sink, "append"), signal.SIGTERM),
    ],
)
def test_a_dropped_signal_ends_a_prediction_before_its_next_unit(
    predict: Predict, place: Any, kind: Any, structures: Path, tmp_path: Path, dropped: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as context:
        calls = first_acts(context, *place, lambda: in_weak_callback(kind))
        with pytest.raises(Interrupted, match="add --resume"):
            predict("out.h5", structures, batch=SMALL)
    assert dropped == [KeyboardInterrupt] and len(calls) == 1 and not (tmp_path / "out.h5").exists()
    predict("out.h5", structures, batch=SMALL, resume=True)
    predict("whole.h5", structures, batch=SMALL)
    assert_same(tmp_path / "out.h5", tmp_path / "whole.h5")


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_is_refused(predict: Predict, resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"another prediction works in {tmp_path}/out.h5.parts; wait for it, or choose another --out"
    second = partial(refused, words, predict, "out.h5", batch=SMALL, resume=resume)
    calls = first_acts(monkeypatch, work, "outcome_of", second)
    predict("out.h5", batch=SMALL)
    predict("whole.h5", batch=SMALL)
    assert calls and not (tmp_path / "out.h5.parts").exists()
    assert_same(tmp_path / "out.h5", tmp_path / "whole.h5")


def workers() -> list[psutil.Process]:
    children = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in children if any("spawn_main" in word for word in one.cmdline())]


def test_a_stopped_worker_is_passed(predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        (worker,) = workers()
        worker.suspend()

    monkeypatch.setattr(group, "STOPPED", 0.5)
    first_acts(monkeypatch, work, "outcome_of", stop)
    result = predict("out.h5", batch=SMALL, workers=2)
    assert result is not None and (tmp_path / "out.h5").exists()
    assert not workers()


BEFORE_STEPS = {"prepare_data": (signal.SIGTERM, signal.SIGINT), "first_record": (signal.SIGHUP, signal.SIGUSR1)}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in BEFORE_STEPS.items() for kind in kinds])
def test_a_dropped_signal_ends_a_run_before_its_first_step(
    name: str, kind: Any, store: MemoryStore, stored: Path, tmp_path: Path, dropped: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as context:
        first_acts(context, assembly, name, lambda: in_weak_callback(kind))
        with pytest.raises(Interrupted, match=f"stopped by {kind.name} before the first step"):
            train(config_of(stored), tmp_path / "run", store=store)
    assert dropped == [Interrupted] and not (tmp_path / "run" / "record.json").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), ("2", 2)])
def test_a_process_predicts_with_one_thread_or_as_many_as_were_asked_for_and_its_caller_keeps_his(
    predict: Predict, asked: str | None, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, before = set[int](), torch.get_num_threads()
    first_acts(monkeypatch, work, "outcome_of", lambda: seen.add(torch.get_num_threads()))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    torch.set_num_threads(2)
    try:
        predict("out.h5")
        assert seen == {threads} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "out.h5.plan.json").read_text())["planned"]["threads"] == threads


def test_one_process_beside_idle_cores_says_what_would_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "cores", lambda: 4)
    monkeypatch.setattr(reporting, "visible_gpus", lambda: 0)
    plan, words = {"units": 6, "tasks": 2, "ranks": 1, "threads": 1}, "of 1 thread"
    assert reporting.plan_line(plan).endswith(f"on 1 rank {words}; idle cores: 3 (--workers auto)")
    assert reporting.plan_line(plan | {"ranks": 4}).endswith(f"on 4 ranks {words}")
    assert "idle" not in reporting.plan_line(plan | {"threads": 4})


BAD = 5
"""The graph that is spoiled."""
Spoil = Callable[[h5py.File, slice, slice], None]
BATCH = BatchSettings(max_graphs=16)


def spoiled(stored: Path, place: Path, spoil: Spoil, graphs: Sequence[int] = (BAD,)) -> Path:
    """A copy of the store with graphs spoiled, whose manifest fits, as one that another program has written."""
    part = shutil.copytree(stored, place) / "part-00000.h5"
    with h5py.File(part, "r+") as file:
        stops = [np.concatenate([[0], file[name][:]]).astype(int) for name in ("node_stops", "edge_stops")]
        for graph in graphs:
            spoil(file, *(slice(int(one[graph]), int(one[graph + 1])) for one in stops))
    whole = checksum(part)

    def fit(manifest: dict[str, Any]) -> None:
        manifest["parts"][0]["files"][part.name] = {"bytes": whole.bytes, "blake2b": whole.blake2b}
        manifest["fingerprint"] = place.name

    edit_json(place / "manifest.json", fit)
    return place


def put(name: str, items: str, value: Callable[[Any, int], Any]) -> Spoil:
    """Return a change of the first number of the graph: ``value`` gets it and how many nodes the graph has."""

    def spoil(file: h5py.File, nodes: slice, edges: slice) -> None:
        place = {"node": nodes.start, "edge": edges.start, "graph": BAD}[items]
        file[name][place] = value(file[name][place], nodes.stop - nodes.start)

    return spoil


INTO_THE_NEXT_GRAPH = put("senders", "edge", lambda before, nodes: nodes + 1)
FAR_AWAY = put("senders", "edge", lambda before, nodes: 2**31 - 1)
NO_ELEMENT = put("node/atomic_numbers", "node", lambda before, nodes: 200)
FAULTS: list[tuple[str, Spoil]] = [
    ("graph 5, senders: node index [0-9]+ is out of range; the graph has [0-9] nodes", INTO_THE_NEXT_GRAPH),
    ("graph 5, field atomic_numbers: class 200 is out of range", NO_ELEMENT),
    ("graph 5 is not as it was written", put("graph/energy", "graph", lambda before, nodes: before + 1.0)),
]
"""Words that are said of a graph, and what is wrong with it."""


@shared
def fine(tmp_path_factory: pytest.TempPathFactory, ensemble: Path, stored: Path) -> dict[str, np.ndarray]:
    out = tmp_path_factory.mktemp("fine") / "fine.h5"
    predict_to_file(ensemble, stored, out, batch=BATCH)
    return arrays_of(out)


@pytest.mark.parametrize(("words", "fault"), FAULTS, ids=[words for words, _ in FAULTS])
def test_the_bad_graph_has_its_reason_and_all_others_their_prediction(
    words: str, fault: Spoil, predict: Predict, runs: list[Path], stored: Path, fine: Any, tmp_path: Path
) -> None:
    store = spoiled(stored, tmp_path / "spoiled.h5", fault)
    result = predict("out.h5", store, batch=BATCH)
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
    refused(words, train, RunConfig.parse(table), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nodes_of_a_graph_without_any_belong_to_the_next(predict: Predict, stored: Path, tmp_path: Path) -> None:
    def no_node(file: h5py.File, nodes: slice, edges: slice) -> None:
        file["node_stops"][BAD] = nodes.start

    store = spoiled(stored, tmp_path / "spoiled.h5", no_node)
    predict("out.h5", store, batch=BATCH)
    out = arrays_of(tmp_path / "out.h5")
    assert out["status"][BAD] == "graph 5 has no nodes; leave empty graphs out"
    assert out["nodes"][BAD] == 0
    assert len(out["fields/forces/mean"]) == out["nodes"].sum()


@pytest.mark.parametrize("suffix", [".csv", ".xyz", ".h5"])
def test_every_format_takes_invalid_graphs_alone(predict: Predict, stored: Path, tmp_path: Path, suffix: str) -> None:
    count = len(open_store(stored))
    store = spoiled(stored, tmp_path / "spoiled.h5", NO_ELEMENT, graphs=range(count))
    result = predict(f"out{suffix}", store, batch=BATCH)
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
    reason = f"node index 1000000 is out of range; the graph has {output.nodes_per_graph[0]} nodes"
    assert output.status[0] == f"graph 0, senders: {reason}"
    assert set(output.status[1:]) == {"ok"}


def test_a_store_that_cannot_be_read_is_refused_before_any_work(predict: Predict, stored: Path, tmp_path: Path) -> None:
    def falling(file: h5py.File, nodes: slice, edges: slice) -> None:
        file["node_stops"][BAD] = 0

    store = spoiled(stored, tmp_path / "spoiled.h5", falling)
    refused("node offsets do not rise", predict, "out.h5", store)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_of_other_files_is_not_taken_for_parts(predict: Predict, tmp_path: Path) -> None:
    (tmp_path / "out.h5.parts").mkdir()
    (tmp_path / "out.h5.parts" / "thesis.tex").write_text("years")
    for resume in (False, True):
        refused(r"holds thesis.tex, which belongs to no prediction", predict, "out.h5", resume=resume)
    assert (tmp_path / "out.h5.parts" / "thesis.tex").read_text() == "years"
