"""``hydragnn plan`` predicts layouts from small steps of a configuration."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydragnn.runs import rank_steps
from hydragnn.scripts.plan_command import PlannedMachine, critical_words
from hydragnn.scripts.plan_curves import LOSSES, curves_line
from tests.charged_rings import RUN, write_rings
from tests.hydragnn.training.conftest import files
from tests.once import Call

CONFIG = RUN + "[batch]\nmax_nodes = 40\nmax_graphs = 8\n"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure noise in few steps; ``test_noise.py`` takes all."""
    monkeypatch.setattr(rank_steps, "WARM_UP", 2)
    monkeypatch.setattr(rank_steps, "MEASURED", 4)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_rings(tmp_path / "rings.h5", 20)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_a_plan_has_memory_time_and_losses_of_every_layout(
    call: Call, config: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, picture = files(config.parent), tmp_path_factory.mktemp("pictures") / "curves.svg"
    words = ("--nodes", "8", "--latency", "5", "--picture", str(picture), "--set", "model.num_layers=4", "--json")
    code, out, err = call("plan", str(config), *words)
    assert code == 0, err
    plan = json.loads(out)
    assert "5 microseconds" in plan["network"] and plan["measured_layouts"] == 0 and "warning" in plan
    roofline = plan["roofline"]
    assert roofline["seconds"] > roofline["seconds_at_bound"] > 0 and roofline["bound"] in ("arithmetic", "memory")
    assert sum(one["bytes"] for one in roofline["ops"]) == pytest.approx(roofline["bytes"])
    kinds = {(one["parallel"]["shard"], one["parallel"]["pipeline"]) for one in plan["layouts"]}
    assert kinds == {(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4)}
    assert {one["parallel"]["tensor"] for one in plan["layouts"]} == {1}  # within a node of one rank
    for one in [*plan["layouts"], *(row["weak"] for row in plan["curves"])]:
        assert one["memory"]["total"] == one["memory"]["state"] + one["memory"]["step"] > 0
        assert one["efficiency"] + sum(one["losses"].values()) == pytest.approx(1.0)
    assert [row["devices"] for row in plan["curves"]] == [2**power for power in range(17)]
    assert [row["devices"] for row in plan["curves"] if row["strong"]] == [1, 2, 4, 8]  # a batch has 8 graphs
    assert (
        "strong: 8 graphs a step of all devices up to 8 devices, as of more some would have none; weak: 1 graphs"
        in curves_line(plan)
    )
    drawn = picture.read_text()
    assert all(words in drawn for words in (*LOSSES, "strong scaling", "weak scaling", "arXiv:2312.12705"))
    assert plan["critical_batch"]["batch"] == 8 and plan["critical_batch"]["at_least"] > 0
    assert files(config.parent) == before


FOUND = {"graphs": 64.4, "standard_error": 3.0, "at_least": 60.0, "graphs_per_step": 256, "warm_up": 40}
FOUND |= {"batch": 16, "training_graphs": 100, "learning_rates": [0.001, 0.002]}


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (
            FOUND,
            "critical batch: 64.4 graphs, standard error 3, yours has 16; .* up to 16 devices with 4 graphs each pay; .* learning rate of 0.001 one of 0.002 there",
        ),
        (FOUND | {"graphs": 0.2}, "critical batch: 1 graphs, .* up to 1 device with 4 graphs each pay"),
        (
            FOUND | {"graphs": None},
            "critical batch: above 60 graphs, yours has 16; .* hides the mean gradient of 256 graphs",
        ),
        ({"not_measured": "the gradient is nan"}, "critical batch not measured: the gradient is nan"),
    ],
)
def test_the_critical_batch_is_compared_with_the_configured_one(noise: dict[str, Any], words: str) -> None:
    assert re.match(words, critical_words(noise, 4))


def test_a_training_that_diverges_leaves_the_rest_of_a_plan(call: Call, config: Path) -> None:
    code, out, err = call("plan", str(config), "--set", "train.learning_rate=1e38")
    assert code == 0, err
    assert "one device" in out and re.search("critical batch not measured: the gradient is .* of training", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "0"), "give --budget with node-hours above 0"),
        (("--budget", "-3"), "give --budget with node-hours above 0"),
        (("--budget", "1e308"), "and below 1e12"),
        (("--budget", "nan"), "give --budget with node-hours above 0"),
        ((), "give --budget with node-hours above 0"),
        (("--budget", "2", "--nodes", "4"), "leave --set, --curves and options of the machine out"),
        (("--budget", "2"), "is not a campaign"),
    ],
)
def test_a_budget_without_a_campaign_is_refused(
    words: tuple[str, ...], message: str, call: Call, tmp_path: Path
) -> None:
    code, out, err = call("plan", str(tmp_path), *words)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--picture", "curves.jpg"), "--picture curves.jpg: pictures are .svg, .png or .pdf"),
        (("--picture", "missing/curves.svg"), "--picture missing/curves.svg: name a file in a folder that exists"),
        (("--curves", "--set", "parallel.shard=3"), "--curves: shard = 3 takes 3 ranks"),
        (
            ("--curves", "--set", "parallel.shard=16"),
            "--curves: batches of 8 of 16 training graphs are too few for 16 devices",
        ),
    ],
)
def test_curves_that_cannot_be_are_refused_before_steps(
    words: tuple[str, ...], message: str, call: Call, config: Path
) -> None:
    code, out, err = call("plan", str(config), *words)
    assert (code, out) == (2, "") and message in err and "measuring" not in err


def test_every_layout_of_a_campaign_is_planned(call: Call, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.scripts.plan_command.QUIET", -1.0)
    monkeypatch.setenv("COLUMNS", "80")
    config.write_text(f"{CONFIG}[search]\ntrials = 3\n[search.space]\n'train.learning_rate' = [1e-4, 1e-2]\n")
    code, out, err = call("plan", str(config), "--nodes", "2", "--curves")
    assert code == 0, err
    for words in (
        "replicate 2",
        "shard 2",
        "parts",
        "efficiency",
        "limited by",
        "~ extrapolated",
        "strong",
        "weak",
        "65,536",
        "fixed work",
    ):
        assert words in out
    assert "measuring one device (1 of 3)" in err and "measuring one device (3 of 3), about " in err


def test_ranks_that_are_started_take_steps_of_every_layout(config: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = ["-m", "hydragnn", "plan", str(config), "--set", "model.num_layers=2", "--json"]
    done = subprocess.run([*torchrun, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout.splitlines()[-1])
    layouts = [{axis for axis, size in one["parallel"].items() if size == 2} for one in plan["layouts"]]
    assert sorted(map(sorted, layouts)) == [["graph"], ["pipeline"], ["replicate"], ["shard"], ["tensor"]]
    assert all(one["measured"] for one in plan["layouts"])
    times = [one["measured_seconds"] for one in plan["layouts"]]
    assert times == sorted(times)
    assert "measured with 2 ranks" in plan["network"]


def test_a_plan_says_which_parts_of_the_network_options_state() -> None:
    words = {name: PlannedMachine(**{name: 5.0}).network() for name in ("latency", "bandwidth")}
    assert {name: one and one.source.partition(", as")[0] for name, one in words.items()} == {
        "latency": "5 microseconds",
        "bandwidth": "5 GB/s of a node",
    }
