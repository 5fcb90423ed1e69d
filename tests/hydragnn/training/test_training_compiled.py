"""A compiled step is the step: the same values and gradients for batches of all sizes, and what cannot be compiled runs as it is."""

import importlib.util
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.files import write_json
from hydragnn.config import RunConfig
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS, Attempt, Fenced, Heartbeat
from hydragnn.runs.compilation import keep_beating
from tests.forked import Forked

Call = Callable[..., Any]
SCRIPT = Path(__file__).with_name("compiling.py")
SMALL = {"model__hidden_dim": 4, "model__num_layers": 1, "model__num_radial": 4}
KINDS = ("dimenet", "gatv2", "mace", "painn", "pna", "relational")
"""One architecture for each form of loop; the script traces and compiles all of them where no kind is named."""


@pytest.fixture(scope="session")
def call(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Runs the script in a process without shape checks; gives what it printed. One cache for all, as trials have.

    The C++ compiler does not optimise, which takes most of its time; which loops there are is decided before it.
    """
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "TORCHINDUCTOR_DEBUG_COMPILE": "1"}

    def run(*words: str, **variables: str) -> Any:
        return printed(Forked([str(SCRIPT), *words], {**environment, **cache, **variables}))

    return run


def printed(process: Forked) -> Any:
    """The JSON value that the script prints at its end."""
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.fixture
def trained(call: Call, make_config: Callable[..., RunConfig], tmp_path: Path) -> Call:
    """Trains runs in processes of their own; gives what their records say."""

    def run(
        name: str, *words: str, model: str = "painn", variables: dict[str, str] | None = None, **changes: Any
    ) -> Any:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(make_config(model, **{"train__compile": "on", **SMALL, **changes}).to_json()))
        return call("runs", str(tmp_path / name), str(path), *words, **(variables or {}))

    return run


def test_a_traced_architecture_gives_what_it_gives_untraced(call: Call) -> None:
    found = call("traced", *KINDS)
    assert sorted(found) == sorted(KINDS)
    for kind, errors in found.items():
        for batch, (values, gradient) in errors.items():
            assert max(values, gradient) < 1e-12, (kind, batch)


def test_a_step_traced_as_on_a_gpu_adds_over_edges_by_our_operators_alone(call: Call) -> None:
    for step, found in call("sums", *KINDS).items():
        assert not found["atomic"], step
        assert any("bfloat16" in name for name in found["ours"]) or "bf16" not in step, step
        assert found["ours"], step


@pytest.mark.skipif(
    not (shutil.which("g++") and importlib.util.find_spec("triton")), reason="needs a C++ compiler and Triton"
)
def test_without_a_gpu_the_compiler_writes_kernels_for_one_that_add_nothing_atomically(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = SCRIPT.with_name("compiling_offline.py")
    found = printed(Forked([str(script), "schnet", str(tmp_path)], environment))
    assert found["kernels"] > 20
    assert not found["atomic"]
    assert {"per_channel_column_sum", "per_channel_row_sum", "sums_sum"} <= set(found["ours"])


def test_one_function_serves_batches_of_all_sizes_and_loops_stay_behind_those_that_they_read(call: Call) -> None:
    errors = call("compiled", "pnaeq", "--single", "--layers", "2")["pnaeq torch.float32"]
    assert errors.pop("functions") == 1
    for batch, (values, gradient) in errors.items():
        assert max(values, gradient) < 1e-5, batch  # 5e-2 where the compiler forgets; double precision: the run below


def test_detach_nodes_of_tracing_would_make_gradients_wrong_and_are_noticed(call: Call) -> None:
    wrong = call("trap")
    assert wrong["values"] < 1e-12 < 1e-4 < wrong["gradient"]
    assert wrong["refused"]


def test_a_compiled_run_that_is_interrupted_ends_with_the_same_bits(trained: Call) -> None:
    heads = [{"kind": "energy", "field": "energy", "forces": "forces", "hidden_dims": []}]
    small = {"heads": heads, "train__epochs": 2}
    # optimised, as users have it
    trained = partial(trained, model="schnet", variables={"TORCHINDUCTOR_DEBUG_COMPILE": "0"})
    whole = trained("whole", **small)
    assert whole["compiled"] and whole["cost"] > 0
    trained("halves", "--until", "1", **small)
    assert trained("halves", "--resume", **small)["curves"] == whole["curves"]
    eager = trained("eager", train__compile="off", **small)
    assert not eager["compiled"]
    assert whole["curves"]["train/loss"] == pytest.approx(eager["curves"]["train/loss"], rel=1e-9)


@pytest.mark.parametrize(
    "words, changes, tolerance",
    [
        (["--micro-batches", "3"], {"train__ema_decay": 0.9, "model__dropout": 0.2}, 1e-9),
        ([], {"batch__max_graphs": 1}, 0.0),
        ([], {"train__precision": "bf16"}, 2**-8),  # the step of bf16: sums are rounded in other places
        ([], {"model__global_attention": {"kind": "linear", "heads": 2}}, 1e-9),
    ],
    ids=["micro-batches, average and dropout", "batches of one graph", "bf16", "linear attention"],
)
def test_a_traced_run_takes_the_steps_of_one_that_is_not(
    words: list[str], changes: dict[str, Any], tolerance: float, trained: Call
) -> None:
    traced, eager = (
        trained(name, *words, "--traced", train__compile=name, train__epochs=2, **changes) for name in ("on", "off")
    )
    assert traced["compiled"] and not eager["compiled"]
    assert traced["curves"]["valid/loss"] == pytest.approx(eager["curves"]["valid/loss"], rel=tolerance, abs=0)


def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(trained: Call) -> None:
    eager = trained("off", train__compile="off", train__epochs=1)
    missing = trained("missing", variables={"CXX": "no-such-compiler"}, train__epochs=1)
    assert not missing["compiled"] and "steps are not compiled" in missing["notes"][-1]
    assert missing["curves"] == eager["curves"]
    attention = {"model__global_attention": {"kind": "multihead", "heads": 2}, "train__epochs": 1}
    depends = trained("attention", "--traced", **attention)
    assert not depends["compiled"] and "steps are not compiled" in depends["notes"][-1]
    again = trained("twice", "--traced", model__checkpoint_activations=True, train__epochs=1)
    assert "checkpoint_activations" in again["notes"][-1]


def test_where_one_rank_cannot_compile_none_does(
    environment: dict[str, str], make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    table = tmp_path / "pair.json"
    head = {"kind": "energy", "field": "energy", "hidden_dims": []}
    table.write_text(
        json.dumps(make_config("schnet", [head], train__compile="on", train__epochs=1, model__num_layers=1).to_json())
    )
    step = {"SLURM_JOB_ID": "79", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    processes = [
        Forked(
            [str(SCRIPT), "runs", str(tmp_path / "pair"), str(table), how],
            {**environment, **step, "SLURM_PROCID": rank},
        )
        for rank, how in (("0", "--traced"), ("1", "--broken"))
    ]
    for result in map(printed, processes):
        assert not result["compiled"] and len(result["curves"]["valid/loss"]) == 1
        assert result["notes"][-1] == "steps are not compiled: rank 1 of 2: No space left on device"


def test_a_run_that_compiles_shows_that_it_lives(tmp_path: Path) -> None:
    attempt = Attempt(folder=tmp_path, number=3)
    write_json(tmp_path / "attempt.json", {"attempt": 3})
    ticks = itertools.count()
    heart = Heartbeat(attempt, first=True, clock=lambda: next(ticks) * SECONDS_BETWEEN_BEATS)

    def seen(content: str) -> bool:
        """Wait for a heartbeat file that is not this one."""
        end = time.monotonic() + 30
        while (tmp_path / "heartbeat").read_text() == content and time.monotonic() < end:
            time.sleep(0.01)
        return (tmp_path / "heartbeat").read_text() != content

    with keep_beating(heart.beat, every=0.01):
        (tmp_path / "heartbeat").write_text("")
        assert seen("")  # written by nobody but the thread
    with pytest.raises(Fenced), keep_beating(heart.beat, every=0.01):
        write_json(tmp_path / "attempt.json", {"attempt": 4})
    with keep_beating(lambda: None, every=0.01, longest=0.0):
        (thread,) = [one for one in threading.enumerate() if one.name == "heartbeat"]
        thread.join(30)
        assert not thread.is_alive()  # what hangs for ever shows no life for ever
