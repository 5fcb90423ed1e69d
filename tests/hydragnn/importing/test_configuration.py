"""Configurations of the public HydraGNN become files that are read and train."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydragnn
from hydragnn.config import parse_config
from hydragnn.datasets import build_store
from hydragnn.datasets.sources.registry import read_build_settings
from hydragnn.importing.configuration import import_configuration, toml
from tests.datasets.public_files import samples, write_bp
from tests.hydragnn.importing.public_runs import config_of, of_branches
from tests.refusals import refuses

SHARED = Path(__file__).parents[4] / "shared" / "data"
FOLDERS = ("hydragnn/ckpt/*", "hydragnn-generations/*", "hydragnn-generations/*/logs/*")
CONFIGURATIONS = sorted(path for folder in FOLDERS for path in SHARED.glob(f"{folder}/config.json"))
TRAINED = [
    "GIN_v2_convhead",
    "CGCNN_v3_multihead",
    "EGNN_gfm2024_m61",
    "EGNN_v4_branches3",
    "GIN_v4_gps",
    "SAGE_v5_cond_film",
    "EGNN_vars_mlip",
    "PNA_vars_multihead",
    "MACE_opt_cheb_agnesi",
    "DimeNet_nolen_atoms3",
    "SchNet_mlip",
    "MFC_atoms3",
    "GIN_gaussian_nll",
    "PAINN_equivariant_transformer",
    "GAT_lengths3",
    "PNAEq_convhead",
    "PNAPlus_lengths3",
]


def sets_for(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Return samples that have what a build file reads."""
    sets = {"trainset": samples(8), "valset": samples(4, seed=1), "testset": samples(4, seed=2)}
    rng = np.random.default_rng(0)
    for some in sets.values():
        for sample in some:
            rows = {"node": len(sample["pos"]), "edge": sample["edge_index"].shape[1]}
            sample["pbc"], sample["cell"] = np.zeros(3, dtype="i4"), np.zeros((3, 3))
            sample["edge_shifts"] = sample["edge_shifts"] * 0
            for field in fields:
                key, columns = field.get("key", field["name"]), np.atleast_1d(field.get("column", []))
                width = int(max([*(columns + 1), np.prod(field.get("shape", [1]))]))
                shape = (width,) if field["on"] == "graph" else (rows[field["on"]], width)
                if key not in sample or sample[key].shape[-1] < width:
                    sample[key] = rng.integers(1, 9, shape).astype("f4")
    return sets


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name[:40])
def test_configurations_are_read_by_our_parsers(path: Path) -> None:
    imported = import_configuration(path)
    run, build = tomllib.loads(toml(imported.run, imported.notes)), tomllib.loads(toml(imported.build))
    assert (run, build) == (imported.run, imported.build)
    parse_config(run, str(path))
    names = [field["name"] for field in read_build_settings(build, path.parent / "BUILD.toml").model_dump()["fields"]]
    assert {head["field"] for branch in run.get("branches", [run]) for head in branch["heads"]} <= {*names}


@pytest.mark.parametrize(
    "path", [path for path in CONFIGURATIONS if path.parent.name in TRAINED], ids=lambda path: path.parent.name
)
def test_configurations_train(tmp_path: Path, path: Path) -> None:
    imported = import_configuration(path, ["set.bp"], "data.h5")
    write_bp(tmp_path / "set.bp", sets_for(imported.build["fields"]), {})
    build_store(read_build_settings(tomllib.loads(toml(imported.build)), tmp_path / "BUILD.toml"), tmp_path / "data.h5")
    run = tomllib.loads(toml(imported.run, imported.notes))
    run["train"]["epochs"] = 1
    for branch in run.get("branches", [run]):
        branch |= {"data": {"store": str(tmp_path / "data.h5")}, "split": {"kind": "given", "field": "part"}}
    hydragnn.train(run, tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {"scaling": "minmax", "charge_rule": True}),
        ({"normalize_features": False}, {"scaling": None}),
        ({"format": "CFG"}, {"scaling": "minmax"}),
        ({"format": "XYZ"}, {"scaling": None}),
        ({"format": "XYZ", "normalize_features": True}, {"scaling": "minmax"}),
        ({"node_features": {"name": ["z"], "dim": [1], "column_index": [0]}}, {"charge_rule": False}),
    ],
)
def test_raw_files_are_scaled_as_their_loader_did(tmp_path: Path, changes: Any, words: Any) -> None:
    features = {
        level: {"name": ["z"], "dim": [2], "column_index": [0]} for level in ("node_features", "graph_features")
    }
    raw = {"format": "LSMS", "path": {"total": "raw"}, **features, **changes}
    table = config_of(radius=2.0) | {"Dataset": raw}
    (tmp_path / "config.json").write_text(json.dumps(table))
    imported = import_configuration(tmp_path / "config.json")
    assert {key: imported.build.get(key) for key in words} == words
    assert any("were scaled" in note for note in imported.notes) == (imported.build.get("scaling") is not None)


