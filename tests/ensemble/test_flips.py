"""A byte that changed on a disk or on its way: whoever reads it is told, or reads what was written."""

import shutil
from collections.abc import Callable
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.datasets import open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.manifest import read_manifest
from hydragnn.ensemble.plan import Unit
from hydragnn.ensemble.prediction.records import Parts
from hydragnn.ensemble.prediction.rules import rule_for
from hydragnn.ensemble.prediction.sources import Building
from hydragnn.ensemble.screening import outcome_of, read_screened
from hydragnn.models.saving import load_graph_model
from hydragnn.record import read_record
from hydragnn.scripts.report.collect import ensemble_facts
from tests.flips import FLIPS, flipped, silent


def same_model(one: Any, other: Any) -> bool:
    """The same description, normalisation and weights, to the bit."""
    weights, others = one[0].state_dict(), other[0].state_dict()
    return bool(
        one[0].description == other[0].description
        and one[1] == other[1]
        and weights.keys() == others.keys()
        and all(torch.equal(weights[name], others[name]) for name in weights)
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json"])
def test_a_flipped_bit_of_a_trained_model_is_never_silent(runs: list[Path], tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(runs[0] / "model", tmp_path / "model"))
    found, refused = silent(model / name, lambda: load_graph_model(model), same_model)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_a_record_is_never_silent(runs: list[Path], tmp_path: Path) -> None:
    shutil.copy(runs[0] / "record.json", tmp_path)
    found, refused = silent(tmp_path / "record.json", lambda: read_record(tmp_path), lambda one, other: one == other)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_an_ensemble_is_never_silent(ensemble: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ensemble, tmp_path / "ensemble"))
    found, refused = silent(
        copy / "ensemble.json", lambda: read_manifest(copy).to_json(), lambda one, other: one == other
    )
    assert not found and refused > FLIPS / 2


def same_facts(one: Any, other: Any) -> bool:
    """The same scores, words and predictions of an evaluation."""
    return bool(repr(one) == repr(other) and all(same_rows(one.parts[name], other.parts[name]) for name in one.parts))


def same_rows(one: Any, other: Any) -> bool:
    """The same predictions behind the scores, to the bit."""
    return bool(
        one.points.keys() == other.points.keys()
        and all(
            np.asarray(getattr(points, name)).tobytes() == np.asarray(getattr(other.points[field], name)).tobytes()
            for field, points in one.points.items()
            for name in ("target", "mean", "std", "lower", "upper", "graph")
        )
    )


@pytest.mark.parametrize("name", ["evaluation.json", "evaluation.npz"])
def test_a_flipped_bit_of_an_evaluation_is_never_silent(ensemble: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(ensemble, tmp_path / "ensemble"))
    found, refused = silent(copy / name, lambda: ensemble_facts(copy), same_facts)
    assert not found and refused > FLIPS / 4


def test_a_flipped_bit_of_what_detectors_know_is_never_silent(ensemble: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ensemble, tmp_path / "ensemble"))
    content = (copy / "domain.safetensors").read_bytes()
    found, refused = silent(copy / "domain.safetensors", lambda: read_manifest(copy).domain.file_content, eq)
    assert read_manifest(copy).domain.file_content == content
    assert not found and refused == FLIPS


@pytest.fixture
def building(ensemble: Path, structures_file: Callable[[int], Path], tmp_path: Path) -> Building:
    """Graphs made of a file of structures, in the folder of an interrupted prediction."""
    rule = rule_for(structures_file(12), Ensemble.load(ensemble))
    made = Building(rule, tmp_path / "out.parts", rule.digest)
    for number in range(len(made.blocks)):
        made.build(number)
    made.join()
    return made


def graphs_of(building: Building) -> Any:
    """What a prediction that is resumed takes over: graphs to the bit, their numbers, and why others failed."""
    source = building.source()
    positions = source.store.read(np.arange(len(source.store))).positions
    return source.numbers.tolist(), source.failures, positions.numpy().tobytes()


def test_a_flipped_bit_of_the_numbers_of_graphs_is_never_silent(building: Building) -> None:
    found, refused = silent(building.scratch / "graphs.json", lambda: graphs_of(building), eq)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_a_block_of_graphs_is_never_silent(building: Building) -> None:
    def joined_again() -> Any:
        (building.scratch / "graphs.json").unlink(missing_ok=True)
        building.join()
        return graphs_of(building)

    found, refused = silent(building.scratch / "block-00000" / "notes.json", joined_again, eq)
    assert not found and refused > FLIPS / 2


def test_a_unit_with_a_flipped_bit_is_predicted_again(ensemble: Path, stored: Path, tmp_path: Path) -> None:
    parts, unit = Parts(tmp_path), Unit(member=0, chunk=0)
    loaded, store = Ensemble.load(ensemble), open_store(stored)
    names = loaded.needed(store)
    parts.keep(unit, outcome_of(loaded.members[0], read_screened(store, np.arange(8), names, names)), 1.0)
    parts.records.look()
    expected, torn = parts.outcome(unit), 0
    for _, place in flipped([*tmp_path.iterdir()], seed=0):
        seen = Parts(tmp_path)
        seen.records.look()
        outcome = seen.outcome(unit)
        seen.records.close()
        if outcome is None:
            torn += 1
            continue
        assert outcome.reasons == expected.reasons, place
        for name, prediction in expected.predictions.items():
            ours, theirs = prediction.to_arrays(), outcome.predictions[name].to_arrays()
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours), place
    assert torn > FLIPS / 2
