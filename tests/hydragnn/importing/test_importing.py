"""Files of the public HydraGNN become runs that predict as its code did; hostile ones do nothing."""

import io
import json
import math
import os
import shlex
import shutil
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from html import escape
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.io import write
from torch import Tensor

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.frozen import FrozenGraph
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.hpo.space.parameters import Choices, IntRange
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.warm import warm_source
from hydragnn.importing import data
from hydragnn.importing.finding import find_data, find_models
from hydragnn.importing.page import import_folder, read_page
from hydragnn.importing.runs import imported_models, write_run
from hydragnn.importing.variables import Variable
from hydragnn.models import load_model
from tests.datasets.public_files import samples, write_bp
from tests.hydragnn.frozen.folders import batches, folders
from tests.hydragnn.importing.public_runs import (
    Code,
    archive,
    config_of,
    event,
    of_branches,
    sets_of_branches,
    tensor,
    write_model,
    write_pickles,
)
from tests.refusals import refuses

CLOSE = 1e-5
"""Largest difference in single precision, in parts of the largest value: sums run in another order."""
NUMBERS = b"\0" * 40


def whole(table: Any, **more: Any) -> bytes:
    return archive({"model_state_dict": {"module.a": table}}, {"0": NUMBERS}, **more)


def torch_bytes(table: Any) -> bytes:
    content = io.BytesIO()
    torch.save(table, content)
    return content.getvalue()


