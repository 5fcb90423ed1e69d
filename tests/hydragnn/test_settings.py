"""Settings: TOML in, a typed object out, or one sentence with the next move."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.settings import plain_table, read_toml, with_overrides
from hydragnn.config import RunConfig, TrainSettings, config_from_table, parse_config

HEADS = [{"kind": "scalar", "field": "energy"}]
GOOD: dict[str, Any] = {"data": {"store": "a.h5"}, "model": {"kind": "painn"}, "heads": HEADS}


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("model.cutof=3", "unknown key model.cutof; did you mean cutoff?"),
        ("model.relation='shell'", "unknown key model.relation"),
        ("trian.epochs=3", "unknown key trian; did you mean train?"),
        ("heads.0.pol='sum'", "unknown key heads.0.pol; did you mean pool?"),
        ("model.kind='pain'", "model"),
        ("model.cutoff=-1", "model.cutoff"),
        (f"train.seed={2**63}", "train.seed"),
        ("model.hidden_dim='many'", "model.hidden_dim"),
        ("heads.0.loss='nll'", "go together"),
        ("heads.0.forces='forces'", 'heads.0: forces belongs to kind = "energy", not to kind = "scalar"'),
        ("split.train=1.5", "split.train"),
        ("split.valid=0.5", "exceeds 1"),
        ("split.kind='group'", "needs a field"),
        ("batch.max_graphs=0", "without any limit"),
        ("train.warmup_epochs=100", "leaves nothing"),
        ("heads.0.weight=0", "every loss weight is 0"),
        ("heads.3.weight=1", "not a position"),
        ("train.learning_rate=nan", "train.learning_rate"),
        ("model.hidden_dim=true", "model.hidden_dim: Input should not be true or false"),
        ("train.learning_rate=true", "train.learning_rate: Input should not be true or false"),
        (f"split.seed={2**63}", "split.seed: Input should be a number of less than 64 bits"),
        (f"batch.max_nodes={2**62}", "batch.max_nodes: Input should be less than or equal to"),
        ("parallel.replicate=0", "parallel.replicate: Input should be greater than or equal to 1, or 'auto' (given"),
        ("parallel=3", "parallel: Input should be a table of keys (given: 3)"),
        ("data.store=3", "data.store: Input should be a path, or a valid tuple (given: 3)"),
        ("parallel.precision='bf16'", "unknown key parallel.precision; did you mean train.precision?"),
        ("parallel.seed=1", "unknown key parallel.seed; did you mean split.seed or train.seed?"),
        ('data.store="a\\u0000b"', "data.store: Input should have no NUL character"),
        ("model.hidden_dim", "expected key=value"),
        ("heads=[{kind = 'scalar', field = 'a'}, {kind = 'scalar', field = 'a'}]", "predicted twice"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_key(assignment: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        RunConfig.parse(with_overrides(GOOD, [assignment]))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [3, "x", [], [3], {"a": 1}], ids=str)
def test_a_wrong_or_missing_section_is_refused_without_names_of_classes(wrong: Any) -> None:
    with pytest.raises(InputError, match="missing key heads"):
        RunConfig.parse({key: value for key, value in GOOD.items() if key != "heads"})
    for section in ("data", "split", "batch", "model", "heads", "train", "start", "parallel"):
        with pytest.raises(InputError, match=section) as caught:
            RunConfig.parse({**GOOD, section: wrong})
        assert not any(word in str(caught.value) for word in ("Settings", "<class", "dictionary", "constrained"))


def test_the_resolved_configuration_reads_back_as_itself() -> None:
    config = RunConfig.parse(GOOD)
    assert RunConfig.parse(config.to_json()) == config
    assert RunConfig.parse(config.to_json()).hash == config.hash


ENERGY: dict[str, Any] = {"kind": "energy", "field": "energy"}
FORCES = {**ENERGY, "forces": "forces"}


@pytest.mark.parametrize(
    ("heads", "train", "rate"),
    [
        ([FORCES], {}, 3e-3),
        ([HEADS[0] | {"field": "charge"}, FORCES], {"epochs": 3}, 3e-3),
        ([ENERGY], {}, 1e-3),
        ([{**ENERGY, "stress": "stress"}], {}, 1e-3),
        (HEADS, {}, 1e-3),
        ([FORCES], {"optimizer": "sgd"}, 1e-3),
        ([FORCES], {"learning_rate": 1e-3}, 1e-3),
        ([ENERGY], {"learning_rate": 3e-3}, 3e-3),
    ],
)
def test_the_default_rate_is_that_of_the_heads_and_stands_in_the_configuration(
    heads: list[dict[str, Any]], train: dict[str, Any], rate: float
) -> None:
    section = TrainSettings.parse(train)
    for own in (train, section):
        config = RunConfig.parse({**GOOD, "heads": heads, "train": own})
        assert config.train.learning_rate == config.to_json()["train"]["learning_rate"] == rate
        assert RunConfig.parse(config.to_json()) == config
    assert section == TrainSettings.parse(train)
    branches = [
        {"name": "a", "data": GOOD["data"], "heads": HEADS},
        {"name": "b", "data": GOOD["data"], "heads": heads},
    ]
    both = parse_config({"model": GOOD["model"], "branches": branches, "train": train})
    assert both.train.learning_rate == both.of_branch("a").train.learning_rate == rate


def test_a_relative_store_counts_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[data]\nstore = "a.h5"\n[model]\nkind = "egnn"\n[[heads]]\nkind = "scalar"\nfield = "energy"\n')
    assert config_from_table(read_toml(path), path).data.store == tmp_path / "a.h5"


@pytest.mark.parametrize(
    "content",
    [b"[data", b"\xff\xfd", b"a = " + b"[" * 100_000, b"a = " + b"9" * 10_000],
    ids=["half a table", "not text", "nested", "digits"],
)
def test_a_damaged_file_is_named_and_so_is_a_missing_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.toml is not valid TOML"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(InputError, match="does not exist"):
        read_toml(tmp_path / "absent.toml")


def test_what_never_ends_is_not_read_as_toml_and_what_a_shell_pipes_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^/dev/zero is no regular file"):
        read_toml(Path("/dev/zero"))
    with (tmp_path / "run.toml").open("wb") as file:
        file.truncate(10**12)  # holes: nothing on the disk
    with pytest.raises(InputError, match=r"has more than 10,000,000 bytes"):
        read_toml(tmp_path / "run.toml")
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file, os.fdopen(reading):
        file.write(b"model.kind = 'painn'")
        file.close()
        assert read_toml(Path(f"/dev/fd/{reading}")) == {"model": {"kind": "painn"}}
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        with pytest.raises(InputError, match=r"has more than 10,000,000 bytes"):
            read_toml(Path(f"/dev/fd/{endless.stdout.fileno()}"))
        endless.stdout.close()


@pytest.mark.parametrize(
    ("word", "hint"),
    [("PaiNN", "did you mean painn?"), ("pain", "did you mean painn?"), ("location", "valid: on, optional, painn")],
)
def test_the_nearest_word_is_near_whatever_its_case(word: str, hint: str) -> None:
    assert nearest(word, ["painn", "optional", "on"]) == hint


def test_a_table_of_python_is_what_a_file_could_say() -> None:
    table = {"data": {"store": Path("a.h5")}, "train": {"epochs": np.int64(3)}, "heads": ({"kind": "scalar"},)}
    assert plain_table(table) == {"data": {"store": "a.h5"}, "train": {"epochs": 3}, "heads": [{"kind": "scalar"}]}
    with pytest.raises(InputError, match=r"holds <object object.*, a object; give numbers, texts, paths"):
        plain_table({"data": object()})
    with pytest.raises(InputError, match="no table of plain values"):
        plain_table({"heads": {("a", "b"): 1}})


@pytest.mark.parametrize(
    ("table", "assignments", "words"),
    [
        ({"train": {"compile": "on"}}, [], "train.compile is gone: .* export --to aoti"),
        ({"train": {"compile": "off", "epochs": 3}}, [], "train.compile is gone"),
        ({}, ["train.compile=auto"], "train.compile is gone"),
        ({"heads": [{"field": "e"}, {"graph_scale": True}]}, [], "heads.graph_scale is gone: .* sizes itself"),
        ({"model": {"schedule": [0, 1]}}, [], "model.schedule is gone: every layer reads all edges"),
        ({}, ["batch.budget=auto"], "batch.budget is gone: batch.max_graphs and others say"),
        ({}, ["model.level=l"], "model.level is gone"),
        ({"search": {"together": 8}}, [], "search.together is gone: .* trials_per_device = N"),
        ({}, ["search.together=auto"], "search.together is gone"),
    ],
)
def test_a_removed_key_is_refused_and_left_out_of_older_tables(
    table: dict[str, Any], assignments: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        with_overrides(table, assignments)
    written = with_overrides(table, assignments, own=False)
    if "train" in written:
        assert "compile" not in TrainSettings.parse(written["train"]).to_json()
