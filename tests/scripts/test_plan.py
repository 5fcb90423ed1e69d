"""``hydragnn plan`` predicts layouts from small steps of a configuration."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hydragnn.base.errors import InputError
from hydragnn.distributed.fabric import site_fabric
from tests.charged_rings import write_rings

Call = Callable[..., tuple[int, str, str]]
CONFIG = """
[data]
store = "rings.h5"
[batch]
max_nodes = 40
max_graphs = 8
[model]
kind = "schnet"
hidden_dim = 8
num_layers = 1
cutoff = 2.0
[[heads]]
kind = "scalar"
field = "moment"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_rings(tmp_path / "rings.h5", 20)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_a_plan_has_memory_time_and_limit_of_every_layout(call: Call, config: Path) -> None:
    words = ("plan", str(config), "--nodes", "8", "--latency", "5", "--curves", "--json")
    code, out, err = call(*words)
    assert code == 0, err
    plan = json.loads(out)
    assert plan["simulated"] and "5 microseconds" in plan["network"]
    first = plan["layouts"][0]
    assert {one["parallel"]["shard"] for one in plan["layouts"]} == {1, 2, 4, 8}
    assert {one["parallel"]["tensor"] for one in plan["layouts"]} == {1}  # within a node of one rank
    assert first["memory"]["total"] == pytest.approx(
        sum(size for name, size in first["memory"].items() if name != "total")
    )
    assert first["seconds"]["step"] > 0 and first["limited_by"] in ("compute", "communication", "latency")
    assert [row["devices"] for row in plan["curves"]] == [8, 64, 512, 1024, 3072]
    assert "warning" in plan


def test_the_training_of_a_campaign_is_planned_and_every_layout_is_named(
    call: Call, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.scripts.plan_command.QUIET", -1.0)
    monkeypatch.setenv("COLUMNS", "80")
    config.write_text(f"{CONFIG}[search]\ntrials = 3\n[search.space]\n'train.learning_rate' = [1e-4, 1e-2]\n")
    code, out, err = call("plan", str(config), "--nodes", "2")
    assert code == 0, err
    assert all(heading in out for heading in ("replicate 2", "parts", "efficiency", "limited by"))
    assert "measuring one device (1 of 6)" in err and "measuring shard = 2 (6 of 6), about 0 s left" in err


def test_what_cannot_be_planned_is_one_sentence(call: Call, config: Path) -> None:
    config.write_text(CONFIG.replace("max_graphs = 8\n", ""))
    code, _, err = call("plan", str(config), "--set", "batch.budget=auto")
    assert code == 2
    assert "every layout has another batch" in err
    code, _, err = call("plan", str(config), "--set", "batch.max_graphs=8", "--set", "parallel.pipeline=2")
    assert code == 2 and "takes a layer per stage" in err
    with pytest.raises(InputError, match="did you mean frontier"):
        site_fabric("fronteir")
