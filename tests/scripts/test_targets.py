"""Whatever ``--out`` names that is something else is refused by every command, and left as it is."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.scripts import cli
from tests.charged_rings import RUN, SEARCH, write_rings
from tests.hydragnn.importing.public_runs import write_model
from tests.once import shared

ARCHIVE = Path(__file__).parents[1] / "archive"
BUILD = 'kind = "ase"\nfiles = ["{folder}/*.xyz"]\ncutoff = 3.0\n'

COMMANDS = {
    "quickstart": ("--scale alloys", ""),
    "conformance": ("gin", ".md"),
    "check": ("{inputs}/run", ".md"),
    "data build": ("{inputs}/build.toml", ".h5"),
    "data merge": ("{inputs}/store.h5 {inputs}/other.h5", ".h5"),
    "data label": ("{inputs}/one.xyz --calculator ase.calculators.emt:EMT --allow-code ase.calculators.emt", ".xyz"),
    "export": ("{inputs}/run --to torch", ".pt2"),
    "train": ("{inputs}/config.toml", ""),
    "search": ("{inputs}/campaign.toml", ""),
    "ensemble": ("{inputs}/campaign", ""),
    "import": ("{inputs}/public", ""),
    "predict": ("{inputs}/run {inputs}/store.h5", ".h5"),
    "report": ("{inputs}/run", ".html"),
    "relax": ("{inputs}/run {inputs}/one.xyz", ".xyz"),
    "md": ("{inputs}/run {inputs}/one.xyz", ".xyz"),
}
"""Words that each command needs beside ``--out``, and the suffix of what it writes."""


def commands_with_out(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_with_out(inner, (*path, name))
    if any("--out" in parameter.opts for parameter in command.params):
        yield " ".join(path)


def someones_file(path: Path) -> None:
    path.write_text("notes of years\n")


def someones_folder(path: Path) -> None:
    path.mkdir()
    someones_file(path / "notes.txt")


def folder_with(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).write_text("{}")


def make_store(path: Path) -> None:
    """Two graphs; under any name, since a command may want another suffix."""
    write_rings(path.with_name("made.h5"), 2).rename(path)


def link_to(path: Path, make: Callable[[Path], object]) -> None:
    make(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


KINDS: dict[str, Callable[[Path], object]] = {
    "someone's folder": someones_folder,
    "someone's file": someones_file,
    "a store": make_store,
    "a run": lambda path: folder_with(path, "record.json"),
    "a campaign": lambda path: shutil.copytree(ARCHIVE / "campaign-v2", path),
    "an ensemble": lambda path: folder_with(path, "ensemble.json"),
    "a link to someone's folder": lambda path: link_to(path, someones_folder),
    "a link to someone's file": lambda path: link_to(path, someones_file),
    "a broken link": lambda path: link_to(path, lambda _: None),
}


@shared
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_store(folder / "store.h5")
    make_store(folder / "other.h5")
    run = RUN.replace("rings.h5", str(folder / "store.h5"))
    (folder / "config.toml").write_text(run)
    (folder / "campaign.toml").write_text(run + SEARCH)
    (folder / "build.toml").write_text(BUILD.format(folder=folder))
    (folder / "one.xyz").write_text('1\nLattice="9 0 0 0 9 0 0 0 9" pbc="F F F"\nCu 0 0 0\n')
    halves = ["split.train=0.5", "split.valid=0.5", "train.epochs=1"]
    hydragnn.train(folder / "config.toml", folder / "run", overrides=halves)
    shutil.copytree(ARCHIVE / "campaign-v2", folder / "campaign")
    write_model(folder / "public")
    return folder


@pytest.fixture
def refusal(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], str]:
    """Calls a command with a target; gives the sentence with which it refuses."""

    def leave(code: int, **_: Any) -> None:
        raise AssertionError(f"the command ended with {code}")

    monkeypatch.setattr("hydragnn.distributed.leave", leave)

    def call(name: str, target: Path) -> str:
        words = f"{name} {COMMANDS[name][0].format(inputs=inputs)}".split()
        with pytest.raises(InputError) as refused:
            typer.main.get_command(cli.app).main([*words, "--out", str(target)], standalone_mode=False)
        return str(refused.value)

    return call


def contents(folder: Path) -> dict[str, Any]:
    """Every file, folder and link below a folder with what is in it and when it changed."""
    actual: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        what = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        actual[str(path.relative_to(folder))] = (what, path.lstat().st_mtime_ns)
    return actual


def test_every_command_with_out_is_tried() -> None:
    assert set(commands_with_out(typer.main.get_command(cli.app))) == set(COMMANDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_another_target_is_refused(name: str, kind: str, refusal: Callable[[str, Path], str], tmp_path: Path) -> None:
    target = tmp_path / f"target{COMMANDS[name][1]}"
    KINDS[kind](target)
    before = contents(tmp_path)
    sentence = refusal(name, target)
    assert str(target) in sentence and "\n" not in sentence
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["my own plan\n", '{"planned": {}, "mine": 1}\n', "[]"])
def test_predictions_replace_no_plan_of_others(text: str, refusal: Callable[[str, Path], str], tmp_path: Path) -> None:
    (tmp_path / "target.h5.plan.json").write_text(text)
    before = contents(tmp_path)
    assert "target.h5.plan.json exists already and is no plan" in refusal("predict", tmp_path / "target.h5")
    assert contents(tmp_path) == before
