"""What lies in an ensemble's folder may come from anywhere: whatever it says, loading ends in a sentence or in a prediction."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from hydragnn.base.errors import InputError
from hydragnn.base.files import checksum_of
from hydragnn.ensemble.ensemble import Ensemble

Array = np.ndarray[Any, np.dtype[Any]]


def damage(folder: Path, change: Mapping[str, Any], *where: Any) -> None:
    """Change what the manifest says at a place."""
    manifest = json.loads((folder / "ensemble.json").read_text())
    here = manifest
    for key in where:
        here = here[key]
    here.update(change)
    manifest.pop("checksum")
    sealed = {**manifest, "checksum": checksum_of(manifest)}  # as whoever writes NaN into it on purpose would
    (folder / "ensemble.json").write_text(json.dumps(sealed))


def replace_tensors(folder: Path, content: bytes) -> None:
    """Another file of tensors, with its checksum, as whoever damages both would leave them."""
    (folder / "domain.safetensors").write_bytes(content)
    damage(folder, {"sha256": hashlib.sha256(content).hexdigest()}, "domain")


HOSTILE: tuple[Any, ...] = (None, "x", [], [[1]], {}, {"a": 1}, -1, float("nan"), float("inf"))
ENERGY = ("calibration", "energy")
OF_CLASSES = {"method": "temperature", "temperature": 1.0, "threshold": 0.1}
OF_CLASSES |= {"nominal": 0.9, "graphs": 9, "guaranteed": True}
FACTORS = [
    {"knots": knots, "factors": factors}
    for knots, factors in (([2.0, 1.0], [1.0, 1.0]), ([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), (["here"], [1.0]))
]
FACTORS.append({"knots": [float("nan")], "factors": [1.0]})
DAMAGED = "a calibration is damaged"
OTHER_TARGET = "is for another target"
NO_DOMAIN = "the training domain is damaged"
IMPOSSIBLE: list[tuple[tuple[Any, ...], str, Sequence[Any], str]] = [
    *(((*ENERGY, "components", 0), key, HOSTILE, DAMAGED) for key in ("scale", "floor", "quantile", "reference")),
    ((*ENERGY, "components", 0), "typical", HOSTILE, DAMAGED),
    *((ENERGY, key, [value], DAMAGED) for key, value in (("nominal", 2.0), ("graphs", "x"), ("guaranteed", [1]))),
    *((ENERGY, key, [value], DAMAGED) for key, value in (("part", "test"), ("method", []), ("b", 1))),
    (ENERGY, "components", [5], DAMAGED),
    (ENERGY, "form", [{"kind": "cubic"}, {"kind": {}}, {"growth": -1.0}, {"growth": "x"}, 3], DAMAGED),
    ((*ENERGY, "components", 0, "corrections"), "magnitude", FACTORS, DAMAGED),
    ((), "calibration", [{"energy": OF_CLASSES}], OTHER_TARGET),
    (("members", 0), "weight", [*HOSTILE, 0.0, 2.0, 10**400], r"ensemble\.json is damaged"),
    (("domain", "detectors", -2), "targets", [{"x": "std"}, 5], NO_DOMAIN),
    (("domain", "detectors", -2), "per_node", [None], NO_DOMAIN),
    (("domain", "detectors", -1), "members", [2, 4, "3"], "damaged|other members"),
]
"""Where in the manifest, the key, impossible values of it, and the words of the refusal."""


@pytest.mark.parametrize(
    ("where", "key", "values", "words"), IMPOSSIBLE, ids=[f"{where} {key}" for where, key, *_ in IMPOSSIBLE]
)
def test_a_manifest_with_an_impossible_value_is_refused(
    received: Path, where: Sequence[Any], key: str, values: Sequence[Any], words: str
) -> None:
    for value in values:
        damage(received, {key: value}, *where)
        with pytest.raises(InputError, match=words):
            Ensemble.load(received)


def test_a_calibration_of_another_number_of_components_or_field_is_refused(received: Path) -> None:
    good = json.loads((received / "ensemble.json").read_text())["calibration"]["energy"]
    for name, bad in (("energy", {**good, "components": good["components"] * 2}), ("x", good)):
        damage(received, {"calibration": {name: bad}})
        with pytest.raises(InputError, match=OTHER_TARGET):
            Ensemble.load(received)


FREE = ("contacts/shortest", "rarity/held_out", "nodes/held_out")
"""Tensors that may have any length, or infinite numbers."""


def variants(values: Array) -> Iterator[Array]:
    """The same numbers as another tensor."""
    yield from (
        values.astype(np.float32),
        np.full(values.shape, np.inf),
        np.full(values.shape, np.nan),
        values[..., None],
        values[..., :0],
    )
    yield from (np.zeros(()), np.zeros((3, 3, 3, 3)), np.zeros((0, 5)), np.full(values.shape, -1.5), values[..., :-1])


def test_a_tensor_of_the_domain_that_does_not_fit_is_refused_or_computed_with(received: Path) -> None:
    """Whoever damaged the tensors also wrote their checksum; what fits in shape may be as wrong as it likes."""
    sound = load((received / "domain.safetensors").read_bytes())
    refused = 0
    for name, values in sound.items():
        for variant in variants(values):
            replace_tensors(received, save({**sound, name: np.ascontiguousarray(variant)}))
            try:
                Ensemble.load(received)
            except InputError as error:
                refused += 1
                assert "the training domain is damaged" in str(error)
            else:
                fits = variant.shape == values.shape and np.isfinite(variant).all()
                assert fits or name.startswith("kinds/") or name in FREE, (name, variant.shape)
    assert refused > len(sound)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "C64", "X"])
def test_numbers_of_a_type_that_numpy_has_not_are_refused(received: Path, dtype: str) -> None:
    size = {"BF16": 2, "F8_E4M3": 1, "C64": 8}.get(dtype, 8)
    header = json.dumps({"kinds/x": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * size]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(3 * size)
    replace_tensors(received, content)
    with pytest.raises(InputError, match="domain"):
        Ensemble.load(received)


@pytest.mark.parametrize(
    "name",
    ["ensemble.json", "domain.safetensors", "members/0/record.json", "members/0/weights.safetensors"],
)
def test_a_link_to_a_device_and_a_pipe_are_not_read(received: Path, name: str) -> None:
    """Reading the one never ends, and takes all memory; the other waits for a writer."""
    for replace in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
        (received / name).unlink()
        replace(received / name)
        with pytest.raises(
            InputError, match=r"is no regular file|leads out of|neither a campaign, an ensemble nor a run"
        ):
            Ensemble.load(received)


@pytest.mark.parametrize("name", ["members", "members/0", "members/0/weights.safetensors"])
def test_a_member_that_lies_outside_is_not_followed(received: Path, tmp_path: Path, name: str) -> None:
    (received / name).rename(tmp_path / "elsewhere")
    (received / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"leads out of .*, and is not followed"):
        Ensemble.load(received)
