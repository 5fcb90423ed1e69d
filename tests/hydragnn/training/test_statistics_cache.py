"""What follows from a store and its split: computed once, the bits of computing anew, and never taken from a damaged file."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from hydragnn import datasets
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.config import RunConfig
from hydragnn.datasets import DiskStore, MemoryStore, SplitSettings, Survey, WithoutEdges, loader
from hydragnn.datasets import survey as survey_module
from hydragnn.datasets.manifest import write_manifest
from hydragnn.distributed import Ranks
from hydragnn.record import read_record
from hydragnn.runs import graph_statistics, preparation, statistics_cache
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.plan import plan_run
from hydragnn.runs.preparation import check_on_all
from hydragnn.runs.statistics_cache import StatisticsCache
from tests.hydragnn.training.conftest import STORE, Trained, assembled, finish, make_config, start_ranks, written


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskStore:
    """The store on disk, where even so few graphs are worth a file."""
    monkeypatch.setattr(statistics_cache, "LEAST_GRAPHS", 1)
    monkeypatch.setattr(preparation, "LEAST_GRAPHS", 1)
    monkeypatch.setattr(loader, "GRAPHS_AHEAD", 8)
    return DiskStore(written(tmp_path / "store.h5", STORE))


def begun(config: RunConfig, store: DiskStore | MemoryStore, *, shared: bool = True) -> Assembly:
    anew = DiskStore(store.path) if isinstance(store, DiskStore) else store
    return assembled(config, anew, torch.float32, shared=shared)


def value_of(store: Any, value: Any, what: Any = "x") -> Any:
    """Return what is kept of a store, or this value where nothing is."""
    return StatisticsCache(store=store).value({"what": what}, value if callable(value) else lambda: value)


def known(run: Assembly) -> list[Any]:
    (branch,) = run.data.branches
    moments = {key: [one.count, one.mean.tolist(), one.squares.tolist()] for key, one in branch.valid_moments.items()}
    return [branch.normalisation.to_json(), dict(branch.trivial), moments, list(run.record.notes)]


def batches(run: Assembly) -> list[dict[str, torch.Tensor]]:
    (branch,) = run.data.branches
    shares = [share for step in run.data.epoch(0) for share in step.parts] + list(branch.valid)
    names = ("positions", "senders", "receivers")
    return [{n: getattr(one, n) for n in names} | {name: one[name] for name in branch.fields} for one in shares]


def forbid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = next(one for one in (preparation, graph_statistics, datasets) if hasattr(one, name))
    monkeypatch.setattr(module, name, Mock(side_effect=AssertionError(f"{name} was called again")))


@pytest.mark.parametrize("model", ["pna", "mace"])
def test_a_second_run_measures_nothing_anew(model: str, disk: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(model)
    anew, first = begun(config, STORE), begun(config, disk)
    for name in ("check_graphs", "fit_normalisation", "valid_statistics", "degree_sums", "species_in"):
        forbid(name, monkeypatch)
    second = begun(config, disk)
    assert known(first) == known(second) == known(anew)
    for one, other, third in zip(batches(anew), batches(first), batches(second), strict=True):
        assert all(torch.equal(one[name], other[name]) and torch.equal(one[name], third[name]) for name in one)


def test_copies_in_two_parts_are_noted_and_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_cache, "LEAST_GRAPHS", 1)
    graphs = STORE.read([*range(40), *range(20)]).with_texts({"name": [f"g{number}" for number in range(60)]})
    path = written(tmp_path / "store.h5", [graphs], **STORE.attributes)
    config = make_config("schnet")
    first = begun(config, DiskStore(path)).record.notes
    monkeypatch.setattr("hydragnn.runs.provenance.copies_across", None)
    assert begun(config, DiskStore(path)).record.notes == first
    assert any("copies of " in note and "in another part" in note and "'g" in note for note in first), first
    grouped = config.model_copy(update={"split": SplitSettings.parse({"group": "duplicates"})})
    monkeypatch.undo()
    assert not any("copies" in note for note in begun(grouped, DiskStore(path)).record.notes)


def test_other_loss_weights_need_no_new_statistics(disk: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("schnet")
    begun(config, disk)
    forbid("measure", monkeypatch)
    heads = [{**head, "weight": 3.0} for head in config.to_json()["heads"]]
    begun(RunConfig.parse({**config.to_json(), "heads": heads}), disk)


@pytest.mark.parametrize("damage", ["a digit", "half", "nothing", "another key"])
def test_a_damaged_file_is_computed_anew(damage: str, disk: DiskStore) -> None:
    config = make_config("schnet")
    expected = known(begun(config, disk))
    for path in (disk.path / "statistics").glob("*.json"):
        text = path.read_text()
        if damage == "another key":
            table = json.loads(text)
            statistics_cache.write_sealed(path, {**table, "of": {**table["of"], "store": "another"}})
            continue
        half = text[: len(text) // 2 if damage == "half" else 0]
        path.write_text(text.replace("0.", "1.", 1) if damage == "a digit" else half)
    assert known(begun(config, disk)) == expected == known(begun(config, disk))


def test_a_bit_that_changed_since_is_found_by_the_next_run(disk: DiskStore) -> None:
    config = make_config("schnet")
    plan = plan_run(config, disk)
    begun(config, disk)
    energies = disk.read(plan.branches[0].split.train[:1])["energy"].numpy().tobytes()
    part = next(disk.path.glob("part-*"))
    content = bytearray(part.read_bytes())
    place = content.index(energies)
    content[place] ^= 1
    part.write_bytes(content)
    with pytest.raises(InputError, match=f"graph {plan.branches[0].split.train[0]} is not as it was written"):
        begun(config, disk)


def test_views_of_a_store_have_values_of_their_own(disk: DiskStore) -> None:
    for store, value in ((disk, 1), (WithoutEdges(disk), 2)):
        assert value_of(store, value) == value
    assert value_of(disk, 3) == 1


@pytest.mark.parametrize("claimed", [None, "../../../elsewhere", "nul\0"])
def test_a_claimed_fingerprint_gives_no_values_of_another_store(
    claimed: str | None, disk: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores that cannot be written, so that both have their values in the user's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches" / "of" / "ada"))
    written(tmp_path / "forged.h5", list(STORE)[:-1], **STORE.attributes)
    manifest = DiskStore(tmp_path / "forged.h5").manifest
    write_manifest(tmp_path / "forged.h5", replace(manifest, fingerprint=claimed or disk.fingerprint))
    forged = DiskStore(tmp_path / "forged.h5")
    monkeypatch.setattr(statistics_cache.os, "access", lambda *_: False)
    for one, value in ((forged, "forged"), (disk, "true")):
        assert value_of(one, value) == value
    for again, value in ((DiskStore(forged.path), "forged"), (DiskStore(disk.path), "true")):
        assert value_of(again, "anew") == value
    assert [path.name for path in (tmp_path / "caches" / "of" / "ada").iterdir()] == ["hydragnn"]
    os.utime(next(disk.path.glob("part-*")), ns=(0, 1))  # somebody else's file under the name
    assert value_of(disk, "anew") == "anew"


def test_an_error_leaves_no_value(disk: DiskStore) -> None:
    with pytest.raises(InputError, match="no"):
        value_of(disk, Mock(side_effect=InputError("no")))
    assert not (disk.path / "statistics").exists()


def test_a_store_in_memory_and_a_small_one_keep_nothing(disk: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_cache, "LEAST_GRAPHS", len(disk) + 1)
    for one in (STORE, disk):
        assert [value_of(one, number) for number in (1, 2)] == [1, 2]
    assert not (disk.path / "statistics").exists()


def test_a_window_reads_the_validation_part_in_pieces(disk: DiskStore) -> None:
    (branch,) = begun(make_config("schnet", data__window=8), disk, shared=False).data.branches
    with patch.object(DiskStore, "read", autospec=True, side_effect=DiskStore.read) as read:
        graphs = sum(len(part) for part in branch.valid)
    sizes = [len(call.args[1]) for call in read.call_args_list]
    assert graphs == len(branch.split.valid) == sum(sizes)
    assert 0 < min(sizes) <= max(sizes) <= 8


def test_two_ranks_measure_the_data_with_the_bits_of_one(trained: Trained, tmp_path: Path) -> None:
    config = make_config("pna", train__epochs=1)
    alone = trained("alone", config)
    finish(*start_ranks({tmp_path / "pair": config}, 2))
    for key in ("normalisation", "statistics"):
        here, there = (read_json(tmp_path / name / "model" / "model.json").get(key) for name in ("alone", "pair"))
        assert here == there, key
    assert read_record(tmp_path / "pair").trivial == alone.trivial


def test_a_survey_reads_a_field_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "BLOCK", 16)
    survey = Survey(STORE, np.arange(20))
    forces = next(field for field in STORE.fields() if field.name == "forces")
    with patch.object(MemoryStore, "column", autospec=True, side_effect=MemoryStore.column) as column:
        assert survey.summary(forces) is survey.summary(forces)
    # no graph of the training part lies beyond
    assert [call.args[1:3] for call in column.call_args_list] == [("forces", 0), ("forces", 16)]


class OtherRankFoundDamage(Ranks):
    """The first of two ranks, whose peer adds a one to single numbers: it has found something."""

    def sum_in_place(self, values: torch.Tensor) -> torch.Tensor:
        return values + 1 if values.is_floating_point() and not values.dim() else values


def test_damage_that_only_another_rank_sees_ends_the_run() -> None:
    with pytest.raises(InputError, match="and the first rank none; copy the store anew"):
        check_on_all(lambda graphs: None, np.arange(10), OtherRankFoundDamage(size=2))