def of_table(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as records:
        records.writestr("archive/data.pkl", content)
    return file.getvalue()


class Changed:
    """Tensor of ten numbers, whose size is changed after it was checked."""

    def __reduce__(self) -> Any:
        return *tensor(10, 0, (10,), (1,)).__reduce__(), {"size": (10**10,), "stride": (0,)}


GOOD = torch_bytes({"model_state_dict": {"module.a": torch.arange(10.0)}})
TWICE = io.BytesIO(GOOD)
with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(TWICE, "a") as records:
    records.writestr(records.namelist()[-1], NUMBERS)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "calls a function": (whole(Code(os.system, "touch executed")), "system, which would run code"),
    "calls by optimizer": (
        archive({"model_state_dict": {"a": tensor(10, 0, (10,), (1,))}, "o": Code(eval, "1")}, {"0": NUMBERS}),
        "eval, which would run code",
    ),
    "numpy arrays": (torch_bytes({"a": np.zeros(2)}), "which would run code"),
    "whole module": (torch_bytes(torch.nn.Linear(2, 2)), "save model.state_dict\\(\\) alone"),
    "ten gigabytes": (whole(tensor(2_500_000_000, 0, (2_500_000_000,), (1,))), "record has 40 bytes"),
    "expanded": (whole(tensor(10, 0, (10**10,), (0,))), "in 10 numbers"),
    "beyond its end": (whole(tensor(10, 5, (10,), (1,))), "out of bounds"),
    "negative": (whole(tensor(10, 0, (-1,), (1,))), "damaged"),
    "no numbers": (archive({"model_state_dict": {"a": tensor(10, 0, (10,), (1,))}}, {}), "record has 0 bytes"),
    "two records of one name": (TWICE.getvalue(), "encrypted or of one name"),
    "a name of many dots": (torch_bytes({"branch-0" + ".a" * 100_000: torch.ones(1)}), "beside those of config.json"),
    "two numbers of one name": (
        torch_bytes({f"{prefix}a": torch.full((1,), len(prefix)) for prefix in ("", "module.")}),
        "two tensors whose names differ in a prefix",
    ),
    "a wrapped name and the same": (
        torch_bytes({f"{prefix}a": torch.ones(1) for prefix in ("", "_orig_mod.")}),
        "two tensors whose names differ in a prefix",
    ),
    "other size later": (archive({"model_state_dict": {"a": Changed()}}, {"0": NUMBERS}), "no branch-0"),
    "ten gigabytes of one string": (of_table(b"\x80\x05\x96" + (10**10).to_bytes(8, "little") + b"."), "damaged"),
    "a key whose hash has no end": (
        of_table(b"\x80\x02)" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60)) + b"q\x3c}h\x3cK\x01s."),
        "a tuple as a key",
    ),
    "twenty million objects": (of_table(b"\x80\x05" + b"}" * 20_000_000 + b"."), "more bytes than names of tensors"),
    "sizes alone": (torch_bytes({"module": {"a.weight": torch.empty(0)}}), "without numbers, as DeepSpeed leaves them"),
    "no tensors": (torch_bytes({"model_state_dict": {}}), "no state dictionary"),
    "a list": (torch_bytes([1, 2]), "no state dictionary"),
    "one number changed": (GOOD.replace(np.float32(7).tobytes(), np.float32(8).tobytes(), 1), "their checksum"),
    "cut off": (GOOD[:-60], "no checkpoint, or damaged"),
    "cut in the middle": (GOOD[: len(GOOD) // 2], "no checkpoint, or damaged"),
    "compressed": (whole(tensor(10, 0, (10,), (1,)), compression=zipfile.ZIP_DEFLATED), "compressed"),
    "no table": (b"PK\x05\x06" + b"\0" * 18, "no table"),
    "text": (b"weights", "torch before 1.6"),
    "empty": (b"", "no checkpoint, or damaged"),
}
"""Checkpoints that test_hostile_files tries, with sets."""


CONTRADICTIONS: dict[str, tuple[Any, str]] = {
    "other width": ({"hidden_dim": 9}, "of different models"),
    "more layers": ({"num_conv_layers": 3}, "of different models"),
    "unknown kind": ({"mpnn_type": "GNN"}, "kind"),
    "unknown activation": ({"activation_function": "tanh"}, "tanh"),
    "no heads": ({"output_heads": None}, "config.json"),
    "other outputs": ({"output_dim": [1, 1]}, "other outputs"),
    "more inputs": ({"input_dim": 2}, "names 1 inputs"),
    "no configuration": (None, "no config.json"),
    "no architecture": ({"NeuralNetwork": {}}, "NeuralNetwork.Architecture"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(name: str, tmp_path: Path) -> None:
    changes, words = CONTRADICTIONS[name]
    write_model(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    if changes is None:
        config.unlink()
    else:
        config.write_text(json.dumps(changes if "NeuralNetwork" in changes else config_of(**changes)))
    with pytest.raises(InputError, match=words):
        import_folder(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


ODD: dict[str, tuple[str, Any, str]] = {
    "a text for a number": ("NeuralNetwork.Architecture.radius", "3.0", 'radius = "3.0" is a text'),
    "a text for a truth": ("NeuralNetwork.Architecture.enable_interatomic_potential", "false", "without quotes"),
    "a rate that is none": (
        "NeuralNetwork.Training.Optimizer",
        {"learning_rate": float("nan")},
        "rate = nan is not finite",
    ),
    "a weight that is none": (
        "NeuralNetwork.Architecture.task_weights",
        [float("inf"), 1],
        "task_weights = .inf, 1. is not",
    ),
    "no distance": ("NeuralNetwork.Architecture.radius", -1, "is no distance"),
    "forces without positions": (
        "NeuralNetwork.Architecture.enable_interatomic_potential",
        True,
        "GIN does not depend on",
    ),
    "one weight of two": ("NeuralNetwork.Architecture.task_weights", [1.0], "2 outputs and 1 task_weights"),
    "a column from the end": ("NeuralNetwork.Variables_of_interest.output_index", [0, -1], "count from the end"),
    "an unknown level": ("NeuralNetwork.Variables_of_interest.type", ["graph", "edge"], "what x and y hold"),
    "a scale that is none": ("NeuralNetwork.Variables_of_interest.y_minmax", [[0, float("nan")]] * 2, "not finite"),
    "an encoding": (
        "Variables",
        {"inputs": [{"name": "z", "level": "node", "dim": 1, "encoding": {"type": "one_hot"}}], "outputs": []},
        "the encoding of z is not read",
    ),
    "a list for a section": ("NeuralNetwork.Training", [1], "Training is no section"),
    "a text for a section": ("NeuralNetwork.Training.Optimizer", "Adam", "Optimizer is no section"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_values_are_refused(name: str, tmp_path: Path) -> None:
    place, value, words = ODD[name]
    write_model(tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    *sections, key = place.split(".")
    reduce(getitem, sections, config)[key] = value
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match=words):
        import_folder(tmp_path / "run", tmp_path / "out")
    assert {one.name for one in tmp_path.iterdir()} == {"run"}


LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "a path that none can be": ({"path": {"total": "a" * 5000}}, "none beside"),
    "an empty folder": ({"path": {"total": "empty"}}, "none beside"),
    "no columns": ({}, "does not say how raw files are read"),
    "a list for a path": ({"path": {"total": ["raw", "b"]}}, "path total is ['raw', 'b'], which is no text"),
    "a number for all paths": ({"path": 7}, "is 7, which is no text"),
    "a path of all parts": ({"path": "raw"}, "does not say how raw files are read"),
    "no numbers": ({"column_index": [0, 1, 2]}, "lacks a column"),
    "a set without files": ({"path": {"total": "set.pickle"}}, "neither md.idx of ADIOS2 nor a -meta.pkl"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_raw_files_that_cannot_be_read_are_left_out(name: str, tmp_path: Path) -> None:
    changes, words = LEFT_OUT[name]
    write_model(tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    config["Dataset"] |= {"format": "LSMS", "path": {"total": "raw"}, **changes}
    for level in ("node_features", "graph_features"):
        config["Dataset"][level] |= changes
    file.write_text(json.dumps(config))
    (tmp_path / "run" / "empty").mkdir()
    if name == "a set without files":
        (tmp_path / "run" / "set.pickle").mkdir()
    (tmp_path / "run" / "raw").mkdir()
    (tmp_path / "run" / "raw" / "a.txt").write_text("no number\n")
    assert words in import_folder(tmp_path / "run", tmp_path / "out").data


PLACES: dict[str, tuple[list[str], str, list[str]]] = {
    "one file": (["model.pk"], "model.pk", ["model.pk"]),
    "its folder": (["run/checkpoint.pk"], "run", ["checkpoint.pk"]),
    "logs": (["logs/NAME/NAME.pk"], ".", ["NAME.pk"]),
    "epochs beside the last": (["a/N.pk", "a/N_epoch_1.pk", "a/N_epoch_2.pk"], "a", ["N.pk"]),
    "epochs alone": (["a/N_epoch_9.pk", "a/N_epoch_10.pk"], "a", ["N_epoch_10.pk"]),
    "branches": (["a/N_branch0.pk", "a/N_branch1.pk"], "a", ["N_branch0.pk", "N_branch1.pk"]),
    "several runs": (["m1/c.pk", "m2/c.pk"], ".", ["c.pk", "c.pk"]),
    "of DeepSpeed": (["a/a/mp_rank_00_model_states.pt"], "a", ["mp_rank_00_model_states.pt"]),
    "another name": (["a/best.pth"], "a", ["best.pth"]),
    "sets are not searched": (["a/c.pk", "a/dataset/s.pickle/x.pk"], "a", ["c.pk"]),
}


@pytest.mark.parametrize("name", PLACES)
def test_models_are_found(name: str, tmp_path: Path) -> None:
    files, given, found = PLACES[name]
    for file in files:
        write_model((tmp_path / file).parent, Path(file).name)
    assert [one.checkpoint.name for one in find_models(tmp_path / given)] == found


def test_files_of_one_folder_do_not_become_those_of_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / "runs" / name)
    (tmp_path / "runs" / "b" / "again.pk").symlink_to("NAME.pk")
    (tmp_path / "of-others.bp").mkdir()
    (tmp_path / "runs" / "linked").symlink_to("a")
    (tmp_path / "runs" / "a" / "config.json").rename(tmp_path / "runs" / "a" / "old.json")
    (tmp_path / "runs" / "a" / "new.json").write_text(json.dumps(config_of(hidden_dim=9)))
    page = hydragnn.import_public(tmp_path / "runs", tmp_path / "out")
    assert [Path(one.file).parent.name for one in page.models] == ["b"]
    assert "name that of" in page.left_out[0] and "of-others" not in page.data


def test_a_set_of_the_name_of_the_data_is_found_one_folder_up(tmp_path: Path) -> None:
    write_model(tmp_path / "run")
    write_pickles(tmp_path / "some.pickle", sets_of_branches(1))
    assert "48 graphs of" in import_folder(tmp_path / "run", tmp_path / "out").data


def test_runs_have_folders_of_their_own(tmp_path: Path) -> None:
    for folder in ("1/r", "2/r", "3/r-2", "4/ensemble"):
        write_model(tmp_path / "runs" / folder)
    page = import_folder(tmp_path / "runs", tmp_path / "out")
    assert [one.run for one in page.models] == ["r", "r-2", "r-2-2", "ensemble-2"]


def test_configuration_one_folder_up_and_a_broken_link(tmp_path: Path) -> None:
    write_model(tmp_path / "a" / "b", "N_epoch_1.pk")
    (tmp_path / "a" / "b" / "config.json").rename(tmp_path / "a" / "config.json")
    (tmp_path / "a" / "b" / "N.pk").symlink_to("N_epoch_7.pk")
    assert [one.checkpoint.name for one in find_models(tmp_path)] == ["N_epoch_1.pk"]


def test_a_link_has_the_configuration_and_the_data_beside_its_target(tmp_path: Path) -> None:
    file = write_model(tmp_path / "logs" / "run")
    public_set(tmp_path / "logs" / "some.bp")
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "best.pk").symlink_to(file)
    for place in (tmp_path / "chosen", tmp_path / "chosen" / "best.pk"):
        (model,) = find_models(place)
        assert model.source.table["NeuralNetwork"]
        assert find_data(model) == tmp_path / "logs" / "some.bp"
    (tmp_path / "chosen" / "config.json").write_text(json.dumps({"NeuralNetwork": {"Architecture": {"own": 1}}}))
    assert find_models(tmp_path / "chosen")[0].source.table["NeuralNetwork"]["Architecture"] == {"own": 1}


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("feature_layers.0.module.running_var", lambda own: own - 2, "variances below 0, in .*running_var"),
        (
            "feature_layers.0.module.running_var",
            lambda own: own * math.nan,
            "NaN or infinite numbers, or .*running_var",
        ),
        (
            "feature_layers.0.module.running_var",
            torch.Tensor.int,
            "running_var of the checkpoint has dtype torch.int32",
        ),
        ("heads_NN.0.branch-0.0.weight", torch.Tensor.char, "weight of the checkpoint has dtype torch.int8"),
    ],
)
def test_numbers_that_are_no_weights_are_refused(
    name: str, change: Any, words: str, data: bool, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    content["model_state_dict"][f"module.{name}"] = change(content["model_state_dict"][f"module.{name}"])
    torch.save(content, file)
    if data:
        public_set(tmp_path / "set.bp")
    with pytest.raises(InputError, match=words):
        hydragnn.import_public(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_of_torch_are_named_with_the_command_that_joins_them(tmp_path: Path) -> None:
    (tmp_path / "run" / "dcp").mkdir(parents=True)
    (tmp_path / "run" / "dcp" / "__0_0.distcp").touch()
    with pytest.raises(InputError, match=r"dcp_to_torch .*run/dcp NEW.pk"):
        find_models(tmp_path)


def test_test_graphs_are_measured_without_validation_graphs(tmp_path: Path) -> None:
    write_model(tmp_path / "run")
    sets, tests = sets_of_branches(1), []
    for part, name in (("whole", ""), ("cut", "valset")):
        some = {key: one for key, one in sets.items() if key != name}
        write_pickles(tmp_path / "run" / f"{part}.pickle", some)
        page = hydragnn.import_public(tmp_path / "run", tmp_path / part)
        (tmp_path / "run" / f"{part}.pickle").rename(tmp_path / f"{part}.pickle")
        tests.append(page.models[0].test["forces"])
        tuning = tomllib.loads((tmp_path / part / "tune.toml").read_text())
        assert tuning["split"] == {"kind": "given", "field": "part"}  # test graphs never train
        if part == "cut":
            refuses(
                "no validation graphs: no value of part is 1",
                hydragnn.train,
                tmp_path / part / "tune.toml",
                tmp_path / "tuned",
            )
    assert tests[0] == tests[1] and tests[0]["count"]


def test_structures_are_predicted_alone_and_by_a_tuned_model(tmp_path: Path) -> None:
    write_model(tmp_path / "run")
    out = tmp_path / "a run's"
    page = hydragnn.import_public(tmp_path / "run", out)
    assert [one.generation for one in page.models] == ["v4.0+"]
    assert "predicts: energy_per_atom, forces" in "\n".join(page.lines())
    assert [shlex.split(one)[2] for one in page.next] == [*map(str, (out, out, out / "tune.toml"))]
    model = hydragnn.load(out)
    predictions = model.predict([molecule("H2O"), bulk("Cu", cubic=True)])
    assert predictions["energy_per_atom"]["mean"].shape == (2,) and predictions["forces"]["mean"].shape == (7, 3)


def alone(folder: Path) -> dict[str, Tensor]:
    """Return outputs of every graph alone, where those of a batch mix."""
    path = folder / "predictions.npz"
    if not path.is_file():
        return {}
    with np.load(path) as file:
        return {name.rpartition(".")[2]: torch.from_numpy(file[name]) for name in file if name.startswith("alone0.")}


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_runs_predict_what_the_writer_computed(folder: Path, real_data: Path, tmp_path: Path) -> None:
    models = imported_models(find_models(folder)[0])
    for graph, expected in batches(folder):
        outputs = alone(folder) or expected.get(torch.float32) or expected[torch.float64]
        branch = graph.extra.get("branch")
        for number, model in enumerate(models if branch is None or len(models) > 1 else []):
            variables, more = [*model.reading.variables], {}
            if graph.x.frac().any():  # divided by 20, which a folder without data does not tell
                number_field = Field(name="number", on="node")
                variables = [replace(one, field=number_field) if one.field.classes else one for one in variables]
            if graph.edge_attr is not None and model.settings.edge_dim:
                variables.append(Variable(field=Field(name="edge_attr", on="edge"), key="edge_attr"))
                more = {"edge_lengths": 0.0}
            model = replace(model, reading=replace(model.reading, variables=variables, **more))
            write_run(model, None, tmp_path / model.name, tmp_path)
            predicted = load_model(tmp_path / model.name / "model").predict(batch_of(graph, model.reading.inputs))
            for place, (name, one) in enumerate(predicted.items()):
                key = name if model.settings.interatomic else f"head{place}"
                own = outputs[key]
                rows = slice(None) if branch is None else branch == number
                if len(own) == len(graph.x) and branch is not None:
                    rows = branch[graph.batch] == number
                difference = (one.mean.reshape(own.shape) - own)[rows].abs().max() / own.abs().max()
                pairs = [(value, expected.get(torch.float64, {}).get(name, value)) for name, value in outputs.items()]
                rounding = max(float((single - exact).abs().max() / single.abs().max()) for single, exact in pairs)
                assert difference < CLOSE + 5 * rounding, (name, difference)
        return


def batch_of(graph: FrozenGraph, inputs: Sequence[Variable]) -> GraphBatch:
    """Return the graphs with the fields of a run."""
    of_nodes = [one for one in inputs if one.field.on == "node" and one.key != "pe"]
    graphs = []
    for number in range(graph.num_graphs):
        nodes = (graph.batch == number).nonzero().flatten()
        first, edges = int(nodes[0]), graph.batch[graph.edge_index[0]] == number
        values = {one.field.name: graph.x[nodes, place] for place, one in enumerate(of_nodes)}
        values |= {one.field.name: values[one.field.name].round().long() for one in of_nodes if one.field.classes}
        values |= (
            {}
            if graph.pe is None
            else {"pe": graph.pe[nodes].squeeze(1) if graph.pe.shape[1] == 1 else graph.pe[nodes]}
        )
        shifts = None if graph.edge_shifts is None else -graph.edge_shifts[edges]
        box = None if shifts is None or not shifts.any() else 1e3
        graphs.append(
            graph_from_arrays(
                graph.pos[nodes],
                *(graph.edge_index[:, edges] - first),
                fields=[one.field for one in inputs],
                nodes={name: value for name, value in values.items() if name in {one.field.name for one in inputs}},
                edges={"edge_attr": graph.edge_attr[edges, 0]} if "edge_attr" in {one.key for one in inputs} else {},
                graphs={} if graph.graph_attr is None else {"graph_attr": graph.graph_attr[number]},
                edge_shifts=shifts,
                periodic=box is not None,
                cell=None if box is None else np.eye(3) * box,
            )
        )
    return concatenate(graphs)


def public_set(place: Path, **notes: Any) -> None:
    """Write a set with atomic numbers, charge and forces in x, and three labels."""
    labels = {"trainset": samples(24), "valset": samples(12, seed=1), "testset": samples(12, seed=2)}
    for some in labels.values():
        for sample in some:
            assert isinstance(sample, dict)
            sample["x"] = np.concatenate([sample["x"], 0 * sample["x"], sample["forces"].astype("f4")], axis=1)
    write_bp(place, labels, notes)


def test_several_checkpoints_with_data_are_a_calibrated_ensemble(tmp_path: Path) -> None:
    for number in range(3):
        write_model(tmp_path / "runs" / f"m{number}", seed=number)
    public_set(tmp_path / "runs" / "set.bp")
    page = hydragnn.import_public(tmp_path / "runs", tmp_path / "out")
    assert [one.run for one in page.models] == ["m0", "m1", "m2"] and page.ensemble == "ensemble" and not page.left_out
    assert all(set(one.test) == {"energy_per_atom", "forces"} for one in page.models)
    stored = {name: read_page(tmp_path / "out" / name) for name in ("ensemble", "m1")}
    assert [*stored["ensemble"].lines()] == [*page.lines()] and [one.run for one in stored["m1"].models] == ["m1"]
    report = hydragnn.report(tmp_path / "out")
    text = report.read_text()
    assert report.parent.name == "ensemble" and f"hydragnn import {tmp_path / 'runs'} --out" in text
    for value in (value for one in page.models for _, value in one.facts()):
        assert escape(value, quote=False) in text
    loaded = hydragnn.load(tmp_path / "out" / "ensemble")
    predictions = loaded.predict([molecule("H2O"), molecule("CH4")])
    assert (predictions["energy_per_atom"]["std"] > 0).all()
    # files: their graphs keep as many neighbours as those of training
    write(tmp_path / "new.xyz", [molecule("H2O"), molecule("CH4")])
    result = hydragnn.predict(tmp_path / "out" / "ensemble", tmp_path / "new.xyz", tmp_path / "new.npz.h5")
    assert result.graphs == 2 and result.failed == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("energy_linear_regression_coeff", np.ones(118), "add energy_linear_regression_coeff[Z - 1] of every atom"),
        (
            "minmax_graph_feature",
            np.array([[0.0], [2.0]]),
            "was scaled (minmax_graph_feature), which config.json does not",
        ),
    ],
)
def test_scales_that_no_file_undoes_are_named(name: str, value: Any, words: str, tmp_path: Path) -> None:
    write_model(tmp_path / "run")
    public_set(tmp_path / "run" / "set.bp", **{name: value})
    (page,) = hydragnn.import_public(tmp_path / "run", tmp_path / "out").models
    assert any(words in note for note in page.notes)


def one_head(sample: dict[str, Any], number: int) -> None:
    sample |= {"y": sample["y"].reshape(1, 1), "y_loc": np.array([[0, 1]])}


def images_later(sample: dict[str, Any], number: int) -> None:
    sample |= {key: sample[key] * (number > 40) for key in ("edge_shifts", "cell", "pbc")}


def scaled_elements(sample: dict[str, Any], number: int) -> None:
    sample["x"][:, 0] = sample["x"][:, 0] > 4


def inputs_alone(sample: dict[str, Any], number: int) -> None:
    sample["x"] = sample["x"][:, 1:2]


def one_size(sample: dict[str, Any], number: int) -> None:
    (one,) = samples(1)
    sample |= {key: one[key] for key in ("pos", "edge_index", "edge_shifts", "edge_attr", "forces")}
    y = np.concatenate([one["y"], one["forces"].reshape(-1)]).reshape(-1, 1) + number
    sample |= {"x": one["x"][:, :1], "y": y, "y_loc": np.array([[0, 1, len(y)]])}


def open_clusters(sample: dict[str, Any], number: int) -> None:
    del sample["edge_shifts"]
    sample |= {"cell": 2 * np.eye(3), "pbc": np.ones(3, dtype=np.int32)}


POTENTIAL = {"mpnn_type": "SchNet", "num_gaussians": 4, "num_filters": 8, "enable_interatomic_potential": True}
POTENTIAL |= {"output_dim": [1], "output_type": ["node"]}
SETS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a y beside energy and forces": (one_head, POTENTIAL, "predicts: energy, forces\n  test part, energy"),
    "a y of other heads": (one_head, {}, "y packs 1 outputs, and the model has 2"),
    "heads of graphs of one size": (one_size, {}, "test part, forces"),
    "crystals as open clusters": (open_clusters, {}, "crystals are open clusters, as its code saw them"),
    "images in late graphs alone": (images_later, {}, "48 graphs of"),
    "inputs alone in x": (inputs_alone, {"output_dim": [1, 1]}, "its x holds the 1 inputs alone, without charge"),
    "two elements scaled to 0 and 1": (
        *(scaled_elements, {"output_dim": [1, 1]}),
        "reads: atomic_number\n  predicts: energy, atomic_number_2\n",
    ),
}


OTHERS: dict[Any, dict[str, Any]] = {
    inputs_alone: {"input_node_features": [1], "output_names": ["energy", "charge"]},
    scaled_elements: {"output_names": ["energy", "atomic_number"]},
}


@pytest.mark.parametrize("name", SETS)
def test_all_of_a_set_says_how_it_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, architecture, words = SETS[name]
    monkeypatch.setattr(data, "BLOCK", 16)
    sets = sets_of_branches(1)
    for number, sample in enumerate(sample for some in sets.values() for sample in some):
        del sample["dataset_name"]
        change(sample, number)
    write_model(tmp_path / "run", **architecture)
    write_bp(tmp_path / "run" / "set.bp", sets, {})
    if change in OTHERS:
        file = tmp_path / "run" / "config.json"
        config = json.loads(file.read_text())
        config["NeuralNetwork"]["Variables_of_interest"] |= {
            "output_index": [0, 0],
            "output_dim": [1, 1],
            **OTHERS[change],
        }
        file.write_text(json.dumps(config))
    assert words in "\n".join(hydragnn.import_public(tmp_path / "run", tmp_path / "out").lines())


def test_a_column_of_doubles_that_is_input_and_output_is_scaled_once(tmp_path: Path) -> None:
    write_model(tmp_path / "run", output_dim=[1, 1])
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    scales = {"x_minmax": [[1.0, 9.0]], "y_minmax": [[0.0, 2.0], [1.0, 9.0]]}
    outputs = {"output_names": ["energy", "elements"], "output_index": [0, 0], "output_dim": [1, 1]}
    config["NeuralNetwork"]["Variables_of_interest"] |= {**scales, **outputs}
    file.write_text(json.dumps(config))
    sets = sets_of_branches(1)
    columns = [sample["x"].astype(float) for some in sets.values() for sample in some]
    write_bp(
        tmp_path / "run" / "set.bp",
        {key: [{**one, "x": one["x"].astype(float)} for one in some] for key, some in sets.items()},
        {},
    )
    hydragnn.import_public(tmp_path / "run", tmp_path / "out")
    store = open_store(tmp_path / "out" / "data.h5")
    for name in ("atomic_numbers", "elements"):
        assert store.column(name).values == pytest.approx(1 + 8 * np.concatenate(columns)[:, 0])


def test_edges_without_lengths_are_an_input(tmp_path: Path) -> None:
    write_model(tmp_path / "run", mpnn_type="GAT", edge_features=["bond_order"])
    (page,) = hydragnn.import_public(tmp_path / "run", tmp_path / "out").models
    assert page.inputs == ["atomic_numbers", "edge_attr"] and not any("lengths" in note for note in page.notes)


def test_a_file_of_one_branch_predicts_as_that_branch_of_the_whole(tmp_path: Path) -> None:
    heads = of_branches(3)
    for name in ("whole.pk", "N_branch2.pk"):
        write_model(tmp_path / name, name, output_heads=heads)
    hydragnn.import_public(tmp_path / "whole.pk", tmp_path / "of_whole")
    hydragnn.import_public(tmp_path / "N_branch2.pk", tmp_path / "alone")
    structures = [molecule("H2O"), bulk("Cu", cubic=True)]
    runs = [tmp_path / "of_whole" / f"whole.pk-branch{number}" for number in (1, 2)]
    other, expected, own = (hydragnn.load(run).predict(structures) for run in (*runs, tmp_path / "alone"))
    for name in ("energy_per_atom", "forces"):
        assert np.array_equal(own[name]["mean"], expected[name]["mean"])
        assert not np.allclose(other[name]["mean"], expected[name]["mean"])


def test_a_branch_without_the_heads_of_others_has_no_function(tmp_path: Path) -> None:
    heads = of_branches(2)
    write_model(tmp_path, output_heads={**heads, "node": heads["node"][:1]})
    with pytest.raises(InputError, match="output_heads has no node heads of branch-1"):
        imported_models(find_models(tmp_path)[0])


@pytest.mark.parametrize("graph_heads", [0, 1])
def test_all_graphs_are_those_of_branch_0_where_its_code_took_no_other(graph_heads: int, tmp_path: Path) -> None:
    heads = of_branches(2)
    heads["graph"] = heads["graph"][:graph_heads]
    write_model(tmp_path / "run", output_heads=heads, output_type=["node"], output_dim=[3], task_weights=[1])
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    one = {"type": ["node"], "output_index": [2], "output_dim": [3], "output_names": ["forces"]}
    config["NeuralNetwork"]["Variables_of_interest"] |= one
    file.write_text(json.dumps(config))
    write_pickles(tmp_path / "run" / "set.pickle", sets_of_branches(2))
    page = hydragnn.import_public(tmp_path / "run", tmp_path / "out")
    assert "48 graphs of" in page.data and page.models[0].test["forces"]["count"] == 144
    assert any(one.number == 7 and one.verdict == "suffered" for one in page.models[0].findings)


def test_a_branch_of_node_heads_alone_has_no_function(tmp_path: Path) -> None:
    heads = {"node": of_branches(3)["node"]}
    write_model(tmp_path, "N_branch2.pk", output_heads=heads, output_type=["node"], output_dim=[3], task_weights=[1])
    config = json.loads((tmp_path / "config.json").read_text())
    one = {"type": ["node"], "output_index": [2], "output_dim": [3], "output_names": ["forces"]}
    config["NeuralNetwork"]["Variables_of_interest"] |= one
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="holds no branch-0"):
        imported_models(find_models(tmp_path)[0])


@pytest.mark.parametrize(
    ("paths", "names", "words"),
    [
        ({}, ["a.bp", "b.bp"], 'none of the sets beside the checkpoint (a.bp, b.bp): add "Dataset"'),
        ({"branch-0": "a.bp"}, ["a.bp", "b.bp"], 'add "Dataset": {"path": {"branch-1": "FILE"}} to it'),
        ({"branch-0": "a.bp", "branch-1": "c.bp"}, ["a.bp", "b.bp"], '"path": {"branch-1": "FILE"}} to it'),
        ({"branch-0": "a.bp/", "branch-1": "b.bp"}, ["a.bp", "b.bp"], "data.h5: 48 graphs of {run}/a.bp; {out}"),
        ({}, ["a.bp"], 'no file says which branch it belongs to; add "Dataset": {"path": {"branch-1": "a.bp"}}'),
        (
            {"branch-0": "b.bp", "branch-1": "a.bp"},
            ["a.bp", "b.bp"],
            "data.h5: 18 graphs of {run}/b.bp; {out}/data2.h5",
        ),
    ],
)
def test_sets_of_branches_are_those_that_the_configuration_names(
    paths: Any, names: list[str], words: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "run", output_heads=of_branches(2))
    config = config_of(output_heads=of_branches(2))
    (tmp_path / "run" / "config.json").write_text(
        json.dumps(config | {"Dataset": {**config["Dataset"], "path": paths}})
    )
    for name in names:
        sets = sets_of_branches(1) if name == "a.bp" else {key: one[:6] for key, one in sets_of_branches(1).items()}
        for sample in (sample for some in sets.values() for sample in some):
            del sample["dataset_name"]
        write_bp(tmp_path / "run" / name, sets, {})
    page = hydragnn.import_public(tmp_path / "run", tmp_path / "out")
    assert words.replace("{run}", str(tmp_path / "run")).replace("{out}", str(tmp_path / "out")) in page.data


@pytest.mark.parametrize("dataset", [{}, {"path": {f"branch-{number}": "set.pickle" for number in range(3)}}])
def test_each_branch_has_the_graphs_of_its_number(dataset: dict[str, Any], tmp_path: Path) -> None:
    for number in range(3):
        write_model(tmp_path / "run", f"N_branch{number}.pk", output_heads=of_branches(3), dataset=dataset)
    write_pickles(tmp_path / "run" / "set.pickle", sets_of_branches(2))
    page = hydragnn.import_public(tmp_path / "run", tmp_path / "out")
    assert [bool(one.test) for one in page.models] == [True, True, False] and not page.ensemble
    assert page.data.count("24 of 48 graphs of") == 2 and "none of its graphs is of branch 2" in page.data
    for number, file in enumerate(("data.h5", "data2.h5")):
        energies = [one["y"] for some in sets_of_branches(2).values() for one in some[number::2]]
        stored = open_store(tmp_path / "out" / file).column("energy_per_atom").values
        assert stored == pytest.approx(np.concatenate(energies))


def test_energies_are_total_where_the_set_holds_what_was_taken_off(tmp_path: Path) -> None:
    energies = np.arange(1.0, 119)
    variables = {"enable_interatomic_potential": True, "output_dim": [1], "output_type": ["node"], "energy_weight": 1.0}
    models = []
    for name, notes in {"plain": {}, "total": {"energy_linear_regression_coeff": energies}}.items():
        write_model(tmp_path / name, mpnn_type="SchNet", num_gaussians=4, num_filters=8, **variables)
        public_set(tmp_path / name / "set.bp", **notes)
        page = hydragnn.import_public(tmp_path / name, tmp_path / f"of_{name}")
        models.append((page.models[0], hydragnn.load(tmp_path / f"of_{name}").predict([molecule("CH4")])))
    (plain, less), (total, more) = models
    assert more["energy"]["mean"] - less["energy"]["mean"] == pytest.approx(energies[5] + 4 * energies[0])
    assert np.array_equal(more["forces"]["mean"], less["forces"]["mean"])
    assert total.test["energy"]["mae"] == pytest.approx(plain.test["energy"]["mae"], rel=1e-5)
    assert any("energies are total" in note for note in total.notes)
    record = hydragnn.train(tmp_path / "of_total" / "tune.toml", tmp_path / "tuned", overrides=["train.epochs=1"])
    errors = record.start["forgetting"]["errors"]
    assert errors["energy/mae"]["before"] == pytest.approx(total.test["energy"]["mae"], rel=1e-6)


def test_raw_files_that_a_configuration_names_are_read_with_their_scales(real_data: Path, tmp_path: Path) -> None:
    features = {
        "node_features": {"name": ["x", "x2", "x3"], "dim": [1, 1, 1], "column_index": [0, 6, 7]},
        "graph_features": {"name": ["sum"], "dim": [1], "column_index": [0]},
    }
    raw = {"format": "unit_test", "path": {part: f"raw/{part} files" for part in ("train", "validate", "test")}}
    variables = {"output_names": ["sum", "x3"], "output_index": [0, 2], "output_dim": [1, 1]}
    folder = tmp_path / "a run"
    write_model(folder, mpnn_type="GIN", output_dim=[1, 1])
    config = json.loads((folder / "config.json").read_text())
    config["Dataset"] = {"name": "some", **features, **raw}
    config["NeuralNetwork"]["Variables_of_interest"] |= variables
    (folder / "config.json").write_text(json.dumps(config))
    files = sorted((real_data / "hydragnn" / "raw" / "unit_test").glob("*.txt"))[:30]
    files = sorted(files, key=lambda file: float(file.read_text().split()[0]))  # training has not the largest
    for number, file in enumerate(files):
        part = folder / raw["path"][("train", "validate", "test")[3 * number // len(files)]]
        part.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, part)
    page = hydragnn.import_public(folder, tmp_path / "out")
    (model,) = page.models
    assert set(model.test) == {"sum", "x3"} and f"{len(files)} graphs of" in page.data
    store = open_store(tmp_path / "out" / "data.h5")
    first = [float(file.read_text().split()[0]) for file in files]
    assert sorted(store.column("sum").values.tolist()) == pytest.approx(sorted(first), rel=1e-5)
    verdicts = {one.number: one.verdict for one in model.findings}
    assert verdicts[18] == "suffered"


def test_models_are_trained_further(tmp_path: Path) -> None:
    write_model(tmp_path / "run", task_weights=[1.0, 7.0])
    public_set(tmp_path / "run" / "set.bp")
    page = hydragnn.import_public(tmp_path / "run", tmp_path / "out")
    record = hydragnn.train(tmp_path / "out" / "tune.toml", tmp_path / "tuned", overrides=["train.epochs=1"])
    assert [head["weight"] for head in record.config["heads"]] == [1.0, 7.0]
    errors = record.start["forgetting"]["errors"]
    assert errors["forces/mae"]["before"] == pytest.approx(page.models[0].test["forces"]["mae"], rel=1e-6)


def test_pages_of_others_are_no_page_and_damaged_ones_are_named(tmp_path: Path) -> None:
    assert read_page(tmp_path) is None
    (tmp_path / "import.json").write_text('{"out": 3}')
    with pytest.raises(InputError, match=r"import.json is damaged .*; import again, or remove it"):
        read_page(tmp_path)


LOGS: dict[str, tuple[list[dict[str, bytes]], int | str]] = {
    "event files": ([{"events.out.tfevents.1": event(one) + event(9.0)} for one in (3.0, 1.0, 2.0)], 1),
    "a log": ([{"run.log": b"0: Epoch: 01, Train Loss: 9, Val Loss: %g, Test\n" % one} for one in (3.0, 1e-7, 2.0)], 1),
    "a loss that is none": ([{"run.log": b"Val Loss: nan"}, {"run.log": b"Val Loss: 2.5"}, {}], 1),
    "the events before the log": ([{"events.out.tfevents.1": event(1.0), "run.log": b"Val Loss: 7"}, {"run.log": b"Val Loss: 2"}, {}], 0),
    "results": ([{"../results.csv": b"p:hidden_dim,objective,job_id\n8,-3,0\n8,-2,1\n8,F,2\n"}, {}, {"run.log": b"Val Loss: 0"}], 1),
    "results of another search": ([{"../results.csv": b"p:hidden_dim,objective,job_id\n9,-3,0\n9,-2,1\n"}, {}, {"run.log": b"Val Loss: 1"}], 2),
    "results of another program": ([{"../results.csv": b"\xff\xfe"}, {"run.log": b"Val Loss: 1"}, {}], 1),
    "results without trials": ([{"run.log": b"Val Loss: 1"}, {"../results.csv": b"objective,job_id\n-1,x\n"}, {}], 0),
    "nothing": ([{}, {"run.log": b""}, {"events.out.tfevents.1": b"\0"}], "top-k = 1 exceeds the 0 of 3 models"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_best_trials_of_a_search_are_imported(name: str, tmp_path: Path) -> None:
    logs, expected = LOGS[name]
    for number, files in enumerate(logs):
        write_model(tmp_path / "logs" / f"gfm_0.{number}", seed=number)
        for file, content in files.items():
            (tmp_path / "logs" / f"gfm_0.{number}" / file).write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            hydragnn.import_public(tmp_path / "logs", tmp_path / "out", top_k=1)
    else:
        page = hydragnn.import_public(tmp_path / "logs", tmp_path / "out", top_k=1)
        assert [Path(one.file).parent.name for one in page.models] == [f"gfm_0.{expected}"]
        assert len(page.left_out) == (name not in ("event files", "a log"))  # where some have no loss


@pytest.mark.parametrize("others", [0, 1])
def test_a_model_whose_outputs_are_no_numbers_is_refused(others: int, tmp_path: Path) -> None:
    words = "run/NAME.pk gives no finite numbers on its own graphs; import an earlier epoch"
    file = write_model(tmp_path / "all" / "run")
    content = torch.load(file, weights_only=True)
    content["model_state_dict"] = {key: 1e12 * value for key, value in content["model_state_dict"].items()}
    torch.save(content, file)
    public_set(tmp_path / "all" / "set.bp")
    for number in range(others):
        write_model(tmp_path / "all" / f"good{number}")
    if others:
        page = hydragnn.import_public(tmp_path / "all", tmp_path / "out")
        assert [one.run for one in page.models] == ["good0"] and words in page.left_out[0]
        assert hydragnn.load(tmp_path / "out" / "good0") and not (tmp_path / "out" / "run").exists()
        return
    with pytest.raises(InputError, match=words):
        hydragnn.import_public(tmp_path / "all", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trials_are_a_warm_start(tmp_path: Path) -> None:
    for number, width in enumerate((6, 8, 10)):
        folder = write_model(tmp_path / "logs" / f"gfm_0.{number}", hidden_dim=width).parent
        (folder / "run.log").write_text(f"Val Loss: {abs(width - 9.5)}")
    page = hydragnn.import_public(tmp_path / "logs", tmp_path / "out", top_k=2)
    assert [one.run for one in page.models] == ["gfm_0.2", "gfm_0.1"]
    assert "search.warm_start" in page.next[-1]
    space = space_of({"model.hidden_dim": IntRange(low=4, high=16), "model.kind": Choices(choices=["gin", "egnn"])})
    points = warm_source(tmp_path / "out" / "results.csv", space).points
    assert points == [{"model.hidden_dim": width, "model.kind": "gin"} for width in (10, 8, 6)]


def test_a_configuration_alone_becomes_files(tmp_path: Path) -> None:
    write_model(tmp_path / "run")
    page = hydragnn.import_public(tmp_path / "run" / "config.json", tmp_path / "out")
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"run.toml", "build.toml"} and not page.models


@pytest.mark.parametrize("name", ["run_v4_PNA_bp", "run_d251_PAINN_bp", "run_v3_EGNN_pickle"])
def test_errors_of_the_writer_are_repeated(name: str, real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "hydragnn-generations" / name
    expected = json.loads((folder / "meta.json").read_text())["test_mae"]
    (page,) = hydragnn.import_public(folder, tmp_path / "out").models
    assert [one["mae"] for one in page.test.values()] == pytest.approx([*expected.values()], rel=1e-5)
