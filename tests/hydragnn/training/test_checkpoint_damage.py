"""A checkpoint is what was written or it is refused; whoever made it, reading it runs no code."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore
from hydragnn.runs import train
from tests.hydragnn.training.conftest import Configs, Trained
from tests.once import shared


@shared
def saved_run(store: MemoryStore, make_config: Configs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    run = tmp_path_factory.mktemp("begun") / "run"
    train(make_config(), run, store=store, until=1)
    return run


@pytest.fixture
def checkpoint(saved_run: Path, tmp_path: Path) -> Path:
    """The newest checkpoint in a copy of the run."""
    shutil.copytree(saved_run, tmp_path / "run")
    return tmp_path / "run" / "checkpoints" / "000001-000000"


def rewritten(checkpoint: Path, **changes: Any) -> None:
    """Change members of ``state.json`` and give it the checksum that fits, as someone would who means harm."""
    content = json.loads((checkpoint / "state.json").read_text()) | changes
    content.pop("checksum")
    content["checksum"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (checkpoint / "state.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused_with_a_sentence(
    name: str, checkpoint: Path, trained: Trained
) -> None:
    sound, generator = (checkpoint / name).read_bytes(), random.Random(3)
    for place in [0, 7, 8, len(sound) - 1, *generator.choices(range(len(sound)), k=6)]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << generator.randrange(8)
        if json_value(bytes(damaged)) == json_value(sound):  # a blank that became another blank
            continue
        (checkpoint / name).write_bytes(damaged)
        words = rf"{name}.*(damaged|is not valid JSON|unknown key|missing key|has no version)"
        with pytest.raises(InputError, match=words):
            trained(resume=True)
    (checkpoint / name).write_bytes(sound)
    assert trained(resume=True).status == "finished"


def json_value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


HUGE = 10**15
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pointer": (lambda c: (c.parent / "latest.json").write_text('{"checkpoint": 3}'), "latest.json is damaged"),
    "pointer to elsewhere": (
        lambda c: (c.parent / "latest.json").write_text('{"checkpoint": "../../other"}'),
        "latest.json is damaged",
    ),
    "empty state": (lambda c: (c / "state.json").write_text("{}"), "state.json is damaged"),
    "nested state": (lambda c: (c / "state.json").write_text("[" * 100_000), "state.json is not valid JSON"),
    "endless number": (lambda c: (c / "state.json").write_text("9" * 10_000), "state.json is not valid JSON"),
    "empty tensors": (lambda c: (c / "tensors.safetensors").write_bytes(b""), "has 0 bytes, not the"),
    "no tensors": (lambda c: (c / "tensors.safetensors").unlink(), "cannot be read"),
    "newer": (lambda c: rewritten(c, version=99), "has version 99, this program reads up to 3; update"),
    "other model": (lambda c: rewritten(c, layout={}), "holds another model"),
    "ranks beyond all memory": (lambda c: rewritten(c, ranks=HUGE), "tensor totals is F64"),
    "no ranks": (lambda c: rewritten(c, ranks=0), "ranks: .* greater than or equal to 1"),
    "curves of another length": (lambda c: rewritten(c, epoch=7), "a curve does not have 7 values"),
    "a file elsewhere": (lambda c: with_index(c, file="../../secret.safetensors"), "String should match pattern"),
    "a tensor beyond all memory": (lambda c: with_index(c, shape=[HUGE]), "bytes, not the .* that were written"),
    "pieces with a hole": (lambda c: with_index(c, whole=[HUGE]), "pieces of tensor weights do not make it up"),
}


def with_index(
    checkpoint: Path, file: str = "", shape: list[int] | None = None, whole: list[int] | None = None
) -> None:
    """Change what the index says of the tensor ``weights``."""
    index = json.loads((checkpoint / "state.json").read_text())["index"]
    tensor = index["tensors"]["weights"]
    tensor["shape"] = whole or shape or tensor["shape"]
    tensor["pieces"][0]["shape"] = shape or tensor["pieces"][0]["shape"]
    tensor["pieces"][0]["file"] = file or tensor["pieces"][0]["file"]
    rewritten(checkpoint, index=index)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_what_was_written_is_refused(damage: str, checkpoint: Path, trained: Trained) -> None:
    change, message = DAMAGES[damage]
    change(checkpoint)
    with pytest.raises(InputError, match=message):
        trained(resume=True)