@pytest.mark.parametrize(
    ("paths", "files"), [({}, ["SET0.bp", "SET1.bp"]), ({"branch-0": "a.bp", "branch-1": "b.bp"}, ["a.bp", "b.bp"])]
)
def test_branches_are_those_of_a_run_with_a_set_for_each(tmp_path: Path, paths: Any, files: list[str]) -> None:
    config = config_of(output_heads=of_branches(2)) | {"Dataset": {"path": paths}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.bp" / "data.0").mkdir(parents=True)  # which is named from wherever the build file lies
    files = [str(tmp_path / "a.bp") if file == "a.bp" else file for file in files]
    imported = hydragnn.import_public(tmp_path / "config.json", tmp_path / "out")
    run = parse_config(tomllib.loads((tmp_path / "out" / "run.toml").read_text()))
    assert [(one.name, str(one.data.store), one.targets) for one in run.branches] == [
        (f"branch-{number}", f"branch-{number}.h5", ["energy_per_atom", "forces"]) for number in (0, 1)
    ]
    build, out = f"hydragnn data build {tmp_path}/out/build.toml", tmp_path / "out"
    assert imported.next[:2] == [
        f"{build} --set 'files=[\"{file}\"]' --out {out}/branch-{number}.h5" for number, file in enumerate(files)
    ]


def test_text_of_a_configuration_makes_no_keys(tmp_path: Path) -> None:
    training = {"num_epoch": 1, "batch_size": 2, "Optimizer": {"type": "Adam\nstart = 1"}}
    chosen = {"input_node_features": [0], "type": ["graph"], "output_index": [0], "output_names": ['en"er]gy\u2028']}
    architecture = {"mpnn_type": "GIN", "hidden_dim": 4, "num_conv_layers": 1, "task_weights": [1]}
    table = {"NeuralNetwork": {"Architecture": architecture, "Variables_of_interest": chosen, "Training": training}}
    (tmp_path / "config.json").write_text(json.dumps({**table, "Dataset": {"name": "a\"\nkind = 'pyg'"}}))
    imported = import_configuration(tmp_path / "config.json")
    run, build = tomllib.loads(toml(imported.run, imported.notes)), tomllib.loads(toml(imported.build))
    assert (run, build) == (imported.run, imported.build) and run["heads"][0]["field"] == "en_er_gy"
    parse_config(run)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ("[" * 10**5, "is not valid JSON"),
        ("[]", "mpnn_type is None, none of GIN"),
        (json.dumps({"NeuralNetwork": {"Architecture": {"mpnn_type": "GNN"}}}), "mpnn_type is GNN"),
        (json.dumps({"NeuralNetwork": {"Architecture": {"mpnn_type": "GIN"}}}), "KeyError"),
        (json.dumps({"NeuralNetwork": 3}), "NeuralNetwork is no section"),
        (json.dumps(config_of() | {"Dataset": {"path": {"train": ["a", "b"]}}}), r"path train is \['a', 'b'\], which"),
        (json.dumps(config_of() | {"Dataset": {"path": {"branch-1": 7}}}), "path branch-1 is 7, which is no text"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    refuses(words, import_configuration, tmp_path / "config.json")
