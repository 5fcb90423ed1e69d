"""Several data sets in one trunk, from the search to the report: every step after training speaks of one branch."""

import json
import shutil
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter, open_store
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.page import reproduction
from tests.ensemble.finished import arrays_of
from tests.once import shared

ENERGY = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
GAP = Field(name="gap", on="graph", unit="meV", role="target", dtype="float64")


def pair(generator: np.random.Generator, numbers: list[int], field: Field) -> GraphBatch:
    """Two atoms at a random distance, and a label that depends on it."""
    distance = generator.uniform(1.0, 2.5)
    return graph_from_arrays(
        [[0.0, 0.0, 0.0], [distance, 0.0, 0.0]],
        [0, 1],
        [1, 0],
        fields=(ATOMIC_NUMBERS_FIELD, field),
        nodes={"atomic_numbers": np.array(numbers)},
        graphs={field.name: np.exp(-distance) * sum(numbers)},
    )


@shared
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trials that differ in the weight of a branch's head."""
    root = tmp_path_factory.mktemp("branches")
    generator = np.random.default_rng(0)
    for name, numbers, field in (("metals", [29, 79], ENERGY), ("oxides", [8, 22], GAP)):
        fields, attributes = (ATOMIC_NUMBERS_FIELD, field), {"cutoff": 3.0}
        with StoreWriter(root / f"{name}.h5", fields, dim=3, attributes=attributes) as writer:
            writer.write(concatenate([pair(generator, numbers, field) for _ in range(24)]))
    branches = [
        {
            "name": name,
            "data": {"store": str(root / f"{name}.h5")},
            "split": {"train": 0.5, "valid": 0.25},
            "heads": [{"kind": "scalar", "hidden_dims": [4], "field": field}],
        }
        for name, field in (("metals", "energy"), ("oxides", "gap"))
    ]
    model = {"kind": "schnet", "hidden_dim": 8, "num_layers": 1, "num_radial": 4, "cutoff": 3.0}
    space = {"branches.0.heads.0.weight": {"type": "float", "low": 0.5, "high": 2.0}}
    search = {"trials": 2, "objective": "valid/energy@metals/mae", "sampler": "random", "space": space}
    table = {"branches": branches, "model": model, "train": {"epochs": 3}, "search": search}
    hydragnn.search(table, root / "campaign", workers=1, quiet=True)
    return root / "campaign"


