"""Settings on disk that lack a key mean what was computed before there was one; settings written anew get the default."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, read_json, write_json, write_sealed
from hydragnn.config import RunConfig, parse_config, stored_config
from hydragnn.datasets import MemoryStore
from hydragnn.models import load_model
from hydragnn.record import read_record
from hydragnn.runs import train
from hydragnn.runs.folder import decisive
from hydragnn.scripts.showing import run_summary

Config = Callable[..., RunConfig]


def without_stages(table: dict[str, Any]) -> dict[str, Any]:
    """A configuration or a model as it was written before there were stages, compiled steps and limits of memory, and stresses counted per node."""
    later = ("stage_two_factor", "stress_per_node")
    heads = [{key: value for key, value in head.items() if key not in later} for head in table["heads"]]
    train = {key: value for key, value in table.get("train", {}).items() if key not in ("stage_two", "compile")}
    batch = {key: value for key, value in table.get("batch", {}).items() if key not in ("budget", "memory")}
    return {**table, "heads": heads, **({"train": train} if train else {}), **({"batch": batch} if batch else {})}


def without_norm(table: dict[str, Any]) -> dict[str, Any]:
    """A configuration or a model as it was written before PaiNN had a norm, and networks of the public HydraGNN."""
    later = ("norm", "tanh_networks", "edge_network")
    return without_stages({**table, "model": {key: value for key, value in table["model"].items() if key not in later}})


@pytest.fixture
def earlier(store: MemoryStore, make_config: Config, tmp_path: Path) -> Path:
    """A run of two epochs whose files say nothing of a norm, as those of an earlier version."""
    run = tmp_path / "run"
    train(make_config("painn", model__norm="paper", train__stage_two=1.0), run, store=store, until=2)
    for name in ("config.json", "model/model.json"):
        (write_json if name == "config.json" else write_sealed)(run / name, without_norm(read_json(run / name)))
    record = read_json(run / "record.json")
    write_sealed(run / "record.json", {**record, "config": without_norm(record["config"])})
    (checkpoint,) = [path for path in (run / "checkpoints").iterdir() if path.name == "000002-000000"]
    before = digest(decisive(without_norm(record["config"])))  # what that version wrote
    assert read_json(checkpoint / "state.json")["identity"]["configuration_hash"] == before
    return run


def test_a_run_that_knows_no_norm_goes_on_with_the_papers_bit_for_bit(
    earlier: Path, store: MemoryStore, make_config: Config, tmp_path: Path
) -> None:
    train(make_config("painn", model__norm="paper"), tmp_path / "whole", store=store)
    resumed = train(make_config("painn"), earlier, store=store, resume=True)  # a configuration that says nothing either
    assert resumed.curves == read_record(tmp_path / "whole").curves
    weights = [load_file(run / "model" / "weights.safetensors") for run in (earlier, tmp_path / "whole")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_run_that_knows_no_norm_is_not_resumed_with_another(
    earlier: Path, store: MemoryStore, make_config: Config
) -> None:
    with pytest.raises(InputError, match=r"model\.norm: paper, now smooth"):
        train(make_config("painn", model__norm="smooth"), earlier, store=store, resume=True)


def test_a_model_that_knows_no_norm_has_the_papers_and_a_new_configuration_the_smooth_one(
    earlier: Path, make_config: Config
) -> None:
    settings = [load_model(earlier / "model").settings, stored_config(earlier / "config.json").model]
    assert [one.to_json()["norm"] for one in settings] == ["paper", "paper"]
    assert make_config("painn").model.to_json()["norm"] == "smooth"


def test_hashes_of_runs_with_the_papers_norm_are_those_of_before(make_config: Config) -> None:
    paper = make_config("painn", model__norm="paper", train__stage_two=1.0)
    smooth = make_config("painn", train__stage_two=1.0)
    assert paper.hash == digest(without_norm(paper.to_json())) != smooth.hash
    assert RunConfig.parse(json.loads(json.dumps(paper.to_json()))) == paper


@pytest.mark.parametrize(
    "model, norm, note",
    [("painn", "smooth", ""), ("painn", "paper", "force constants of perfect crystals"), ("pna", "", "energies jump")],
)
def test_forces_that_are_not_smooth_are_noted(
    model: str, norm: str, note: str, store: MemoryStore, make_config: Config, tmp_path: Path
) -> None:
    changes = {"model__norm": norm} if norm else {}
    record = train(make_config(model, **changes), tmp_path / "run", store=store, until=1)
    assert record.notes == read_record(tmp_path / "run").notes and len(record.notes) == bool(note)
    assert note in run_summary(record, tmp_path / "run").get("notes", "")
    charges = make_config(model, heads=[{"kind": "scalar", "field": "charge"}], **changes)
    assert train(charges, tmp_path / "charges", store=store, until=1).notes == []


ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
BEFORE = {"loss": "mse", "per_node": False, "stage_two_factor": 1.0, "stress_per_node": False}


def test_a_run_of_one_stage_goes_on_with_it_and_with_the_loss_of_whole_energies(
    store: MemoryStore, make_config: Config, tmp_path: Path
) -> None:
    explicit, run = make_config(heads=[{**ENERGY, **BEFORE}], train__stage_two=1.0), tmp_path / "run"
    train(explicit, tmp_path / "whole", store=store)
    train(explicit, run, store=store, until=1)
    before = without_stages(explicit.to_json())
    assert explicit.hash == digest(before)
    write_json(run / "config.json", before)
    resumed = train(make_config(heads=[ENERGY]), run, store=store, resume=True)  # which says nothing of either
    assert resumed.curves == read_record(tmp_path / "whole").curves
    assert resumed.config["heads"][0]["per_node"] is False


def test_what_a_stored_energy_leaves_out_means_what_it_meant_and_a_new_one_has_two_stages(make_config: Config) -> None:
    table = make_config(heads=[ENERGY]).to_json()
    head = {key: value for key, value in table["heads"][0].items() if key not in BEFORE}
    (stored,) = parse_config({**table, "heads": [head]}, stored=True).branches[0].heads
    assert {key: stored.to_json()[key] for key in BEFORE} == BEFORE
    lacking = {key: value for key, value in table["train"].items() if key != "stage_two"}
    assert parse_config({**table, "train": lacking}, stored=True).train.stage_two == 1.0
    assert [table["heads"][0][key] for key in BEFORE] == ["mae", True, 10.0, True]
    assert parse_config(table, stored=True) == parse_config(table) == make_config(heads=[ENERGY])
