"""A checkpoint is what was written or it is refused; reading it runs no code."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hydragnn.base.errors import InputError
from hydragnn.runs import train
from hydragnn.runs.tensor_files import FileInfo, TensorFiles, TensorIndex, TensorInfo, TensorSlice, write_indexed
from tests.hydragnn.training.conftest import STORE, Trained, make_config
from tests.once import shared

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float64).reshape(3, 4) / 7,
    "single": torch.linspace(0, 1, 5),
    "half": torch.linspace(0, 1, 3).bfloat16(),
    "count": torch.tensor(7.0),
    "nothing": torch.zeros(0, 3),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "flags": torch.tensor([True, False]),
}


def test_what_was_written_comes_back_bit_for_bit_through_the_index_as_json_and_in_any_program(tmp_path: Path) -> None:
    index = TensorIndex.parse(write_indexed(tmp_path, "all.safetensors", TENSORS).to_json())
    files, elsewhere = TensorFiles(tmp_path, index), load_file(tmp_path / "all.safetensors")
    assert elsewhere.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        for actual in (elsewhere[name], files.read(name, tuple(value.shape), value.dtype)):
            assert actual.dtype == value.dtype and torch.equal(actual, value)
    with pytest.raises(InputError, match=r"tensor matrix is F64 \[3, 4\], not F32 \[3, 4\]"):
        files.read("matrix", (3, 4), torch.float32)


def in_pieces(folder: Path, starts: list[int]) -> TensorIndex:
    """A 4 x 3 matrix as pieces of two rows, each in a file that another program wrote."""
    matrix, files, pieces = torch.arange(12.0).reshape(4, 3), {}, []
    for number, row in enumerate(starts):
        file = f"rank-{number}.safetensors"
        save_file({"matrix": matrix[row : row + 2].contiguous()}, folder / file)
        content = (folder / file).read_bytes()
        files[file] = FileInfo(bytes=len(content), sha256=sha256(content).hexdigest())
        pieces.append(TensorSlice(file=file, start=(row, 0), shape=(2, 3)))
    return TensorIndex(files=files, tensors={"matrix": TensorInfo(dtype="F32", shape=(4, 3), pieces=tuple(pieces))})


def test_a_tensor_in_pieces_of_several_files_is_put_together_unless_one_is_another(tmp_path: Path) -> None:
    index = in_pieces(tmp_path, [0, 2])
    actual = TensorFiles(tmp_path, index).read("matrix", (4, 3), torch.float32)
    assert torch.equal(actual, torch.arange(12.0).reshape(4, 3))
    other = write_indexed(tmp_path, "rank-1.safetensors", {"matrix": torch.zeros(6)})
    files = TensorFiles(tmp_path, index.model_copy(update={"files": {**index.files, **other.files}}))
    with pytest.raises(InputError, match=r"rank-1\.safetensors: tensor matrix is not what the index says"):
        files.read("matrix", (4, 3), torch.float32)


@pytest.mark.parametrize("starts", [[0], [2], [0, 0], [0, 1], [0, 3], [0, 2, 2]])
def test_pieces_that_do_not_make_up_the_tensor_are_refused(starts: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the pieces of tensor matrix do not make it up"):
        TensorFiles(tmp_path, in_pieces(tmp_path, starts))


@shared
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("begun") / "run"
    train(make_config(), run, store=STORE, until=1)
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
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused(name: str, checkpoint: Path, trained: Trained) -> None:
    sound, generator = (checkpoint / name).read_bytes(), random.Random(3)
    for place in [0, 7, 8, len(sound) - 1, *generator.choices(range(len(sound)), k=6)]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << generator.randrange(8)
        with suppress(ValueError):
            if json.loads(damaged) == json.loads(sound):  # the e of a number that became an E
                continue
        (checkpoint / name).write_bytes(damaged)
        words = rf"{name}.*(damaged|is not valid JSON|unknown key|missing key|has no version)"
        with pytest.raises(InputError, match=words):
            trained(resume=True)
    (checkpoint / name).write_bytes(sound)
    assert trained(resume=True).status == "finished"


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
    "empty tensors": (lambda c: (c / "tensors.safetensors").write_bytes(b""), "is damaged: its checksum"),
    "no tensors": (lambda c: (c / "tensors.safetensors").unlink(), "cannot be read"),
    "newer": (lambda c: rewritten(c, version=99), "has version 99, this program reads up to 3; update"),
    "other model": (lambda c: rewritten(c, layout={}), "holds another model"),
    "ranks beyond all memory": (lambda c: rewritten(c, ranks=HUGE), "tensor totals is F64"),
    "no ranks": (lambda c: rewritten(c, ranks=0), "ranks: .* greater than or equal to 1"),
    "curves of another length": (lambda c: rewritten(c, epoch=7), "a curve does not have 7 values"),
    "a file elsewhere": (lambda c: with_index(c, file="../../secret.safetensors"), "String should match pattern"),
    "a tensor beyond all memory": (lambda c: with_index(c, shape=[HUGE]), "is not what the index says"),
    "pieces with a hole": (lambda c: with_index(c, whole=[HUGE]), "pieces of tensor weights do not make it up"),
}


def with_index(checkpoint: Path, file: str = "", shape: Any = None, whole: Any = None) -> None:
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
