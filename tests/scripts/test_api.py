"""The Python api: what the package offers, that its values are frozen and documented, and that static tools see their types."""

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.config import AnyConfig
from hydragnn.datasets import GraphStore, StoreInfo, check_store, convert_store, open_store
from hydragnn.datasets.sources.registry import read_build_settings
from hydragnn.ensemble import (
    Ensemble,
    Estimate,
    Evaluation,
    PredictionResult,
    Predictions,
    build_ensemble,
    calculator,
    predict_to_file,
)
from hydragnn.ensemble.exporting.export import ExportResult
from hydragnn.hpo import CampaignStatus, campaign_history, finished_runs
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.submit import Submission
from hydragnn.importing.page import Import
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from hydragnn.scripts import api
from hydragnn.scripts.doctor import Installation
from hydragnn.scripts.ensembles import members_of
from hydragnn.scripts.simulated import SimulationResult
from tests.charged_rings import RUN, write_rings

GIVES: dict[str, Any] = {
    "append_store": StoreInfo,
    "build_ensemble": Evaluation,
    "build_store": StoreInfo,
    "doctor": Installation,
    "evaluate": Evaluation,
    "export": ExportResult,
    "import_public": Import,
    "load": Ensemble,
    "merge_stores": StoreInfo,
    "predict": PredictionResult | Predictions | None,
    "report": Path,
    "save": RunRecord,
    "search": CampaignStatus,
    "simulate": SimulationResult,
    "status": CampaignStatus,
    "store_info": StoreInfo,
    "submit": Submission,
    "train": RunRecord,
}
VALUES = sorted(
    {kind for kind in GIVES.values() if dataclasses.is_dataclass(kind)} | {PredictionResult},
    key=lambda kind: kind.__name__,
)


def test_the_package_offers_what_the_api_has() -> None:
    functions = {name: one for name, one in vars(api).items() if inspect.isfunction(one) and name[0] != "_"}
    public = {name: one for name, one in functions.items() if one.__module__ == api.__name__}
    assert sorted(GIVES) == sorted(hydragnn.__all__) == sorted(public)
    assert all(getattr(hydragnn, name) is one for name, one in public.items())


@pytest.mark.parametrize("name", sorted(hydragnn.__all__))
def test_every_function_says_what_it_takes_and_gives(name: str) -> None:
    function = getattr(hydragnn, name)
    kinds = {kind.__name__: kind for kind in (*VALUES, Ensemble, Predictions, GraphStore)} | {"AnyConfig": AnyConfig}
    hints = get_type_hints(function, localns=kinds)
    assert set(hints) == {*inspect.signature(function).parameters, "return"}
    assert hints["return"] == GIVES[name]
    assert "typer" not in str(inspect.signature(function))


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_values_are_frozen_and_say_themselves_in_a_line(kind: type) -> None:
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__ and "__str__" in vars(kind)


def written(kind: Any) -> str:
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    return " | ".join("None" if one is type(None) else written(one) for one in kind.__args__)


def test_static_tools_see_the_types_in_a_users_program(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    links = root / ".links"
    if not links.is_dir():
        pytest.skip("scripts/links.sh has not laid the rooms out for static tools")
    uses = {
        'hydragnn.train("run.toml", "run").best': "dict[str, float]",
        'hydragnn.search({}, "campaign").trials': "dict[str, int]",
        'hydragnn.build_ensemble("campaign", "e").parts["test"]["energy"].ensemble["rmse"]': "float",
        'hydragnn.load("e").predict([])["energy"]': written(Estimate),
        'hydragnn.store_info("s.h5").nodes.mean': "float",
        'hydragnn.predict("e", [])["energy"]': written(Estimate),
        'hydragnn.predict("e", "s.h5", "p.h5")': written(PredictionResult | None),
    }
    plain = [name for name in GIVES if name != "predict"]  # which has two signatures
    lines = [f"reveal_type({use})" for use in (*(f"hydragnn.{name}" for name in plain), *uses)]
    (tmp_path / "program.py").write_text("\n".join(["import hydragnn", *lines]))
    # in the folder of links, whose cache of mypy knows the package where scripts/test.sh has checked it before
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), f"{tmp_path}/program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=links)
    assert done.returncode == 0, done.stdout
    revealed = [text.replace("builtins.", "") for text in re.findall(r'Revealed type is "(.*)"', done.stdout)]
    assert [text.rpartition(" -> ")[2] for text in revealed[: len(plain)]] == [written(GIVES[name]) for name in plain]
    assert revealed[len(plain) :] == list(uses.values())


def test_a_tilde_is_the_home_folder_in_files_and_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir(), here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    write_rings(home / "rings.h5", 12)
    table = tomllib.loads(RUN) | {"data": {"store": "~/rings.h5"}, "train": {"epochs": 1}}
    hydragnn.train(table, "~/run")
    search = {"trials": 1, "warm_start": ["~/old"], "space": {"model.hidden_dim": {"type": "int", "low": 4, "high": 8}}}
    settings = campaign_settings({**table, "search": search}, here / "campaign.toml")
    assert settings.base["data"]["store"] == str(home / "rings.h5") and settings.search.warm_start == [home / "old"]
    build = {"kind": "ase", "files": ["~/a.xyz", "~b.xyz"], "cutoff": 3.0}
    assert read_build_settings(build, here / "BUILD.toml").files == [str(home / "a.xyz"), str(here / "~b.xyz")]
    assert (home / "run" / "record.json").is_file() and not list(here.iterdir())


@pytest.mark.parametrize("what", ["nowhere", "", "notes.txt", os.devnull])
def test_functions_say_what_is_wrong_with_a_path(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("[")
    functions: list[Callable[[str], Any]] = [
        *(load_model, Ensemble.load, calculator, hydragnn.load, hydragnn.store_info, hydragnn.status, hydragnn.report),
        *(open_store, check_store, read_record, campaign_history, finished_runs),
        *(lambda path: convert_store(path, "out.bp"), lambda path: build_ensemble([path], "out")),
        *(lambda path: hydragnn.train(path, "out"), lambda path: hydragnn.predict(path, path, "out.h5")),
        *(lambda path: hydragnn.build_ensemble(path, "out"), lambda path: hydragnn.evaluate(path, path)),
        *(lambda path: predict_to_file(path, path, "out.h5"), lambda path: hydragnn.build_store(path, "out.h5")),
    ]
    for function in functions:
        with pytest.raises(InputError):
            function(what)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt"}


def test_what_means_nothing_is_refused_before_a_search_or_an_ensemble_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="callback = 3 cannot be called; give a function"):
        hydragnn.search({}, tmp_path / "c", callback=3)
    for source in (tmp_path, [tmp_path]):
        with pytest.raises(InputError, match="top-k = 0 chooses no trial; write 1 or more"):
            members_of(source, tmp_path / "out", 0, True, train=False, seeds=0, epochs=None, workers=None)
