"""A run that begins with a trained model computes its function until the first step, and says what it kept and what it forgot."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms

import hydragnn
from hydragnn import callbacks
from hydragnn.base.errors import InputError, words_of
from hydragnn.config import config_from_table
from hydragnn.datasets import Budget, open_store
from hydragnn.graphs import Field, from_ase
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import Space
from hydragnn.layers import limits_from_json
from hydragnn.models import TrainedModel, load_model
from hydragnn.models.executor import Eager
from hydragnn.record import read_record
from hydragnn.runs import callback, session
from hydragnn.runs import train as train_run
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.fine_tuning import OpenStart, merged_limits
from hydragnn.runs.progress import Progress
from hydragnn.scripts.report.training import forgetting_table
from hydragnn.scripts.showing import forgotten
from hydragnn.start import StartSettings, folder_of
from hydragnn.training.evaluate import errors_on
from tests.hydragnn.training.conftest import ENERGY_FIELD, FORCES_FIELD, assembled, crystal, written
from tests.once import shared

CUTOFF = 3.5
HEAD = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
MODEL = {"kind": "painn", "hidden_dim": 8, "num_layers": 3, "num_radial": 4, "cutoff": CUTOFF}


def make_store(path: Path, frames: list[Atoms], energy: Field = ENERGY_FIELD) -> Path:
    graphs = [from_ase(atoms, CUTOFF, fields=(energy, FORCES_FIELD)) for atoms in frames]
    return written(path, graphs, cutoff=CUTOFF, source="ase")


def table_of(store: Path, start: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    return {
        "data": {"store": str(store)},
        "split": {"train": 0.6, "valid": 0.2},
        "batch": {"max_graphs": 4},
        "heads": [HEAD],
        "train": {"epochs": 2, "precision": "fp64", "learning_rate": 3e-3, **train},
        **({"start": start} if start else {"model": MODEL}),
    }


@shared
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    make_store(folder / "cu.h5", [crystal(number) for number in range(30)])
    make_store(folder / "cuau.h5", [crystal(100 + number, "Cu-Au") for number in range(30)])
    hydragnn.train(table_of(folder / "cu.h5", epochs=4, seed=3), folder / "cu")
    shutil.copytree(folder / "cu" / "model", folder / "bare")
    return folder


def begun(table: dict[str, Any], place: Path) -> Assembly:
    return assembled(config_from_table(table, place / "CONFIG.toml"))


def first_function(run: Assembly) -> TrainedModel:
    model: Any = run.state.model
    return TrainedModel(model=model, normalisation=run.data.branches[0].normalisation, executor=Eager(model=model))


@pytest.mark.parametrize("data", ["cu.h5", "cuau.h5"])
def test_a_run_begins_with_the_forces_of_its_start_and_references_of_its_own(place: Path, data: str) -> None:
    run = begun(table_of(place / data, {"model": str(place / "cu")}), place)
    batch = open_store(place / "cu.h5").read(np.arange(6))
    before, now = load_model(place / "cu/model", torch.float64).predict(batch), first_function(run).predict(batch)
    assert torch.allclose(now["forces"].mean, before["forces"].mean, rtol=1e-12, atol=1e-12)
    (own,), fresh = run.data.branches, begun(table_of(place / data), place).data.branches[0].normalisation
    assert own.normalisation.scales["forces"] != fresh.scales["forces"] or data == "cu.h5"
    batch = open_store(place / data).read(own.split.train)
    errors = first_function(run).predict(batch)["energy"].mean - batch["energy"]
    assert abs(float(errors.mean())) < 1e-8
    assert run.record.start.get("new_elements", {}) == ({"Au": "Cu"} if data == "cuau.h5" else {})


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_model(run / "model", torch.float64).model.state_dict()


def test_frozen_layers_keep_their_bits_and_slower_ones_move_less(place: Path) -> None:
    start = {"model": str(place / "cu")}
    hydragnn.train(table_of(place / "cu.h5", {**start, "freeze": 2, "encoder_rate": 0.1}), place / "frozen")
    before, frozen = (weights_of(place / name) for name in ("cu", "frozen"))

    def moved(after: dict[str, torch.Tensor], prefix: str) -> float:
        names = [name for name in after if name.startswith(prefix)]
        return max(float((after[name] - before[name]).abs().max()) for name in names)

    for prefix in ("node_inputs", "encoder.layers.0", "encoder.layers.1"):
        assert moved(frozen, prefix) == 0.0
    assert 0 < moved(frozen, "encoder.layers.2") < 0.3 * moved(frozen, "heads")


def test_embeddings_of_new_elements_learn_in_a_frozen_encoder(place: Path) -> None:
    start = {"model": str(place / "cu"), "freeze": 3}
    record = hydragnn.train(table_of(place / "cuau.h5", start), place / "gold")
    before, after = (weights_of(place / name)["node_inputs.node_tables.0.table.weight"] for name in ("cu", "gold"))
    assert not torch.equal(after[79], before[29]) and torch.allclose(after[79], before[29], atol=0.05)
    assert any("Au is new to the start: its embedding begins as that of Cu" in note for note in record.notes)


def test_species_of_mace_get_weights_of_the_nearest_element(place: Path) -> None:
    mace = {**MODEL, "kind": "mace", "hidden_dim": 4, "num_layers": 2, "max_ell": 1}
    hydragnn.train({**table_of(place / "cu.h5", epochs=1), "model": mace}, place / "mace")
    run = begun(table_of(place / "cuau.h5", {"model": str(place / "mace")}), place)
    assert run.state.model.description.statistics.species == (29, 79)
    batch = open_store(place / "cu.h5").read(np.arange(4))
    before = load_model(place / "mace/model", torch.float64).predict(batch)
    now = first_function(run).predict(batch)
    assert torch.allclose(now["forces"].mean, before["forces"].mean, rtol=1e-12, atol=1e-12)
    gold = batch.with_fields({"atomic_numbers": torch.full_like(batch["atomic_numbers"], 79)})
    assert torch.allclose(first_function(run).predict(gold)["forces"].mean, now["forces"].mean, atol=1e-12)


NEAR, FAR = ((29, 29, 2.0),), ((29, 29, 2.5),)


@pytest.mark.parametrize(
    ("old", "new", "stiffness"),
    [
        ((NEAR, 0.29), (FAR, 0.9), 0.29),
        ((FAR, 0.9), (NEAR, 0.29), 0.29),
        ((NEAR, 0.29), (NEAR, 0.4), 0.4),
        ((NEAR, 0.29), ((), 0.9), 0.29),
        ((NEAR, None), (FAR, 0.9), 0.9),  # a start of 0.2.0
        ((NEAR, None), (FAR, None), None),  # and a run of it that goes on
    ],
)
def test_pairs_keep_the_stiffness_of_the_smaller_distance(
    place: Path, old: Any, new: Any, stiffness: float | None
) -> None:
    table = {"share": 0.7, "species": [29], "cutoff": None, "angstrom": 1.0, "energies": {}}
    description = load_model(place / "cu/model").model.description
    start, model = (
        replace(
            description,
            close_range=limits_from_json({**table, "shortest": pairs, "stiffness": share and [(29, 29, share)]}),
        )
        for pairs, share in (old, new)
    )
    limits = merged_limits(Mock(spec=OpenStart, description=start), model).close_range
    assert limits is not None and limits.shortest == NEAR
    assert limits.stiffness == (stiffness and ((29, 29, stiffness),))


WITHOUT_DIMS = {key: value for key, value in HEAD.items() if key != "hidden_dims"}


@pytest.mark.parametrize(
    ("head", "outcome"),
    [
        ({**HEAD, "hidden_dims": [4]}, "new: its hidden_dims is [8] in the start"),
        ({**WITHOUT_DIMS, "weight": 3.0, "loss": "huber"}, "kept"),  # with the start's hidden_dims
        (
            {"kind": "scalar", "field": "energy", "extensive": True, "pool": "sum"},
            "new: its kind is 'energy' in the start",
        ),
    ],
)
def test_heads_of_other_networks_are_new_and_noted(head: dict[str, Any], outcome: str, place: Path) -> None:
    run = begun({**table_of(place / "cu.h5", {"model": str(place / "cu/model")}), "heads": [head]}, place)
    assert run.record.start["heads"] == {"energy": outcome}
    assert outcome == "kept" or f"the head of energy is {outcome}" in run.record.notes


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model": {"hidden_dim": 16}}, "model.hidden_dim = 16, and the start .* has 8"),
        ({"model": {"kind": "schnet"}}, "model.kind = 'schnet', and the start .* has 'painn'"),
        ({"model": {"hidden_dims": 16}}, "unknown key .*hidden_dims"),
        ({"data": {"inputs": []}}, "inputs = .* in this run, and .*atomic_numbers.* in the start"),
        ({"heads": [{**HEAD, "references": False}]}, "fitted reference energies; say references = true"),
        ({"heads": [{**HEAD, "references": {"Cu": -3.0}}]}, "fitted reference energies; say references = true"),
        ({"heads": [{"kind": "vector", "field": "forces"}]}, "since heads read other states; take a start"),
        ({"start": {"freeze": 4}}, "start.freeze = 4, and the model has 3 layers"),
        ({"start": {"model": "nothing"}}, "nothing does not exist"),
        ({"start": {"model": "bare", "replay": 0.5}}, "start.replay needs a run, and .* has no config.json"),
        ({"start": {"store": "nothing.h5"}}, "start.store says where the data of the start lie"),
        ({"start": {"branch": "metals"}}, "no branches"),
    ],
)
def test_contradictions_with_the_start_are_one_sentence(place: Path, change: dict[str, Any], words: str) -> None:
    table = table_of(place / "cu.h5", {"model": "cu"})
    for section, keys in change.items():
        table[section] = keys if isinstance(keys, list) else {**table.get(section, {}), **keys}
    with pytest.raises(InputError, match=words) as caught:
        begun(table, place)
    assert "\n" not in str(caught.value)


def test_replay_repeats_itself_and_an_interruption_changes_no_bit(place: Path) -> None:
    start = {"model": str(place / "cu"), "replay": 0.4}
    table = table_of(place / "cuau.h5", start, epochs=2)
    whole = hydragnn.train(table, place / "whole")
    config = config_from_table(table, place / "CONFIG.toml")
    assert train_run(config, place / "cut", until=1).status == "paused"
    cut = hydragnn.train(place / "cut", resume=True)
    assert cut.curves == whole.curves
    one, other = weights_of(place / "whole"), weights_of(place / "cut")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.start["replayed_per_epoch"] == 7  # of 18
    run = begun(table, place)
    # of 5 batches: each is shown twice in 5 epochs
    assert [run.data.turns(epoch).sum() for epoch in range(5)] == [2] * 5


def test_errors_on_the_data_of_the_start_are_recorded_before_and_after(place: Path) -> None:
    record = hydragnn.train(table_of(place / "cuau.h5", {"model": str(place / "cu")}), place / "forgetful")
    table = record.start["forgetting"]
    split = begun(table_of(place / "cu.h5"), place).data.branches[0].split
    models = [load_model(place / name / "model", torch.float64) for name in ("cu", "forgetful")]
    before, after = (
        errors_on(model.predict, open_store(place / "cu.h5"), split.test, model.targets, Budget(max_graphs=32))
        for model in models
    )
    assert table["graphs"] == len(split.test) == 6
    errors = {"before": before["forces"]["mae"], "after": after["forces"]["mae"]}
    assert table["errors"]["forces/mae"] == pytest.approx(errors, rel=1e-6)
    assert [row[0] for row in forgetting_table(record).rows] == ["energy/mae", "forces/mae"] == [*forgotten(record)]


def test_another_zero_of_energy_is_neither_learned_by_replay_nor_called_forgotten(place: Path) -> None:
    losses = []
    for shift in (0.0, -100.0):
        frames = [crystal(50 + number) for number in range(15)]
        for atoms in frames:
            atoms.calc.results["energy"] += shift * len(atoms)
        path = make_store(place / f"shifted{shift}.h5", frames)
        table = table_of(path, {"model": str(place / "cu"), "replay": 1.0}, epochs=1, learning_rate=1e-12)
        record = hydragnn.train(table, place / f"zero{shift}")
        energy = record.start["forgetting"]["errors"]["energy/mae"]
        assert energy["after"] == pytest.approx(energy["before"], rel=1e-6)
        losses += record.curves["train/loss"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_a_run_goes_on_with_its_own_start_only(place: Path) -> None:
    shutil.copytree(place / "cu", place / "moving")
    hydragnn.train(table_of(place / "cu.h5", {"model": str(place / "cu")}, epochs=1), place / "other")
    table = table_of(place / "cuau.h5", {"model": str(place / "moving")}, epochs=2)
    train_run(config_from_table(table, place / "CONFIG.toml"), place / "going", until=1)
    weights = place / "moving/model/weights.safetensors"
    shutil.copy(place / "other/model/weights.safetensors", weights)
    with pytest.raises(InputError, match="is not the start that this run began with"):
        hydragnn.train(place / "going", resume=True)
    with pytest.raises(InputError, match=r"begun with another configuration \(start.digest"):
        hydragnn.train(table, place / "going", resume=True)
    shutil.copy(place / "cu/model/weights.safetensors", weights)
    assert hydragnn.train(table, place / "going", resume=True).status == "finished"


def test_an_ensemble_gives_its_best_member_or_the_one_that_is_named(place: Path) -> None:
    hydragnn.train(table_of(place / "cu.h5", epochs=1, seed=4), place / "worse")
    hydragnn.build_ensemble([place / "worse", place / "cu"], place / "pair")
    folders = [folder_of(StartSettings(model=place / one)) for one in ("pair", "pair/members/0")]
    assert [folder.name for folder in folders] == ["1", "0"]
    run = begun(table_of(place / "cu.h5", {"model": "pair"}), place)
    assert run.record.start["heads"] == {"energy": "kept"} and run.record.start["earlier_data"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("train.learning_rate", ""),
        ("model.hidden_dim", "the architecture; search settings of train"),
        ("start.model", "cannot be compared"),
    ],
)
def test_searches_from_a_start_leave_its_architecture_alone(path: str, words: str, place: Path) -> None:
    choices = {path: {"type": "categorical", "choices": [4, 8]}}
    table = table_of(place / "cuau.h5", {"model": "cu"})
    settings = campaign_settings({**table, "search": {"trials": 2, "space": choices}}, place / "CAMPAIGN.toml")
    with pytest.raises(InputError, match=words) if words else nullcontext():
        check_campaign(settings, Space(parameters=settings.search.space))
    settings = campaign_settings({**table, "search": {"space": "default"}}, place / "CAMPAIGN.toml")
    assert not [path for path in settings.search.space if path.startswith(("model", "heads"))]


def test_data_that_changed_since_are_not_replayed(place: Path) -> None:
    for start, words in (({"replay": 0.5}, "cu.h5"), ({"store": str(place / "cuau.h5")}, "cuau.h5")):
        record = place / "changed" / "record.json"
        shutil.copytree(place / "cu", place / "changed", dirs_exist_ok=True)
        if "replay" in start:
            record.write_text(record.read_text().replace(open_store(place / "cu.h5").fingerprint, "0" * 32))
        with pytest.raises(InputError, match=f"{words} holds other graphs than .* was trained on"):
            begun(table_of(place / "cuau.h5", {"model": str(place / "changed"), **start}), place)
    run = begun(table_of(place / "cuau.h5", {"model": str(place / "changed")}), place)
    assert run.record.start["earlier_data"]


@pytest.mark.parametrize(
    "where, error",
    [
        ("forgetting", OSError(5, "Input/output error")),
        ("first_ranks_value", RuntimeError("a peer is gone")),
        ("keep_beating", KeyError("beat")),
    ],
)
def test_a_failure_after_the_end_is_a_note(
    where: str, error: Exception, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(place / "cuau.h5", {"model": str(place / "cu")}, epochs=1)
    before = [nullcontext()] * (where == "keep_beating")  # the sampler of energy, from the beginning on
    monkeypatch.setattr(session, where, Mock(side_effect=chain(before, repeat(error))))
    record = hydragnn.train(table, tmp_path / "run")
    assert record.status == read_record(tmp_path / "run").status == "finished"
    assert any(note.startswith("forgetting is not measured: ") and words_of(error) in note for note in record.notes)
    assert set(hydragnn.predict(tmp_path / "run", [crystal(0, "Cu-Au")]).status) == {"ok"}
    monkeypatch.undo()
    again = hydragnn.train(tmp_path / "run", resume=True)
    assert again.status == "finished" and again.start["forgetting"]["errors"] and again.curves == record.curves


def test_a_kill_or_a_full_disk_after_the_end_leaves_a_finished_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(place / "cuau.h5", {"model": str(place / "cu")}, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(session, "forgetting", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hydragnn.train(table, tmp_path / "killed")
    write = callback.write_record

    def full(record: Any, *args: Any) -> Any:
        if record.start.get("forgetting"):
            raise InputError("cannot write record.json: No space left on device")
        return write(record, *args)

    monkeypatch.setattr(callback, "write_record", full)
    hydragnn.train(table, tmp_path / "full")
    assert [read_record(tmp_path / name).status for name in ("killed", "full")] == ["finished"] * 2
    assert "note: the record: cannot write record.json" in capsys.readouterr().err


def test_pictures_and_bars_end_no_training(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(callbacks, "write_atomically", Mock(side_effect=full))
    config = config_from_table(table_of(place / "cu.h5", epochs=2, callbacks=[{"kind": "csv"}]), place / "CONFIG.toml")
    record = train_run(config, tmp_path / "run", progress=Mock(spec=Progress, **{"end.side_effect": full}))
    assert record.status == "finished" and record.epochs == 2
    assert record.notes.count("callback csv: OSError: [Errno 28] No space left on device") == 1


def test_forgetting_is_measured_of_the_fields_that_both_predict(place: Path, tmp_path: Path) -> None:
    """The tuned head knows no element of the start but copper."""
    hydragnn.train(table_of(place / "cuau.h5"), tmp_path / "start")
    frames = [crystal(number) for number in range(20)]
    for atoms in frames:
        atoms.info["REF_energy"] = atoms.get_potential_energy()
    make_store(tmp_path / "cu.h5", frames, replace(ENERGY_FIELD, name="REF_energy"))
    table = table_of(tmp_path / "cu.h5", {"model": str(tmp_path / "start")}, epochs=1)
    table["heads"] = [{**HEAD, "field": "REF_energy"}]
    record = hydragnn.train(table, tmp_path / "tuned")
    assert record.status == "finished"
    assert {name.partition("/")[0] for name in record.start["forgetting"]["errors"]} == {"forces"}
