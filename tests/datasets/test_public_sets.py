"""Sets that the public HydraGNN wrote: read, converted, trained on, and refused."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.datasets import check_store, convert_store, open_store
from tests.datasets.public_files import samples, write_bp
from tests.forked import run_forked
from tests.refusals import refuses

DAMAGED = {
    "j2_md_truncated": "is damaged",
    "j_data_truncated": "was cut off",
    "n5_edge_index_out_of_range": "node index .* is out of range; the graph has 9 nodes",
    "n_count_past_end": "counts and offsets of valset/x are not those of its shape .43, 1.",
}
WHOLE = (
    *("a_variable", "b_fixed_size", "d_smiles_graphattr", "e_multihead", "f_fp32", "g_globals"),
    *("h2_empty_first_label", "i_malicious_key"),
)


def per_sample(expected: Any, name: str) -> list[Any]:
    flat, shapes = expected[f"{name}.flat"], expected[f"{name}.shape"]
    stops = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(np.split(flat, stops[:-1]), shapes)]


def check_sample(graph: Any, values: dict[str, Any]) -> None:
    """Compare a graph with the arrays of a sample."""
    senders, receivers = values.pop("edge_index")
    order = np.argsort(receivers, kind="stable")
    assert (graph.senders.numpy() == senders[order]).all() and (graph.receivers.numpy() == receivers[order]).all()
    assert (graph.positions.numpy() == values.pop("pos")).all()
    assert (graph.edge_shifts.numpy() == -values.pop("edge_shifts")[order]).all()
    assert (graph.cell.numpy()[0] == values.pop("cell")).all()
    assert (graph.periodic.numpy()[0] == (values.pop("pbc") != 0)).all()
    for key, value in values.items():
        if value.dtype == np.uint8:
            assert graph.texts[key][0].encode() == value.tobytes()
            continue
        rows = value.T if key == "edge_index32" else value
        rows = rows[order] if key.startswith("edge_") else rows
        assert graph[key].numpy().reshape(-1).tolist() == rows.reshape(-1).tolist(), key


@pytest.mark.parametrize("name", WHOLE)
def test_sets_of_the_public_hydragnn_are_read(
    real_data: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BP_MARKER", str(tmp_path / "ran"))
    folder = real_data / "hydragnn" / "bp"
    expected, store = np.load(folder / f"{name}.expected.npz"), open_store(folder / f"{name}.bp")
    convert_store(folder / f"{name}.bp", tmp_path / "copy.h5")
    copy = open_store(tmp_path / "copy.h5")
    assert (copy.fingerprint, copy.fields()) == (store.fingerprint, store.fields())
    assert check_store(tmp_path / "copy.h5") == [] and not (tmp_path / "ran").exists()
    names = {"dataset_name", *(one.split(".")[1] for one in expected.files if "<bad>" in one)}
    for label in sorted({one.split(".")[0] for one in expected.files} & {"trainset", "valset", "testset"}):
        keys = {one.split(".")[1] for one in expected.files if one.startswith(f"{label}.")} - names
        arrays = {key: per_sample(expected, f"{label}.{key}") for key in keys}
        graphs = [place for place, one in enumerate(store.texts["label"].values) if one == label]
        assert len(graphs) == len(arrays["x"])
        for number, place in enumerate(graphs):
            for one in (store, copy):
                check_sample(one[place], {key: values[number] for key, values in arrays.items()})
    for key in (one.removeprefix("global.") for one in expected.files if one.startswith("global.")):
        value = store.attributes[key]
        array = np.frombuffer(value.encode(), dtype="u1") if isinstance(value, str) else np.array(value)
        assert np.array_equal(array, expected[f"global.{key}"]), key


@pytest.mark.parametrize(("name", "words"), DAMAGED.items())
def test_damaged_sets_are_refused_in_a_sentence(real_data: Path, tmp_path: Path, name: str, words: str) -> None:
    refuses(words, convert_store, real_data / "hydragnn" / "bp" / f"{name}.bp", tmp_path / "copy.h5")
    assert not [*tmp_path.iterdir()]


SETS: dict[str, dict[str, Any]] = {
    "three parts": {"trainset": samples(8), "valset": samples(3, seed=1), "testset": samples(2, seed=2)},
    "one size": {"trainset": samples(8, alike=True), "valset": samples(2, alike=True, seed=1)},
    "a part of one sample": {"trainset": samples(8), "valset": samples(1, seed=1)},
    "an empty part": {"trainset": [], "testset": samples(4)},
    "a label of its own": {"total": samples(4)},
}


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_every_layout_is_read(tmp_path: Path, sets: dict[str, Any]) -> None:
    store = open_store(
        write_bp(tmp_path / "set.bp", sets, {"minmax_graph_feature": np.arange(4.0), "pna_deg": np.arange(3)})
    )
    everything = [(label, sample) for label, some in sets.items() for sample in some]
    assert store.attributes["minmax_graph_feature"] == [[0.0, 1.0], [2.0, 3.0]] and store.attributes["pna_deg"] == [
        0,
        1,
        2,
    ]
    assert list(store.texts["label"]) == [label for label, _ in everything]
    parts = [("trainset", "valset", "testset").index(label) for label, _ in everything if label != "total"]
    assert "total" in sets or store.column("part").values.tolist() == parts
    batch = store.read([*range(len(store) - 1, -1, -1)])
    for place, (_, sample) in enumerate(reversed(everything)):
        arrays = {k: np.frombuffer(v.encode(), dtype=np.uint8) if isinstance(v, str) else v for k, v in sample.items()}
        check_sample(batch.select([place]), arrays)


@pytest.mark.parametrize("name", ["set.bp/", "link", "link.bp", "copy"])
def test_sets_are_known_by_their_index(tmp_path: Path, name: str) -> None:
    path = write_bp(tmp_path / "set.bp", {"trainset": samples(2)}, {})
    for link in ("link", "link.bp"):
        (tmp_path / link).symlink_to(path)
    shutil.copytree(path, tmp_path / "copy")
    assert len(open_store(f"{tmp_path}/{name}")) == 2


def packed(sample: Any, places: int = 4) -> Any:
    nodes = len(sample["x"])
    y = np.concatenate([sample["y"], sample["x"][:, 0], sample["forces"].reshape(-1)])[:, None]
    return {**sample, "y": y, "y_loc": np.array([[0, 1, 1 + nodes, 1 + 4 * nodes][:places]])}


def test_packed_heads_are_fields_of_their_own(tmp_path: Path) -> None:
    some = [packed(one) for one in samples(4)]
    batch = open_store(write_bp(tmp_path / "set.bp", {"trainset": some}, {})).read([2, 0])
    assert batch["y_0"].tolist() == [some[place]["y"][0, 0] for place in (2, 0)]
    assert batch["y_1"].tolist() == [x for place in (2, 0) for x in some[place]["x"][:, 0]]
    assert (batch["y_2"].numpy() == np.concatenate([some[place]["forces"] for place in (2, 0)])).all()


PACKED: dict[str, tuple[Any, str]] = {
    "bounds that lie": (
        lambda one, _: packed(one) | {"y_loc": packed(one)["y_loc"] + 1},
        "does not bound the numbers of y",
    ),
    "bounds of several numbers": (lambda one, number: packed(one, 3 + number % 2), "does not bound the numbers of y"),
    "nodes or graphs": (lambda one, _: packed(samples(1)[0]), "may lie on node or graph; say heads"),
}


@pytest.mark.parametrize(("change", "words"), PACKED.values(), ids=PACKED)
def test_packed_heads_that_are_unclear_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    some = [change(one, number) for number, one in enumerate(samples(4))]
    refuses(words, open_store, write_bp(tmp_path / "set.bp", {"trainset": some}, {}))


LACKING = {
    "a part without cells": ("valset", "cell"),
    "a part without shifts": ("trainset", "edge_shifts"),
    "a part without edges": ("valset", "edge_index"),
}


@pytest.mark.parametrize(("label", "key"), LACKING.values(), ids=LACKING)
def test_geometry_that_some_lack_is_refused(tmp_path: Path, label: str, key: str) -> None:
    sets: dict[str, Any] = {"trainset": samples(4), "valset": samples(4, seed=1)}
    sets[label] = [{name: value for name, value in one.items() if name != key} for one in sets[label]]
    refuses(f"{key} is not in every part", open_store, write_bp(tmp_path / "set.bp", sets, {}))


WRONG_GEOMETRY: dict[str, tuple[Any, str]] = {
    "no shifts": (lambda one: one | {"cell": np.eye(3) * 2.0, "edge_shifts": None}, "where an image is"),
    "neither shifts nor axes": (
        lambda one: one | {"cell": np.eye(3) * 2.0, "edge_shifts": None, "pbc": None},
        "where an image is",
    ),
    "axes without a cell": (lambda one: one | {"cell": None}, "singular along its periodic axes"),
    "shifts that are no images": (lambda one: one | {"edge_shifts": one["edge_shifts"] * 0.3}, "no whole number of"),
    "fewer shifts than edges": (lambda one: one | {"edge_shifts": one["edge_shifts"][1:]}, "edge_shifts has another"),
    "edges that are no whole numbers": (lambda one: one | {"edge_index": one["edge_index"] * 1.0}, "edge_index has an"),
    "positions on a line": (lambda one: one | {"pos": one["pos"][:, 0]}, "pos has another shape"),
}


@pytest.mark.parametrize(("change", "words"), WRONG_GEOMETRY.values(), ids=WRONG_GEOMETRY)
def test_geometry_that_would_be_read_wrongly_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    some = [{key: value for key, value in change(one).items() if value is not None} for one in samples(4)]
    path = write_bp(tmp_path / "set.bp", {"trainset": some}, {})
    refuses(words, lambda: open_store(path).read(range(4)))


def test_missing_labels_are_those_of_the_copy(tmp_path: Path) -> None:
    some = [one | {"energy": one["energy"] * (np.nan if place == 1 else 1)} for place, one in enumerate(samples(4))]
    path = write_bp(tmp_path / "set.bp", {"trainset": some}, {})
    convert_store(path, tmp_path / "copy.h5")
    stores = open_store(path), open_store(tmp_path / "copy.h5")
    for store in stores:
        column, batch = store.column("energy"), store.read([1, 2])
        assert column.present.tolist() == [True, False, True, True] and column.values[1] == 0
        assert batch.masks["energy"].tolist() == [False, True]
    assert stores[0].fingerprint == stores[1].fingerprint


@pytest.mark.parametrize("call", [hydragnn.store_info, check_store], ids=["info", "check"])
def test_what_needs_a_store_names_the_command_that_makes_one(tmp_path: Path, call: Any) -> None:
    refuses("hydragnn data convert", call, write_bp(tmp_path / "set.bp", {"trainset": samples(2)}, {}))


def read_in_threads(path: Path) -> None:
    sys.setswitchinterval(1e-5)
    store = open_store(path)
    chosen = np.random.default_rng(0).integers(0, len(store), (40, 8))
    one_by_one = [store.read(graphs).positions for graphs in chosen]
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda place: store.read(chosen[place % 40]).positions, range(400))]
    assert all(torch.equal(one_by_one[place % 40], positions) for place, positions in enumerate(together))


@pytest.mark.parametrize("suffix", [".bp", ".h5", ""])
def test_threads_read_what_one_reads(tmp_path: Path, suffix: str) -> None:
    path = write_bp(tmp_path / "set.bp", {"trainset": samples(200)}, {})
    if suffix:
        convert_store(path, tmp_path / f"copy{suffix}")
    run_forked(read_in_threads, tmp_path / f"copy{suffix}" if suffix else path)


def test_names_in_a_set_are_not_evaluated(tmp_path: Path) -> None:
    bad = "q=v;import os;os.mkdir('ran')"
    sets = {"trainset": [{**one, bad: one["y"]} for one in samples(4)]}
    store = open_store(write_bp(tmp_path / "set.bp", sets, {}))
    assert [*store.attributes["left_out"]] == [bad] and bad not in [field.name for field in store.fields()]
    assert [*tmp_path.iterdir()] == [tmp_path / "set.bp"]


def test_training_on_a_set_takes_the_steps_of_its_copy(tmp_path: Path) -> None:
    sets = {"trainset": samples(24), "valset": samples(8, seed=1), "testset": samples(8, seed=2)}
    convert_store(write_bp(tmp_path / "set.bp", sets, {}), tmp_path / "copy.h5")
    weights = []
    for name in ("set.bp", "copy.h5"):
        table = {
            "data": {"store": str(tmp_path / name), "inputs": ["x"]},
            "split": {"kind": "given", "field": "part"},
            "model": {"kind": "egnn", "hidden_dim": 8, "num_layers": 1, "cutoff": 12.0},
            "heads": [{"kind": "scalar", "field": "energy"}, {"kind": "vector", "field": "forces"}],
            "train": {"epochs": 2},
        }
        hydragnn.train(table, tmp_path / name.partition(".")[0], quiet=True)
        weights.append((tmp_path / name.partition(".")[0] / "model" / "weights.safetensors").read_bytes())
    assert weights[0] == weights[1]
