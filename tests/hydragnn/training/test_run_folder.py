"""A run begins only where nothing else lies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import lock_file, unlock_file
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.runs import run, train

KINDS = {
    "manifest.json": "is a store",
    "campaign.json": "is a campaign",
    "ensemble.json": "is an ensemble",
    "model.json": "is a model",
    "thesis.tex": "holds thesis.tex, which belongs to no run",
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_is_left_alone(
    name: str, resume: bool, store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    (tmp_path / name).write_text("{}")
    says = "holds no run to resume" if resume and name == "thesis.tex" else KINDS[name]
    with pytest.raises(InputError, match=f"{tmp_path} {says}"):
        train(make_config(), tmp_path, store=store, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_the_member_of_an_ensemble_is_not_resumed(
    store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config()
    for name, content in (("config.json", config.to_json()), ("model.json", {}), ("record.json", {})):
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match="is a model, and a run would be mixed into it"):
        train(config, tmp_path, store=store, resume=True)


def test_a_configuration_of_another_program_is_not_overwritten(
    store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Llama"]}')
    with pytest.raises(InputError, match=r"config.json is not the configuration of a run .*choose another --out"):
        train(make_config(), tmp_path, store=store)
    assert "Llama" in (tmp_path / "config.json").read_text()


def test_an_empty_folder_and_what_ranks_left_behind_will_do(
    store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    for name in (".failure-1.json", ".config.json.99.tmp"):
        (tmp_path / name).write_text("{}")
    assert train(make_config(), tmp_path, store=store, until=1).epochs == 1


def test_a_folder_that_a_starter_has_prepared_is_trained_in(
    store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """As a campaign does it: the configuration and the attempt are there before the worker comes, and its log."""
    graphs = tmp_path_factory.mktemp("data") / "graphs.h5"
    with StoreWriter(graphs, store.fields(), dim=3, attributes=store.attributes) as writer:
        writer.write(store.read(range(len(store))))
    config = make_config(data__store=str(graphs))
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    (tmp_path / "attempt.json").write_text('{"attempt": 1}')
    (tmp_path / "attempt-1.log").write_text("")
    assert run.main([str(tmp_path), "--until", "1", "--attempt", "1", "--device", "cpu"]) == 0
    assert (tmp_path / "record.json").is_file()


@pytest.mark.parametrize("name", ["checkpoints", "model"])
def test_nothing_is_written_through_a_link_out_of_the_folder(
    name: str, store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    elsewhere, run_ = tmp_path / "elsewhere", tmp_path / "run"
    train(make_config(), run_, store=store, until=1)
    elsewhere.mkdir()
    if (run_ / name).exists():
        (run_ / name).rename(run_ / "moved")
    (run_ / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{run_ / name} is a symbolic link, and nothing is written through one"):
        train(make_config(), run_, store=store, resume=True)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_that_train_in_one_folder_the_second_leaves_it_as_it_is(
    begun: bool, store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """One that begins beside one that begins, and one that resumes what another process trains."""
    config, out = make_config(), tmp_path / "run"
    (out.mkdir(), train(config, out, store=store, until=1)) if begun else out.mkdir()
    lock = lock_file(out / ".lock")
    assert lock is not None
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(Busy, match=f"another process trains in {out}; wait for it"):
        train(config, out, store=store, resume=begun)
    if begun:
        assert run.main([str(out)]) == run.BAD_INPUT
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    unlock_file(out / ".lock", lock)
    assert train(config, out, store=store, resume=begun, until=2).epochs == 2
    assert not (out / ".lock").exists()
