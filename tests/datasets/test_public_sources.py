"""Files of the public HydraGNN by a build file: heads, pickled folders, raw texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.datasets import build_store, open_store
from hydragnn.datasets.sources.registry import read_build_settings
from tests.datasets.public_files import samples, write_bp
from tests.datasets.test_public_sets import per_sample
from tests.refusals import refuses


def store_of(folder: Path, out: Path, **table: Any) -> Any:
    build_store(read_build_settings({"kind": "hydragnn", **table}, folder / "BUILD.toml"), out)
    return open_store(out)


def test_heads_are_columns_of_keys(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "hydragnn" / "bp"
    fields = [
        {"name": "Z", "on": "node", "key": "x", "column": 0},
        {"name": "energy", "on": "graph", "role": "target", "key": "y", "dtype": "float32"},
        *({"name": f"x{n}", "on": "node", "role": "target", "key": "x", "column": n} for n in range(3)),
    ]
    store = store_of(folder, tmp_path / "out.h5", files=["e_multihead.bp"], fields=fields)
    expected = np.load(folder / "e_multihead.expected.npz")
    bounds = per_sample(expected, "var_config.trainset.y_loc")
    for number, y in enumerate(per_sample(expected, "var_config.trainset.y")):
        graph, cuts = store[number], bounds[number][0]
        for place, name in enumerate(("energy", "x0", "x1", "x2")):
            assert graph[name].tolist() == y[cuts[place] : cuts[place + 1], 0].tolist()
    assert {field.name for field in store.fields()} == {"part", *(one["name"] for one in fields)}


RUN = "hydragnn-generations/run_v3_EGNN_pickle"


def test_pickled_folders_are_read(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / RUN
    store = store_of(folder / "dataset", tmp_path / "out.h5", files=["run_v3_EGNN_pickle.pickle"])
    arrays = np.load(folder / "graphs.npz")
    test = store.read([place for place, label in enumerate(store.texts["label"]) if label == "testset"])
    assert store.attributes["pna_deg"][:3] == [0, 0, 9]
    assert len(test) == 5 and test["energy"].tolist() == arrays["g0.energy"].tolist()


UNIT = {"files": ["unit_test"], "format": "lsms", "cutoff": 2.0, "max_neighbours": 100, "charge_rule": True}
UNIT |= {"node_features": [[0], [6], [7]], "graph_features": [[0]]}
VECTOR = {"node_features": [[0, 1], [0], [6, 7]], "graph_features": [[0], [0, 1], [1]], "per_node": {"y": [2]}}
RAW: dict[str, tuple[dict[str, Any], str]] = {
    "unit_class_raw": (UNIT, ""),
    "unit_class_norm_r1_k3": ({**UNIT, "cutoff": 1.0, "max_neighbours": 3, "scaling": "minmax"}, ""),
    "unit_legacy": ({**UNIT, "scaling": "minmax"}, "before_edges."),
    "unit_vector_rot": ({**UNIT, **VECTOR, "scaling": "minmax"}, "before_edges."),
    "cfg_class": ({"files": ["cfg"], "format": "cfg", "cutoff": 3.0}, ""),
    "cfg_legacy": ({"files": ["cfg"], "format": "cfg", "cutoff": 3.0, "scaling": "minmax"}, "before_edges."),
    "xyz_class": ({"files": ["xyz"], "format": "xyz", "cutoff": 2.5, "max_neighbours": 12}, ""),
}


@pytest.mark.parametrize(("case", "table", "prefix"), [(case, *value) for case, value in RAW.items()], ids=RAW)
def test_raw_files_are_read_with_their_scales(
    real_data: Path, tmp_path: Path, case: str, table: dict[str, Any], prefix: str
) -> None:
    folder = real_data / "hydragnn" / "raw"
    expected, store = np.load(folder / f"{case}.expected.npz"), store_of(folder, tmp_path / "out.h5", **table)
    x, y, pos = (per_sample(expected, f"{prefix}{key}") for key in ("x", "y", "pos"))
    for number in range(len(x)):
        graph = store[number]
        assert graph["x"].numpy().reshape(x[number].shape) == pytest.approx(x[number], abs=1e-6, rel=1e-5)
        assert graph["y"].numpy().reshape(-1) == pytest.approx(y[number].reshape(-1), abs=1e-6, rel=1e-5)
        if "rot" not in case:
            assert graph.positions.numpy() == pytest.approx(pos[number], abs=1e-6)
    if "minmax_node_feature" in expected:
        assert np.array(store.attributes["minmax_node_feature"]) == pytest.approx(
            expected["minmax_node_feature"], rel=1e-5
        )
    if "k3" not in case:  # which of equally near neighbours are taken is anybody's choice
        for number, (edges, lengths) in enumerate(
            zip(*(per_sample(expected, f"edge_{one}") for one in ("index", "attr")))
        ):
            graph, order = store[number], np.lexsort(edges)
            ends = np.stack([graph.senders, graph.receivers])
            own = np.lexsort(ends)
            assert (ends[:, own] == edges[:, order]).all()
            assert graph["edge_attr"].numpy()[own] == pytest.approx(lengths[order].reshape(-1), abs=1e-6)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no cutoff": ({**UNIT, "cutoff": None}, "give format and cutoff together"),
    "no columns": ({**UNIT, "node_features": []}, "node_features name the columns"),
    "columns of no text": ({**UNIT, "format": "xyz"}, "node_features name the columns"),
    "one column of charges": ({**UNIT, "node_features": [[0]]}, "name two"),
    "a column of no y": ({**UNIT, "per_node": {"y": [3]}}, "IndexError"),
    "two columns for a number": (
        {"files": ["set.bp"], "fields": [{"name": "forces", "on": "node"}]},
        r"shape .3, 3. is not .3,.; reshape it",
    ),
    "a missing label": (
        {"files": ["set.bp"], "fields": [{"name": "energy", "on": "graph", "role": "target"}]},
        "nan in row 0",
    ),
    "no text": ({"files": ["set.bp"], "texts": ["smile"]}, "did you mean smiles"),
    "a file": ({"files": ["file.bp"]}, "file.bp NEW.bp BPFile"),
    "a column that there is not": ({**UNIT, "node_features": [[0], [20]]}, "lacks a column"),
    "another format": ({"files": ["unit_test"], "format": "cfg", "cutoff": 2.0}, "no file ends with .cfg"),
    "too few parts": ({**UNIT, "file_parts": []}, "a part for each entry"),
    "a field without key": (
        {"files": ["set.bp"], "fields": [{"name": "mass", "on": "node"}]},
        "mass is no key of nodes",
    ),
    "no text for names": ({"files": ["set.bp"], "name_key": "smile"}, "did you mean smiles"),
    "heads of no y": ({"files": ["set.bp"], "heads": ["graph"]}, "heads name 1 places, and y has 0 heads"),
    "no set": ({"files": ["unit_test"]}, "neither a .bp set nor a folder"),
}


@pytest.mark.parametrize(("table", "words"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    (tmp_path / "unit_test").mkdir()
    (tmp_path / "unit_test" / "output0.txt").write_text("1.0 2.0\n1 0 0 0 0 1 2 3\n")
    first, second = samples(2)
    write_bp(tmp_path / "set.bp", {"trainset": [first, second | {"energy": np.full(1, np.nan, dtype="f4")}]}, {})
    (tmp_path / "file.bp").write_text("no folder")
    refuses(words, store_of, tmp_path, tmp_path / "out.h5", **table)


def test_missing_labels_stay_missing_in_declared_fields(tmp_path: Path) -> None:
    some = [one | {"energy": one["energy"] * (np.nan if place == 1 else 1)} for place, one in enumerate(samples(4))]
    write_bp(tmp_path / "set.bp", {"trainset": some}, {})
    field = {"name": "E", "key": "energy", "on": "graph", "role": "target", "optional": True}
    column = store_of(tmp_path, tmp_path / "out.h5", files=["set.bp"], fields=[field]).column("E")
    assert column.present.tolist() == [True, False, True, True] and (column.values != 0).tolist() == [*column.present]
