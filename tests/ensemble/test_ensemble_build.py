"""From runs to a folder that can be moved, trusted and read again; whatever a damaged one says, loading ends in a sentence or in a prediction."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from safetensors.numpy import load, save

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import alone_in_folder, read_sealed
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import evaluate_ensemble
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.manifest import VERSION
from tests.ensemble.conftest import Built, refused
from tests.ensemble.finished import edit_json


def test_every_member_and_the_trivial_predictor_are_evaluated(built: Built) -> None:
    out, evaluation = built
    assert read_sealed(out / "evaluation.json") == evaluation.to_json()
    energy, forces = map(Ensemble.load(out).weights_of, ("energy", "forces"))
    assert np.array_equal(energy, forces) and energy.sum() == pytest.approx(1.0)
    for part in ("valid", "test"):
        assert set(evaluation.parts[part]) == {"energy", "forces"}
        for field, metrics in evaluation.parts[part].items():
            assert len(metrics.members) == 3
            best = min(member["rmse"] for member in metrics.members.values())
            assert metrics.members[metrics.best_member]["rmse"] == best
            squares = np.array([member["rmse"] ** 2 for member in metrics.members.values()])
            mean = np.sqrt(Ensemble.load(out).weights_of(field) @ squares)
            # Jensen: the mean is no worse than members on average
            assert metrics.ensemble["rmse"] <= mean * (1 + 1e-9), field
            assert best > 0 and metrics.trivial["rmse"] > 0


def test_the_arrays_are_the_rows_behind_the_metrics(built: Built) -> None:
    out, evaluation = built
    with np.load(out / "evaluation.npz", allow_pickle=False) as arrays:
        for field in ("energy", "forces"):
            rows = {name.split("/")[-1]: arrays[name] for name in arrays.files if name.startswith(f"test/{field}/")}
            metrics = evaluation.parts["test"][field].ensemble
            assert np.sqrt(np.mean((rows["mean"] - rows["target"]) ** 2)) == pytest.approx(metrics["rmse"])
            inside = (rows["lower"] <= rows["target"]) & (rows["target"] <= rows["upper"])
            known = np.isfinite(rows["upper"])
            assert inside[known].mean() == pytest.approx(metrics["coverage"])
            assert (~known).mean() == pytest.approx(metrics["unknown"])
            assert rows["members"].shape == (3, len(rows["target"])) and len(rows["graph"]) == len(rows["target"])
            weighted = Ensemble.load(out).weights_of(field) @ rows["members"]
            np.testing.assert_allclose(weighted, rows["mean"], atol=1e-9)


def test_moving_changes_no_prediction(built: Built, tmp_path: Path, frames: list[Atoms]) -> None:
    moved = shutil.copytree(built[0], tmp_path / "elsewhere" / "renamed")
    before, after = (Ensemble.load(folder).predict(frames[:5]) for folder in (built[0], moved))
    for name in ("energy", "forces"):
        for quantity in ("mean", "std", "epistemic", "aleatoric", "lower", "upper"):
            assert np.array_equal(before[name][quantity], after[name][quantity])


def test_an_ensemble_holds_neither_pickles_nor_paths(built: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    out, _ = built
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".npz", ".safetensors"}
    manifest = (out / "ensemble.json").read_text()
    assert str(tmp_path_factory.getbasetemp()) not in manifest


def test_weights_are_respected(runs: list[Path], store: MemoryStore, tmp_path: Path, frames: list[Atoms]) -> None:
    build_ensemble(runs[:2], tmp_path / "one", weights=[1.0, 0.0], store=store)
    weighted = Ensemble.load(tmp_path / "one").predict(frames[:4])
    alone = Ensemble.load(runs[0]).predict(frames[:4])
    # members as one and alone agree to rounding in fp32
    np.testing.assert_allclose(weighted["energy"].mean, alone["energy"].mean, rtol=1e-6)


def changed(run: Path, tmp_path: Path, name: str, **edits: Callable[[dict[str, Any]], None]) -> Path:
    folder = shutil.copytree(run, tmp_path / name)
    for file, edit in edits.items():
        edit_json(folder / ("model/model.json" if file == "model" else f"{file}.json"), edit)
    return folder


def test_an_existing_folder_is_never_overwritten(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "campaign.json").write_text("{}")
    refused("exists already and is a campaign; choose another --out", build_ensemble, runs, out, store=store)
    assert [entry.name for entry in out.iterdir()] == ["campaign.json"]


def test_a_second_builder_leaves_the_first_alone(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    """What a killed process left behind goes with the next, which may fill an empty folder."""
    (tmp_path / "ensemble").mkdir()
    making = tmp_path / ".ensemble.making"
    (making / "members" / "0").mkdir(parents=True)
    busy = pytest.raises(Busy, match=r"another process makes .*ensemble; wait for it")
    with alone_in_folder(tmp_path / "ensemble", "makes"), busy:
        build_ensemble(runs, tmp_path / "ensemble", store=store)
    assert (making / "members").is_dir()
    build_ensemble(runs[:1], tmp_path / "ensemble", store=store)
    assert [path.name for path in tmp_path.iterdir()] == ["ensemble"]
    assert not list((tmp_path / "ensemble").glob(".*"))


DAMAGE = {
    "members/1/weights.safetensors": [("0", "differs from what was saved"), (None, "copy the whole folder")],
    "ensemble.json": [
        ("{", "not valid JSON"),
        ('{"version": 99, "members": [{}]}', "update the program"),
        (f'{{"version": {VERSION}, "members": [{{}}]}}', "damaged"),
        ("{}", "does not describe an ensemble"),
    ],
}


@pytest.mark.parametrize(("file", "text", "says"), [(file, *row) for file, rows in DAMAGE.items() for row in rows])
def test_damage_is_refused(received: Path, file: str, text: str | None, says: str) -> None:
    (received / file).unlink()
    if text is not None:
        (received / file).write_text(text)
    refused(says, Ensemble.load, received)


def test_a_folder_that_is_neither_ensemble_nor_run_is_refused(tmp_path: Path) -> None:
    refused("neither a campaign, an ensemble nor a run", Ensemble.load, tmp_path)
    (tmp_path / "campaign.json").write_text("{}")
    refused(r"is a campaign; hydragnn\.load takes its best trial", Ensemble.load, tmp_path)


def test_an_element_without_reference_fails_alone(built: Built, frames: list[Atoms]) -> None:
    odd, strange = frames[1].copy(), frames[2].copy()
    odd.numbers[0] = 79 if odd.numbers[0] == 29 else 29
    strange.numbers[:] = 1
    predictions = Ensemble.load(built[0]).predict([frames[0], strange, odd])
    assert predictions.status[0] == predictions.status[2] == "ok"
    assert "reference" in predictions.status[1]
    assert np.isnan(predictions["energy"].mean).tolist() == [False, True, False]
    assert "atomic_numbers 1 is not in the training data" in predictions.domain[1]
    assert predictions.domain_scores["kinds"][1] == pytest.approx(1000.0)  # members that fail leave the score


def test_an_ensemble_is_evaluated_on_any_labelled_store(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = build_ensemble(runs, tmp_path / "ensemble")
    ensemble = Ensemble.load(tmp_path / "ensemble")
    assert set(ensemble.manifest.selection["diversity"]) == {"energy", "forces"}
    test = make_split(store, ensemble.members[0].config.split).test
    again = evaluate_ensemble(ensemble, store, test)
    assert again.parts["all"]["forces"].ensemble == pytest.approx(evaluation.parts["test"]["forces"].ensemble)
    assert again.parts["all"]["forces"].trivial["rmse"] is None
    refused("a run alone has no calibrated uncertainty", evaluate_ensemble, Ensemble.load(runs[0]), store, test)


EDITS: list[tuple[dict[str, Callable[[dict[str, Any]], None]], str]] = [
    ({"record": lambda v: v.update(data_hash="other")}, "trained on different data"),
    ({"model": lambda v: v["fields"][1].update(unit="Ry")}, "mean different things by energy"),
    ({"record": lambda v: v.update(version=99)}, "update the program"),
    ({"model": lambda v: v.update(version=99)}, "update the program"),
    ({"model": lambda v: v["heads"][0].update(forces=None)}, "predict different fields"),
]
SHARES = "are no shares for 2 runs; give one each, from 0 on, that add up to 1"
REFUSED: list[tuple[Callable[[list[Path], Path], list[Path]], dict[str, Any], str]] = [
    *((lambda runs, to, of=edits: [runs[0], changed(runs[1], to, "other", **of)], {}, words) for edits, words in EDITS),
    *(
        (lambda runs, to: runs[:2], {"weights": shares}, SHARES)
        for shares in ([1.0, 1.0], [1.5, -0.5], [float("nan"), 1.0], [float("inf"), 1.0], [1.0])
    ),
    (lambda runs, to: [*runs, shutil.copytree(runs[0], to / "copied")], {}, "0000 and copied have the same settings"),
    (lambda runs, to: runs[:1], {"nominal": 90.0}, "fraction between 0 and 1"),
    (lambda runs, to: [shutil.copytree(runs[0], to / "bare", ignore=lambda *_: ["model"])], {}, "no trained model"),
    (lambda runs, to: [to / "nowhere"], {}, r"record\.json does not exist"),
]
"""Runs, options, and the words of the refusal."""


@pytest.mark.parametrize("row", REFUSED)
def test_impossible_ensembles_are_refused(row: Any, runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    chosen, options, words = row
    members = chosen(runs, tmp_path)
    before = {*tmp_path.iterdir()}
    refused(words, build_ensemble, members, tmp_path / "ensemble", store=store, **options)
    assert {*tmp_path.iterdir()} == before


def test_another_store_than_that_of_training_is_refused(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    refused("not what member", build_ensemble, runs, tmp_path / "out", store=MemoryStore(store[:40], store.attributes))


Array = np.ndarray[Any, np.dtype[Any]]


def damage(folder: Path, change: Mapping[str, Any], *where: Any) -> None:
    edit_json(folder / "ensemble.json", lambda manifest: reduce(getitem, where, manifest).update(change))


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
DAMAGED = r"(a calibration|ensemble\.json) is damaged"
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


@pytest.mark.parametrize(("where", "key", "values", "words"), IMPOSSIBLE)
def test_impossible_manifests_are_refused(received: Path, where: Any, key: str, values: Any, words: str) -> None:
    for value in values:
        damage(received, {key: value}, *where)
        refused(words, Ensemble.load, received)


def test_a_calibration_of_another_number_of_components_or_field_is_refused(received: Path) -> None:
    good = json.loads((received / "ensemble.json").read_text())["calibration"]["energy"]
    for name, bad in (("energy", {**good, "components": good["components"] * 2}), ("x", good)):
        damage(received, {"calibration": {name: bad}})
        refused(OTHER_TARGET, Ensemble.load, received)


FREE = ("contacts/shortest", "rarity/held_out", "nodes/held_out")
"""Tensors that may have any length, or infinite numbers."""


def variants(values: Array) -> Iterator[Array]:
    yield from (values.astype(np.float32), values[..., None], values[..., :0], values[..., :-1])
    yield from (np.full(values.shape, one) for one in (np.inf, np.nan, -1.5))
    yield from map(np.zeros, ((), (3, 3, 3, 3), (0, 5)))


def test_a_tensor_of_the_domain_that_does_not_fit_is_refused_or_used(one_member: Built, tmp_path: Path) -> None:
    """Whoever damaged the tensors also wrote their checksum; what fits in shape may be as wrong as it likes."""
    received = shutil.copytree(one_member[0], tmp_path / "one")
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
    refused("domain", Ensemble.load, received)


@pytest.mark.parametrize(
    "name", ["ensemble.json", "domain.safetensors", "members/0/record.json", "members/0/weights.safetensors"]
)
def test_a_link_to_a_device_and_a_pipe_are_not_read(received: Path, name: str) -> None:
    """Reading the one never ends, and takes all memory; the other waits for a writer."""
    for replace in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
        (received / name).unlink()
        replace(received / name)
        refused(r"is no regular file|leads out of|neither a campaign, an ensemble nor a run", Ensemble.load, received)


@pytest.mark.parametrize("name", ["members", "members/0", "members/0/weights.safetensors"])
def test_a_member_that_lies_outside_is_not_followed(received: Path, tmp_path: Path, name: str) -> None:
    (received / name).rename(tmp_path / "elsewhere")
    (received / name).symlink_to(tmp_path / "elsewhere")
    refused(r"leads out of .*, and is not followed", Ensemble.load, received)
