"""A compiled step is the step: the same values and gradients for batches of all sizes, and what cannot be compiled runs as it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.architectures import architectures
from hydragnn.config import RunConfig, hash_of
from tests.forked import Forked

Call = Callable[..., Any]
SCRIPT = Path(__file__).with_name("compiling.py")
SMALL = {"hidden_dim": 4, "num_layers": 1, "num_radial": 4, "cutoff": 3.0}


@pytest.fixture(scope="session")
def call(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Runs the script in a process without shape checks; gives what it printed. One cache for all, as trials have."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def run(*words: str, **variables: str) -> Any:
        process = Forked([str(SCRIPT), *words], {**environment, "TORCHINDUCTOR_CACHE_DIR": cache, **variables})
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output
        return json.loads(output.splitlines()[-1])

    return run


@pytest.fixture
def trained(call: Call, make_config: Callable[..., RunConfig], tmp_path: Path) -> Call:
    """Trains runs in processes of their own; gives what their records say."""

    def run(
        name: str, *words: str, model: str = "painn", variables: dict[str, str] | None = None, **changes: Any
    ) -> Any:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(make_config(model, **{"train__compile": "on", **changes}).to_json()))
        return call("runs", str(tmp_path / name), str(path), *words, **(variables or {}))

    return run


def test_every_architecture_is_traced_with_all_heads_and_gives_what_it_gives(call: Call) -> None:
    for kind, errors in call("traced").items():
        assert kind in architectures()
        for batch, (values, gradient) in errors.items():
            assert max(values, gradient) < 1e-12, (kind, batch)


def test_one_function_serves_batches_of_all_sizes(call: Call) -> None:
    result = call("compiled", "painn")
    for dtype, bound in (("torch.float64", 1e-10), ("torch.float32", 1e-5)):
        errors = result[f"painn {dtype}"]
        assert errors.pop("functions") == 1
        for batch, (values, gradient) in errors.items():
            assert max(values, gradient) < bound, (dtype, batch)


def test_detach_nodes_of_tracing_would_make_gradients_wrong_and_are_noticed(call: Call) -> None:
    wrong = call("trap")
    assert wrong["values"] < 1e-12 < 1e-4 < wrong["gradient"]
    assert wrong["refused"]


def test_a_compiled_run_that_is_interrupted_ends_with_the_same_bits(trained: Call) -> None:
    heads = [{"kind": "energy", "field": "energy", "forces": "forces", "hidden_dims": []}]
    small = {f"model__{key}": value for key, value in SMALL.items()} | {"heads": heads, "train__epochs": 2}
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
    ],
    ids=["micro-batches, average and dropout", "batches of one graph", "bf16"],
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


def test_hashes_of_runs_that_do_not_compile_are_those_of_before(make_config: Callable[..., RunConfig]) -> None:
    table = make_config().to_json()
    without = {key: value for key, value in table["train"].items() if key != "compile"}
    assert hash_of(table) == hash_of({**table, "train": without})
    assert hash_of(make_config(train__compile="on").to_json()) != hash_of(table)
