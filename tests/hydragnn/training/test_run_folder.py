"""A run begins only where nothing else lies."""

import json
import shutil
from pathlib import Path

import pytest

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import lock_file, unlock_file
from hydragnn.runs import run
from tests.hydragnn.training.conftest import Configs, Trained

KINDS = {
    "manifest.json": "is a store",
    "campaign.json": "is a campaign",
    "ensemble.json": "is an ensemble",
    "model.json": "is a model",
    "thesis.tex": "holds thesis.tex, which belongs to no run",
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_is_left_alone(name: str, resume: bool, trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).write_text("{}")
    says = "holds no run to resume" if resume and name == "thesis.tex" else KINDS[name]
    with pytest.raises(InputError, match=f"{folder} {says}"):
        trained(resume=resume)
    assert [entry.name for entry in folder.iterdir()] == [name]


def test_the_member_of_an_ensemble_is_not_resumed(trained: Trained, make_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name, content in (("config.json", make_config().to_json()), ("model.json", {}), ("record.json", {})):
        (tmp_path / "run" / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match="is a model, and a run would be mixed into it"):
        trained(resume=True)


def test_a_configuration_of_another_program_is_not_overwritten_but_what_ranks_left_behind_will_do(
    trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    for name in (".failure-1.json", ".config.json.99.tmp"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "run" / "config.json").write_text('{"architectures": ["Llama"]}')
    with pytest.raises(InputError, match=r"config.json is not the configuration of a run .*choose another --out"):
        trained(until=1)
    assert "Llama" in (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").unlink()
    assert trained(until=1).epochs == 1


def test_a_folder_that_a_starter_has_prepared_is_trained_in(stored: Path, make_config: Configs, tmp_path: Path) -> None:
    """As a campaign does it: the configuration and the attempt are there before the worker comes, and its log."""
    (tmp_path / "config.json").write_text(json.dumps(make_config(data__store=str(stored)).to_json()))
    (tmp_path / "attempt.json").write_text('{"attempt": 1}')
    (tmp_path / "attempt-1.log").write_text("")
    assert run.main([str(tmp_path), "--until", "1", "--attempt", "1", "--device", "cpu"]) == 0
    assert (tmp_path / "record.json").is_file()


def test_nothing_is_written_through_a_link_out_of_the_folder(trained: Trained, tmp_path: Path) -> None:
    trained(until=1)
    for name in ("checkpoints", "model"):
        folder, elsewhere = tmp_path / name, tmp_path / f"beside {name}"
        shutil.copytree(tmp_path / "run", folder)
        elsewhere.mkdir()
        (folder / name).rename(folder / "moved")
        (folder / name).symlink_to(elsewhere)
        with pytest.raises(InputError, match=f"{folder / name} is a symbolic link, and nothing is written through one"):
            trained(name, resume=True)
        assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_that_train_in_one_folder_the_second_leaves_it_as_it_is(
    begun: bool, trained: Trained, tmp_path: Path
) -> None:
    """One that begins beside one that begins, and one that resumes what another process trains."""
    out = tmp_path / "run"
    trained(until=1) if begun else out.mkdir()
    lock = lock_file(out / ".lock")
    assert lock is not None
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(Busy, match=f"another process trains in {out}; wait for it"):
        trained(resume=begun)
    assert not begun or run.main([str(out)]) == run.BAD_INPUT
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    unlock_file(out / ".lock", lock)
    assert trained(resume=begun, until=2).epochs == 2
    assert not (out / ".lock").exists()