@shared
def ensemble(campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = campaign.parent / "ensemble"
    hydragnn.build_ensemble(campaign, out, top_k=2, branch="oxides")
    return out


def test_a_search_over_branches_goes_on(campaign: Path, tmp_path: Path) -> None:
    out = shutil.copytree(campaign, tmp_path / "campaign")
    saved = json.loads((out / "campaign.json").read_text())
    table = {key: saved[key] for key in ("branches", "model", "train", "search")}
    table["search"]["trials"] = 3
    hydragnn.search(table, out, workers=1, quiet=True, resume=True)
    assert len([*out.glob("trials/*/record.json")]) == 3


def test_an_ensemble_is_of_the_branch_that_is_named(campaign: Path, ensemble: Path, tmp_path: Path) -> None:
    loaded = hydragnn.load(ensemble)
    assert [(target.name, target.field.unit) for target in loaded.targets] == [("gap@oxides", "meV")]
    hydragnn.predict(ensemble, campaign.parent / "oxides.h5", tmp_path / "oxides.h5")
    with h5py.File(tmp_path / "oxides.h5") as file:
        assert any("gap@oxides" in name for name in file) or "gap@oxides" in file.get("fields", {})
    with pytest.raises(InputError, match="is of branch oxides, so it cannot predict metals"):
        hydragnn.load(ensemble, branch="metals")
    with pytest.raises(InputError, match=r"name one .branches: metals, oxides. by --branch, branch= or hydragnn.load"):
        hydragnn.build_ensemble(campaign, tmp_path / "none", top_k=2)


def test_labels_of_an_evaluation_have_the_unit_of_training(ensemble: Path, tmp_path: Path) -> None:
    for unit, words in (("eV", "gap is in eV, but the model was trained in meV.*scale = 1000 "), ("meV", "")):
        field = replace(GAP, unit=unit)
        graphs = MemoryStore(pair(np.random.default_rng(8), [8, 22], field))
        with pytest.raises(InputError, match=words) if words else nullcontext():
            assert hydragnn.evaluate(ensemble, graphs).parts["all"]["gap@oxides"].unit == "meV"


def test_a_branch_that_is_trained_outside_is_a_run_of_its_own(campaign: Path, tmp_path: Path) -> None:
    graphs = open_store(campaign.parent / "oxides.h5")[:]
    module = hydragnn.load(campaign / "trials" / "0000", branch="oxides").trainable()
    record = hydragnn.save(torch.nn.DataParallel(module), tmp_path / "run")
    assert torch.equal(hydragnn.load(tmp_path / "run").trainable()(graphs)["gap"], module(graphs)["gap@oxides"])
    assert record.best.keys() >= {"valid/gap/mae"}


def test_a_run_predicts_with_the_branch_of_its_store_or_the_one_named(campaign: Path, tmp_path: Path) -> None:
    run, root = campaign / "trials" / "0000", campaign.parent
    by_store = hydragnn.predict(run, root / "oxides.h5", tmp_path / "a.h5")
    by_name = hydragnn.predict(run, root / "oxides.h5", tmp_path / "b.h5", branch="oxides")
    assert by_store.failed == by_name.failed == 0
    one, other = arrays_of(tmp_path / "a.h5"), arrays_of(tmp_path / "b.h5")
    names = [name for name in one if "gap@oxides" in name and one[name].dtype.kind == "f"]
    assert names and all(np.array_equal(one[name], other[name], equal_nan=True) for name in names)
    across = hydragnn.predict(run, root / "oxides.h5", tmp_path / "c.h5", branch="metals")
    assert across.graphs == 24
    with StoreWriter(tmp_path / "new.h5", (ATOMIC_NUMBERS_FIELD, GAP), dim=3) as writer:
        writer.write(pair(np.random.default_rng(9), [8, 8], GAP))
    with pytest.raises(InputError, match=r"has the branches metals, oxides.*--branch NAME"):
        hydragnn.predict(run, tmp_path / "new.h5", tmp_path / "d.h5")
    with pytest.raises(InputError, match="did you mean metals"):
        hydragnn.predict(run, tmp_path / "new.h5", tmp_path / "d.h5", branch="metal")


@pytest.mark.usefixtures("undrawn")
def test_reports_name_their_branches_and_commands_to_make_them(campaign: Path, ensemble: Path, tmp_path: Path) -> None:
    for source in (campaign, campaign / "trials" / "0000"):
        page = hydragnn.report(source, tmp_path / f"{source.name}.html").read_text()
        assert "energy@metals" in page and "gap@oxides" in page
        assert "--branch" not in page and "This is branch" not in page
    page = hydragnn.report(ensemble, tmp_path / "page.html").read_text()
    root = campaign.parent
    assert "gap@oxides" in page and "The data cannot be shown" not in page
    assert f"This is branch oxides: its models share their trunk with metals ({root / 'metals.h5'})." in page
    assert f"The data of branch oxides ({root / 'oxides.h5'}): 24 graphs" in page
    assert "hydragnn ensemble CAMPAIGN --top-k 2 --branch oxides --out ENSEMBLE" in page
    alone = tmp_path / "moved" / "ensemble"  # where the campaign is not found, a member's record speaks for it
    shutil.copytree(ensemble, alone)
    facts = collect(alone)
    assert facts.campaign is None
    table = tomllib.loads(reproduction(facts)["toml"])
    assert [branch["name"] for branch in table["branches"]] == ["metals", "oxides"]
