"""Modules that a user's own loop trained, as runs; and models whose training graphs were changed by a transform."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

import hydragnn
from hydragnn.base import imports
from hydragnn.datasets import MemoryStore
from hydragnn.datasets.manifest import CHANGED_BY
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.members.member import OUTSIDE
from hydragnn.ensemble.prediction.rules import rule_for
from hydragnn.record import read_record
from hydragnn.runs import train
from tests.ensemble.conftest import CUTOFF, TARGETS, config_of, refused, written
from tests.transforms import SHIFTED

BUILD = {"kind": "ase", "cutoff": CUTOFF}
CHANGED = {"cutoff": CUTOFF, "source": "ase", "build": {**BUILD, "transform": SHIFTED}}
PLAIN = {"cutoff": CUTOFF, "source": "ase", "build": BUILD}


def test_a_saved_module_predicts_as_it_did_and_stays_as_it_is(
    runs: list[Path], store: MemoryStore, tmp_path: Path
) -> None:
    module = hydragnn.load(runs[0]).trainable().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 1e-9 * torch.randn_like(parameter)
    module.train()
    record = hydragnn.save(module, tmp_path / "tuned")
    assert module.training and all(model.training for model in module.models)
    assert record.config["train"]["precision"] == "fp64" == read_record(tmp_path / "tuned").config["train"]["precision"]
    expected, actual = module.eval()(store[:6]), hydragnn.load(tmp_path / "tuned").predict(store[:6])
    for name in ("energy", "forces"):
        np.testing.assert_allclose(actual[name].mean, expected[name].detach().numpy(), rtol=1e-12, atol=1e-12)
    single = hydragnn.save(hydragnn.load(tmp_path / "tuned").trainable().float(), tmp_path / "single")
    assert single.config["train"]["precision"] == "fp32"


def test_a_saved_module_has_what_was_known_of_its_start(runs: list[Path], stored: Path, tmp_path: Path) -> None:
    model = hydragnn.load(runs[0])
    facts = {"labels": {"energy": {"train": 40}}, "continued": ["train.epochs"], "start": {"kept": ["all"]}}
    members = [replace(model.members[0], record=replace(model.members[0].record, **facts))]
    module = Ensemble(members, model.manifest, "").trainable()
    record = hydragnn.save(module, tmp_path / "tuned")
    assert record.start.keys() == {"kept", OUTSIDE} and record.labels == facts["labels"] and record.continued == []
    other = hydragnn.save(module, tmp_path / "other", data=shutil.copytree(stored, tmp_path / "copy.h5"))
    assert other.labels == {} and other.start == record.start


def test_parameters_that_no_run_has_are_refused(runs: list[Path], tmp_path: Path) -> None:
    module = hydragnn.load(runs[0]).trainable()
    module.models[0].register_parameter("gate", torch.nn.Parameter(torch.ones(1)))
    refused("the module has gate, which 0000 has not", hydragnn.save, module, tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


OTHERS: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
    "built with cutoff = 5": ({}, {"cutoff": 5.0}),
    f"changed by {SHIFTED}": ({}, CHANGED),
    "means something else by energy": ({"unit": "Hartree"}, PLAIN),
    "has no field energy": ({"name": "enthalpy"}, PLAIN),
}


@pytest.mark.parametrize("words", OTHERS)
def test_data_that_are_not_like_those_of_training_are_refused(
    words: str, runs: list[Path], store: MemoryStore, tmp_path: Path
) -> None:
    changes, attributes = OTHERS[words]
    energy, values = replace(TARGETS[0], **changes), store[:24]["energy"]
    graphs = store[:24].with_fields(drop=["energy"]).with_fields({energy.name: values}, fields=[energy])
    other = written(tmp_path / "other.h5", graphs, **attributes)
    model = trained_on(runs[0], written(tmp_path / "training.h5", store[:24], **PLAIN), ())
    refused(words, hydragnn.save, model.trainable(), tmp_path / "tuned", data=other)
    assert not (tmp_path / "tuned").exists()


def trained_on(run: Path, path: Path, notes: tuple[str, ...]) -> Ensemble:
    """Return a run as if it was trained on another store, with these notes."""
    member = hydragnn.load(run).members[0]
    data = member.config.data.model_copy(update={"store": path})
    config = member.config.model_copy(update={"data": data})
    record = replace(member.record, notes=[*member.record.notes, *notes])
    return ensemble_of([replace(member, config=config, record=record)])


REST = {key: value for key, value in CHANGED.items() if key != "build"}
KNOWN: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "by its rule": (CHANGED, ()),
    "as one of several": (
        {**REST, "merged": [{"build": CHANGED["build"]}, {"build": {**BUILD, "transform": SHIFTED}}]},
        (),
    ),
    "without a rule": ({**REST, "transform": SHIFTED}, ()),
    "by the record where it is gone": (None, (f"{CHANGED_BY}{SHIFTED}",)),
}


@pytest.mark.parametrize("known", KNOWN)
def test_no_graph_is_predicted_that_lacks_the_transform_of_training(
    known: str,
    runs: list[Path],
    store: MemoryStore,
    frames: list[Atoms],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "_allowed", {"tests.transforms"})
    attributes, notes = KNOWN[known]
    training = tmp_path / "training.h5"
    if attributes is not None:
        written(training, store[:8], **attributes)
    model = trained_on(runs[0], training, notes)
    assert model.training_transform == SHIFTED
    refused(f"changed by {SHIFTED}, which is for files", lambda: model.structures)
    refused(f"changed by {SHIFTED}, which is for files", model.predict, frames[:2])
    words = f"not changed by a transform, and graphs of training are changed by {SHIFTED}"
    refused(f"Data are {words}", model.predict, store.to_pyg()[0])
    refused(f"the store are {words}", model.predict, MemoryStore(store[:2], PLAIN))
    (tmp_path / "BUILD.toml").write_text('kind = "ase"\nfiles = ["a.xyz"]\ncutoff = 4.5\n')
    refused(f"BUILD.toml are {words}", rule_for, tmp_path / "BUILD.toml", model)
    for taken in (CHANGED, {"cutoff": CUTOFF}):
        assert len(model.predict(MemoryStore(store[:2], taken))) == 2
    with (tmp_path / "BUILD.toml").open("a") as file:
        file.write(f'transform = "{SHIFTED}"\n')
    assert rule_for(tmp_path / "BUILD.toml", model)
    refused(
        f"changed by {SHIFTED}, and graphs of training are not changed",
        trained_on(runs[0], written(tmp_path / "plain.h5", store[:8], **PLAIN), ()).predict,
        MemoryStore(store[:2], CHANGED),
    )


def test_the_record_of_a_run_knows_the_transform_of_its_store(store: MemoryStore, tmp_path: Path) -> None:
    path = written(tmp_path / "changed.h5", store[:24], **CHANGED)
    assert f"{CHANGED_BY}{SHIFTED}" in train(config_of(path, train__epochs=1), tmp_path / "run").notes
    shutil.rmtree(path)
    refused(f"changed by {SHIFTED}", lambda: hydragnn.load(tmp_path / "run").structures)
