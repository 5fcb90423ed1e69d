"""A byte that changed on a disk or on its way: whoever reads it is told, or reads what was written."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.ensemble.manifest import read_manifest
from hydragnn.errors import InputError
from hydragnn.models.saving import load_graph_model
from hydragnn.record import read_record

FLIPS = 40


def flipped(path: Path, seed: int) -> Iterator[int]:
    """The file with one random bit turned, ``FLIPS`` times; gives the byte."""
    content, generator = path.read_bytes(), random.Random(seed)
    for _ in range(FLIPS):
        place = generator.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        yield place


def silent(path: Path, read: Callable[[], Any], same: Callable[[Any, Any], bool]) -> tuple[list[int], int]:
    """Bytes whose change gave another value without a word, and how many changes were refused."""
    expected, found, refused = read(), [], 0
    for place in flipped(path, seed=len(str(path.name))):
        try:
            value = read()
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        if not same(expected, value):
            found.append(place)
    return found, refused


def same_model(one: Any, other: Any) -> bool:
    """The same description, normalisation and weights, to the bit."""
    weights, others = one[0].state_dict(), other[0].state_dict()
    return bool(
        one[0].description == other[0].description
        and one[1] == other[1]
        and weights.keys() == others.keys()
        and all(torch.equal(weights[name], others[name]) for name in weights)
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json"])
def test_a_flipped_bit_of_a_trained_model_is_never_silent(runs: list[Path], tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(runs[0] / "model", tmp_path / "model"))
    found, refused = silent(model / name, lambda: load_graph_model(model), same_model)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_a_record_is_never_silent(runs: list[Path], tmp_path: Path) -> None:
    shutil.copy(runs[0] / "record.json", tmp_path)
    found, refused = silent(tmp_path / "record.json", lambda: read_record(tmp_path), lambda one, other: one == other)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_an_ensemble_is_never_silent(ensemble: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ensemble, tmp_path / "ensemble"))
    found, refused = silent(
        copy / "ensemble.json", lambda: read_manifest(copy).to_json(), lambda one, other: one == other
    )
    assert not found and refused > FLIPS / 2
