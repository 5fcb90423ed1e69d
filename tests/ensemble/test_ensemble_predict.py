"""One line per graph, in any format, in any number of sittings, always with the same bits."""

import csv
import itertools
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.datasets import BatchSettings, MemoryStore, open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.member import load_member
from hydragnn.ensemble.prediction import predict as predict_module
from hydragnn.ensemble.prediction import rules, work
from hydragnn.ensemble.prediction.formats import hdf5
from hydragnn.ensemble.prediction.formats.hdf5 import Hdf5Sink
from hydragnn.ensemble.prediction.formats.sink import Heading, joined
from hydragnn.ensemble.prediction.formats.structures import as_ase, text_of
from hydragnn.ensemble.prediction.parts import Parts
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.reporting import usage_of
from hydragnn.ensemble.prediction.work import _OWN
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.kernels.counting import Counter as Operations
from hydragnn.models import Target
from hydragnn.runs import energy
from hydragnn.scripts import api
from tests.acting import first_acts
from tests.ensemble.conftest import Predict, refused, written
from tests.ensemble.finished import arrays_of, assert_same, edit_json, finished_units
from tests.forked import run_forked


@pytest.fixture(scope="module")
def structures(structures_file: Callable[[int], Path]) -> Path:
    return structures_file(6)


BATCH = BatchSettings(max_graphs=16)
PLAIN = ("numbers", "positions")


def test_files_say_what_the_ensemble_says(predict: Predict, ensemble: Path, store: MemoryStore, tmp_path: Path) -> None:
    result = predict("out.h5")
    assert (result.graphs, result.failed) == (len(store), 0)
    direct = Ensemble.load(ensemble).predict(store)
    arrays = arrays_of(tmp_path / "out.h5")
    for name in ("energy", "forces"):
        for quantity in ("mean", "std", "lower", "upper", "epistemic", "aleatoric"):
            assert np.array_equal(arrays[f"fields/{name}/{quantity}"], direct[name][quantity], equal_nan=True)
    assert arrays["graph"].tolist() == list(range(len(store)))
    assert set(arrays["status"]) == {"ok"}
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["fields/energy"].attrs["unit"] == "eV"
        assert json.loads(file.attrs["heading"])["nominal"] == 0.9
    assert not (tmp_path / "out.h5.parts").exists()


def _predict_with_few_files(ensemble: Path, structures: Path, out: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    rules.FRAMES, rules.BYTES = 2, 1
    predict_to_file(ensemble, structures, out, batch=BATCH)


def test_64_open_files_suffice(predict: Predict, ensemble: Path, structures_file: Any, tmp_path: Path) -> None:
    path = structures_file(40)
    predict("many.h5", path, batch=BATCH)
    run_forked(_predict_with_few_files, ensemble, path, tmp_path / "few.h5")
    few, many = arrays_of(tmp_path / "few.h5"), arrays_of(tmp_path / "many.h5")
    assert len(many["graph"]) == 40
    for name, values in many.items():
        np.testing.assert_array_equal(few[name], values)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("structure 3: nodes are 0.1 apart (atoms 1 and 2)", "nodes are 0.1 apart"),
        ("a.xyz, frame 12: lacks charge", "lacks charge"),
        (
            "contacts: node 3 is closer than in training, 0.0084 of the least there",
            "contacts: node is closer than in training",
        ),
        (
            "spacing: it is beyond the most in the training data (1.6 times)",
            "spacing: it is beyond the most in the training data",
        ),
    ],
)
def test_reasons_count_without_the_numbers_of_their_graphs(reason: str, kind: str) -> None:
    assert _OWN.sub("", reason) == kind


@pytest.mark.parametrize(
    ("end", "sources", "graph_ranks", "expected"),
    [
        (10.0, ["RAPL"], 1, (2.0, 0.8, 50.0, "RAPL")),
        (40.0, ["RAPL", "NVML"], 1, (64.0, 0.2, 100.0, "RAPL; NVML")),
        (40.0, ["RAPL", None], 1, (64.0, 0.2, None, "not measured")),
        (10.0, ["RAPL"], 2, (2.0, 0.8, None, "not measured")),
        (7.0, [None], 1, (0.0, 1.0, None, "not measured")),
        (0.0, [], 1, (0.0, None, None, "not measured")),
    ],
)
def test_ranks_wait_for_the_last(end: float, sources: list[str | None], graph_ranks: int, expected: Any) -> None:
    phases = {"read": 1.0, "compute": 5.0, "write": 2.0}
    rest = {"joules": 50.0, "work": (6.0, 7.0), "peaks": (8.0, 9.0)}
    accounts = [{"phases": phases, "energy_source": one, **rest} for one in sources]
    usage, count = usage_of(accounts, end, graph_ranks), len(sources)
    assert {name: usage.phases[name] for name in phases} == {name: count * value for name, value in phases.items()}
    assert (usage.phases["wait"], usage.busy, usage.joules, usage.energy_source) == expected
    known = bool(sources) and graph_ranks == 1
    assert (usage.flops, usage.bytes) == ((6.0 * count, 7.0 * count) if known else (0.0, 0.0))
    assert (usage.peak_flops, usage.peak_bytes) == ((8.0, 9.0) if known else (0.0, 0.0))


def test_joules_of_ranks(runs: list[Path], stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joules = itertools.count(100.0, 7.0)
    monkeypatch.setattr(energy, "counter_of", lambda *_: energy.Counter("stand-in", lambda: [next(joules)], 0.5))
    usage = predict_to_file(runs[0], stored, tmp_path / "out.h5").usage
    looks, rest = divmod(usage.joules, 3.5)
    assert usage.energy_source == "stand-in" and looks >= 2 and rest == 0


def test_operations_of_a_prediction(runs: list[Path], stored: Path, tmp_path: Path) -> None:
    usage, store = predict_to_file(runs[0], stored, tmp_path / "out.h5").usage, open_store(stored)
    model, batch = load_member(runs[0]).model, concatenate([store[number] for number in range(len(store))])
    model.predict(batch)  # makes tables
    with Operations() as counter:
        model.predict(batch)
    assert (usage.flops, usage.bytes) == pytest.approx(counter.totals, rel=0.05)


@pytest.mark.parametrize("suffix", [".h5", ".csv", ".xyz"])
def test_a_single_run_claims_no_uncertainty_and_no_domain(
    suffix: str, runs: list[Path], structures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file has no column for what is not known, and graphs that failed have no number in the others."""
    out = tmp_path / f"out{suffix}"
    result = predict_to_file(runs[0], structures, out, quiet=False)
    assert (result.failed, result.outside_training_domain, list(result.reasons.values())) == (1, None, [1])
    assert not any("domain" in key for key in result.table())
    assert all(result.usage.phases[name] > 0 for name in ("read", "compute", "write"))
    plan = json.loads(out.with_name(f"{out.name}.plan.json").read_text())
    assert plan["measured"]["usage"] == result.to_json()["usage"]
    assert "is a single run, so its predictions have no calibrated uncertainty and no domain" in capfd.readouterr().err
    if suffix == ".csv":
        heads = [path.read_text().splitlines()[0] for path in (out, out.with_suffix(".nodes.csv"))]
        means = {"energy_mean", *(f"forces_{axis}_mean" for axis in "xyz")}
        assert set(",".join(heads).split(",")) == {"graph", "name", "status", "nodes", "node", *means}
    elif suffix == ".xyz":
        names = {name for atoms in read(out, ":") for name in (*atoms.info, *atoms.arrays)}
        assert {name for name in names if not name.startswith("input_")} <= {"graph", "name", "status", *PLAIN}
    else:
        assert set(arrays_of(out)) == {"graph", "nodes", "name", "status", "fields/energy/mean", "fields/forces/mean"}


def test_a_run_whose_training_store_is_gone_says_what_it_does_not_know_of_structures(
    runs: list[Path], stored: Path, structures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")

    def notes(source: Path, out: str) -> bool:
        predict_to_file(run, source, tmp_path / out, quiet=False)
        words = "is not there, so that structures have all neighbours within the model's cutoff"
        return words in capfd.readouterr().err

    assert not notes(structures, "known.h5")
    edit_json(run / "config.json", lambda value: value["data"].update(store=str(tmp_path / "gone.h5")))
    assert notes(structures, "unknown.h5") and not notes(stored, "store.h5")


def test_predictions_are_taken_by_field_and_say_so(ensemble: Path, frames: list[Atoms]) -> None:
    predictions = Ensemble.load(ensemble).predict(frames[:3])
    assert len(predictions) == 3 and str(predictions) == "energy, forces of 3 of 3 graphs"
    for use in (iter, list, tuple):
        with pytest.raises(TypeError, match=r'not iterated; take a field by its name, such as predictions\["energy"\]'):
            use(predictions)


def test_tables_and_structures_agree(
    predict: Predict, ensemble: Path, structures: Path, tmp_path: Path, frames: list[Atoms]
) -> None:
    direct = Ensemble.load(ensemble).predict(frames[2:6])
    for suffix in ("csv", "xyz"):
        predict(f"out.{suffix}", structures)
    graphs, nodes = (
        [*csv.DictReader((tmp_path / name).read_text().splitlines())] for name in ("out.csv", "out.nodes.csv")
    )
    assert [row["graph"] for row in graphs] == [str(i) for i in range(6)]
    assert [row["name"] for row in graphs] == [f"frames.xyz#{i}" for i in range(6)]
    failed = [name for name, value in graphs[1].items() if value == ""]
    assert "structure 1" in graphs[1]["status"] and {"energy_mean", "energy_upper", "domain_score"} <= set(failed)
    np.testing.assert_allclose([float(row["energy_mean"]) for row in graphs[2:]], direct["energy"].mean, rtol=1e-6)
    assert len(nodes) == sum(len(frames[i]) for i in (0, 2, 3, 4, 5))
    assert {"forces_x_mean", "forces_z_upper"} <= set(nodes[0])
    back, own = read(tmp_path / "out.xyz", index=":"), slice(0, len(frames[2]))
    assert len(back) == 6 and "structure 1" in back[1].info["status"] and len(back[1]) == 0
    np.testing.assert_allclose(back[2].positions, frames[2].positions, atol=1e-7)
    assert back[2].get_potential_energy() == pytest.approx(direct["energy"].mean[0], rel=1e-6)
    assert back[2].info["energy_std"] == pytest.approx(direct["energy"].std[0], rel=1e-6)
    np.testing.assert_allclose(back[2].get_forces(), direct["forces"].mean[own], atol=1e-6)
    np.testing.assert_allclose(back[2].arrays["forces_std"], direct["forces"].std[own], atol=1e-6)


def test_parquet_has_the_tables_of_csv_with_types(
    predict: Predict, ensemble: Path, structures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in groups of rows of several sittings, of which the second is of another process."""
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    from hydragnn.ensemble.prediction.formats import tables

    monkeypatch.setattr(tables, "ROW_GROUP", 1)
    monkeypatch.setattr(work, "KEEP_BYTES", 1)
    predict("out.csv", structures)
    predict("out.parquet", structures, batch=BATCH, workers=2)
    for name in ("out", "out.nodes"):
        with (tmp_path / f"{name}.csv").open() as file:
            titles, *lines = csv.reader(file)
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table.column_names == titles
        assert b'"nominal": 0.9' in table.schema.metadata[b"heading"]
        for title, *texts in zip(titles, *lines, strict=True):
            values = table[title].to_pylist()
            if table.schema.field(title).type == "double":
                known = [(float(text), value) for text, value in zip(texts, values, strict=True) if text]
                np.testing.assert_allclose(*zip(*known, strict=True), rtol=1e-6)
                assert [value is None for value in values] == [text == "" for text in texts]
            else:
                assert [str(value) for value in values] == texts
    assert not (tmp_path / "out.parquet.parts").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"more.parquet needs the package pyarrow; install it with: .*\[parquet\]"):
        predict("more.parquet", structures)
    assert not list(tmp_path.glob("more*"))


def labelled(frames: list[Atoms], path: Path) -> None:
    """Three structures with all that files have, of which the second cannot be a graph."""
    some = [atoms.copy() for atoms in frames[2:5]]
    some[1].positions[1] = some[1].positions[0]
    for number, atoms in enumerate(some):
        atoms.info |= {"config_type": f"kind {number}", "weight": 0.5 * number, "status": "draft", "strain": np.eye(3)}
        atoms.arrays["tag"], atoms.arrays["site"] = np.arange(len(atoms)), np.array(["a"] * len(atoms))
        atoms.calc = SinglePointCalculator(atoms, energy=float(number), dipole=np.ones(3), forces=atoms.positions * 2.0)
    some[0].info["material_id"] = "mp-7"
    write(path, some)


@pytest.mark.parametrize("as_build", [False, True], ids=["structures", "BUILD.toml"])
def test_structures_keep_what_they_had(ensemble: Path, frames: list[Atoms], tmp_path: Path, as_build: bool) -> None:
    labelled(frames, tmp_path / "in.xyz")
    (tmp_path / "b.toml").write_text('kind = "ase"\nfiles = ["in.xyz"]\ncutoff = 5.0\n')
    before = read(tmp_path / "in.xyz", index=":")
    predict_to_file(ensemble, tmp_path / ("b.toml" if as_build else "in.xyz"), tmp_path / "out.xyz")
    back = read(tmp_path / "out.xyz", index=":")
    for number in (0, 2):
        info, arrays = back[number].info, back[number].arrays
        assert (info["config_type"], info["weight"]) == (f"kind {number}", 0.5 * number)
        assert (info["status"], info["input_status"], info["input_energy"]) == ("ok", "draft", float(number))
        np.testing.assert_array_equal(info["strain"], np.eye(3))
        np.testing.assert_array_equal(arrays["tag"], np.arange(len(back[number])))
        assert set(arrays["site"]) == {"a"}
        np.testing.assert_allclose(arrays["input_forces"], before[number].get_forces(), atol=1e-7)
        assert back[number].get_potential_energy() != float(number)
    assert back[0].info["material_id"] == back[0].info["name"] == "mp-7"
    assert back[2].info["name"] == "in.xyz#2"
    if not as_build:
        assert (len(back[1]), back[1].info["config_type"], back[1].info["name"]) == (0, "kind 1", "in.xyz#1")


@pytest.mark.parametrize("suffix", [".xyz", ".traj"])
def test_ase_writes_structures_alike(ensemble: Path, frames: list[Atoms], tmp_path: Path, suffix: str) -> None:
    labelled(frames, tmp_path / "in.xyz")
    before = [*read(tmp_path / "in.xyz", index=":"), bulk("Cu", cubic=True) * (2, 1, 1), *frames[5:9]]
    write(tmp_path / f"before{suffix}", before)
    predict_to_file(ensemble, tmp_path / f"before{suffix}", tmp_path / "out.xyz")
    back = read(tmp_path / "out.xyz", index=":")
    assert sum(map(len, back)) == sum(map(len, before)) - len(before[1])
    for atoms in back:
        if atoms.calc is not None:
            atoms.calc.results.pop("free_energy", None)  # which ASE's reader adds
        if "site" in atoms.arrays:
            atoms.arrays["site"] = atoms.arrays["site"].astype(str)  # objects have no width
    write(tmp_path / "again.xyz", back)
    assert (tmp_path / "again.xyz").read_text() == (tmp_path / "out.xyz").read_text()


def test_a_resumed_prediction_has_the_batches_of_the_device_that_it_began_on(
    predict: Predict, structures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_module, "device_limits", lambda: (20, 300))
    predict("whole.h5", structures)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        first_acts(patch, work, "outcome_of", Mock(side_effect=KeyboardInterrupt), 3)
        predict("parts.h5", structures)
    monkeypatch.setattr(predict_module, "device_limits", lambda: (1000, 10_000))
    predict("parts.h5", structures, resume=True)
    assert (tmp_path / "parts.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_results_in_files_of_structures_are_in_ases_units_or_have_another_name() -> None:
    fields = {
        ("energy", units.Ha): Field(name="energy", on="graph", unit="Ha"),
        ("forces", units.Ha / units.Bohr): Field(name="forces", on="node", shape=(3,)),
        ("stress", units.GPa): Field(name="stress", on="graph", shape=(3, 3), unit="GPa"),
        ("predicted_energy", 1.0): Field(name="energy", on="node", unit="Ha"),
        ("predicted_stress", 1.0): Field(name="stress", on="graph", shape=(2,)),
        ("gap", 1.0): Field(name="gap", on="graph", unit="Ha"),
    }
    for (name, factor), field in fields.items():
        length = units.Bohr if name == "forces" else 1.0
        energy = [Target(field=Field(name="energy", on="graph", unit="Ha"))] if name == "forces" else []
        assert as_ase([*energy, Target(field=field)], length)[field.name] == (name, pytest.approx(factor, rel=1e-6))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64, np.bool_])
def test_arrays_of_nodes_of_every_type_are_read_by_ase(dtype: type, tmp_path: Path) -> None:
    values = np.array([[1, 0], [0, 1]], dtype=dtype)
    structure = Atoms("CuAu", positions=np.eye(2, 3))
    structure.arrays["site_set"] = values
    (tmp_path / "one.xyz").write_text(text_of([structure]))
    np.testing.assert_array_equal(read(tmp_path / "one.xyz").arrays["site_set"], values)


ODD_TEXTS = {"two\nlines": "two lines", "": None, "_JSON {": "JSON {"}
ODD_TEXTS |= {text: text for text in ('a="b" {c}, ü', "C:\\x y")}


def test_structures_with_any_texts_are_read_again(predict: Predict, frames: list[Atoms], tmp_path: Path) -> None:
    """Formats other than XYZ hold texts that no line of XYZ holds, and entries that XYZ takes for results or geometry."""
    some = [atoms.copy() for atoms in frames[: len(ODD_TEXTS)]]
    for atoms, text in zip(some, ODD_TEXTS):
        atoms.info |= {"config_type": text, "run": 7, "stress": np.ones(6), "Properties": "x", "Lattice": "y"}
    write(tmp_path / "in.traj", some)
    predict("out.xyz", tmp_path / "in.traj")
    for atoms, before, text in zip(read(tmp_path / "out.xyz", ":"), some, ODD_TEXTS.values(), strict=True):
        assert (atoms.info.get("config_type"), atoms.info["run"], atoms.info["input_Lattice"]) == (text, 7, "y")
        np.testing.assert_allclose(atoms.positions, before.positions, atol=1e-7)
        assert set(atoms.calc.results) == {"energy", "forces"}  # no stress of the input among what is predicted


def test_a_graph_above_the_budget_has_a_reason(predict: Predict, store: MemoryStore, tmp_path: Path) -> None:
    nodes = store.sizes().nodes[:12]
    few = written(tmp_path / "few.h5", store[:12])
    result = predict("out.h5", few, batch=BatchSettings(max_graphs=0, max_nodes=6))
    arrays = arrays_of(tmp_path / "out.h5")
    large = nodes > 6
    assert result.failed == large.sum() > 0
    assert np.array_equal(["raise batch.max_nodes" in status for status in arrays["status"]], large)
    assert np.array_equal(np.isnan(arrays["fields/energy/mean"]), large)
    assert len(arrays["fields/forces/mean"]) == nodes.sum()


def test_a_member_that_gives_nan_fails_graphs(ensemble: Path, frames: list[Atoms]) -> None:
    loaded = Ensemble.load(ensemble)
    trained = loaded.members[1].model
    for value in (*trained.model.state_dict().values(), *trained.executor.model.state_dict().values()):
        if value.is_floating_point():
            value.fill_(float("nan"))
    predictions = loaded.predict([frames[0], frames[2]])
    assert all("is not finite" in status and "0001" in status for status in predictions.status)


class Killed(BaseException):
    """Stands for the end of the process in the middle of the work."""


def killed(predict: Predict, owner: Any = work, name: str = "outcome_of", after: int = 0) -> None:
    """Leave a prediction into ``out.h5`` behind whose process was killed at a call."""

    def die() -> Never:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        first_acts(patch, owner, name, die, after)
        predict("out.h5", batch=BATCH)


def test_short_memory_means_small_batches(ensemble: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Ensemble.load(ensemble)
    model = type(loaded.members[0].model)
    original = model.predict_with_states

    def hungry(self: Any, batch: GraphBatch) -> Any:
        if batch.num_nodes > 6:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return original(self, batch)

    calm = loaded.predict(frames[:6])
    monkeypatch.setattr(model, "predict_with_states", hungry)
    predictions = loaded.predict(frames[:6])
    small = np.array([len(atoms) <= 6 for atoms in frames[:6]])
    assert np.array_equal(predictions.ok, small)
    np.testing.assert_allclose(predictions["energy"].mean[small], calm["energy"].mean[small], rtol=1e-5)
    assert all("allocate memory" in status for status, fits in zip(predictions.status, small) if not fits)


def test_torn_parts_are_made_again(predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict("whole.h5", batch=BATCH)
    monkeypatch.setattr(work, "KEEP_BYTES", 1)
    killed(predict, work.Joiner, "finish")
    assert finished_units(tmp_path / "out.h5.parts") == 5 and not (tmp_path / "out.h5").exists()
    refused("--resume", predict, "out.h5", batch=BATCH)
    first, second, *_ = sorted((tmp_path / "out.h5.parts").glob("0*.h5"))
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(second.read_bytes()[:-9] + b"x" + second.read_bytes()[-8:])
    result = predict("out.h5", batch=BATCH, resume=True)
    assert (result.units, result.units_resumed) == (5, 3)
    assert result.graphs_per_second * result.seconds == pytest.approx(0.4 * result.graphs), "the speed of this call"
    original, torn = Parts.keep_segment, list[Path]()

    def keep_torn(parts: Parts, *segment: Any) -> None:
        original(parts, *segment)
        if not torn:
            torn.extend(parts.folder.glob("0*.h5"))
            torn[0].write_bytes(torn[0].read_bytes()[:-1])

    monkeypatch.setattr(Parts, "keep_segment", keep_torn)
    predict("again.h5", batch=BATCH)
    assert torn
    for name in ("out.h5", "again.h5"):
        assert_same(tmp_path / name, tmp_path / "whole.h5")


def test_parts_are_a_file(predict: Predict, structures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "KEEP_BYTES", 1)
    small = BatchSettings(max_graphs=2)
    predict("whole.h5", structures, batch=small)
    predict("out.h5", structures, batch=small, keep_parts=True)
    kept = sorted(path.name for path in (tmp_path / "out.h5.parts").iterdir())
    assert len(kept) == 4 and all(re.fullmatch(r"\d+-\d+\.\w+\.h5", name) for name in kept)
    (tmp_path / "elsewhere").mkdir()
    for name in ("out.h5", "out.h5.parts"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    assert_same(tmp_path / "elsewhere" / "out.h5", tmp_path / "whole.h5")
    with h5py.File(tmp_path / "elsewhere" / "out.h5") as file:
        assert json.loads(file.attrs["heading"])["nominal"] == 0.9 and file["fields/energy"].attrs["unit"] == "eV"
    (tmp_path / "elsewhere" / "out.h5.parts" / kept[0]).unlink()
    with h5py.File(tmp_path / "elsewhere" / "out.h5") as file, h5py.File(tmp_path / "whole.h5") as whole:
        gone = file["graph"][:] == -1  # zeros would look like predictions
        energies, expected = file["fields/energy/mean"][:], whole["fields/energy/mean"][:]
        assert 0 < gone.sum() < len(gone) and np.isnan(energies[gone]).all()
        np.testing.assert_array_equal(energies[~gone], expected[~gone])
    refused(r"only \.h5 can be a view", predict, "out.csv", structures, keep_parts=True)


def test_parts_of_others_are_not_mixed_in(predict: Predict, runs: list[Path], stored: Path, tmp_path: Path) -> None:
    killed(predict)
    options = {"resume": True, "batch": BATCH}
    refused("begun with another ensemble;", predict_to_file, runs[0], stored, tmp_path / "out.h5", **options)
    refused("begun with another batch budget;", predict, "out.h5", resume=True)


@pytest.mark.parametrize(
    "out, says",
    [
        ("out.txt", "use one of"),
        ("out", "use one of"),
        ("there.h5", "exists already"),
        ("/", r"name a file, such as predictions\.h5"),
        (f"{240 * 'x'}.h5", "a name of 243 bytes is too long"),
    ],
)
def test_impossible_outputs_are_refused(predict: Predict, tmp_path: Path, out: str, says: str) -> None:
    (tmp_path / "there.h5").write_text("precious")
    refused(says, predict, out)
    assert (tmp_path / "there.h5").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["there.h5"]


FRAMES = {
    "": ("2", 'pbc="F F F"', "Cu 0 0 0", "Cu 0 0 2.5"),
    "ok": ("2", 'pbc="F F F"', "Cu 0 0 0", "Cu 0 0 0.5"),  # far outside of the training domain, as it says
    "nodes 0 and 1 are 0 apart": ("2", 'pbc="F F F"', "Cu 0 0 0", "Cu 0 0 0"),
    "atomic number 0": ("1", 'pbc="F F F"', "X 0 0 0"),
    "stress is no symmetric tensor": ("1", 'Lattice="4 0 0 0 4 0 0 0 4" stress="1 2 3 4 5 6 7 8 9"', "Cu 0 0 0"),
    "atom 0 is Cu and has the atomic number 13": ("1", "Properties=species:S:1:Z:I:1:pos:R:3", "Cu 13 0 0 0"),
    "Properties names no positions": ("1", "Properties=species:S:1:posi:R:3", "Cu 0 0 0"),
    "could not convert string": ("1", "Properties=species:S:1:pos:R:3", "Cu 0 0 zero"),
}
"""Structures of a file by words of their status."""


@pytest.mark.parametrize("suffix", ["h5", "xyz"])
def test_impossible_structures_cost_no_others(predict: Predict, ensemble: Path, tmp_path: Path, suffix: str) -> None:
    frames = "".join("".join(f"{line}\n" for line in lines) for lines in FRAMES.values())
    (tmp_path / "some.xyz").write_text(frames)
    result = predict(f"out.{suffix}", tmp_path / "some.xyz")
    assert (result.graphs, result.failed) == (len(FRAMES), len(FRAMES) - 2)
    if suffix == "h5":
        arrays, memory = arrays_of(tmp_path / "out.h5"), api.predict(ensemble, tmp_path / "some.xyz")
        assert arrays["name"].tolist() == [f"some.xyz#{number}" for number in range(len(FRAMES))]
        assert all(words in status for words, status in zip(FRAMES, arrays["status"], strict=True)), arrays["status"]
        assert tuple(arrays["status"]) == memory.status
        assert np.array_equal(arrays["fields/energy/mean"], memory["energy"]["mean"], equal_nan=True)


def test_sources_that_do_not_fit_are_refused(predict: Predict, tmp_path: Path) -> None:
    nodes = Field(name="height", on="node")
    for dim, words in ((2, "dimension 2"), (3, "no field atomic_numbers")):
        graph = graph_from_arrays(np.eye(2, dim), [0], [1], fields=[nodes], nodes={"height": np.ones(2)})
        refused(words, predict, "out.h5", written(tmp_path / f"{dim}.h5", graph))
    refused("does not exist", predict, "out.h5", tmp_path / "nowhere.h5")
    (tmp_path / "notes.xyz").write_text("not a structure")
    refused("neither a store nor a file that ASE can read", predict, "out.h5", tmp_path / "notes.xyz")
    (tmp_path / "helium.xyz").write_text("2\n\nHe 0 0 0\nHe 0 0 0\n")
    refused("can be turned into a graph", predict, "out.h5", tmp_path / "helium.xyz")
    (tmp_path / "good.xyz").write_text("1\n\nH 0 0 0\n")
    for name, text in {"blank.xyz": "\n\n", "empty.cif": "data_a\n_b 1\n"}.items():
        (tmp_path / name).write_text(text)
        refused(f"{name} has no structure; leave it out", predict, "out.h5", [tmp_path / "good.xyz", tmp_path / name])
    os.mkfifo(tmp_path / "some.xyz")
    refused("is no regular file, and reading it might not end", rules.structures_in, tmp_path / "some.xyz")
    assert not list(tmp_path.glob("*out.h5*"))


TARGETS = tuple(
    Target(field=Field(name=name, on=on, unit="eV"))
    for name, on in (("energy", "graph"), ("forces", "node"), ("bond", "edge"))
)
WORDS = ["ok", "", "NaN in forces", "Grüße", "a text of eight" + "s" * 300, "12345678", "\N{SNOWMAN}"]


def piece(generator: np.random.Generator, graphs: int) -> dict[str, Any]:
    nodes, edges = generator.integers(0, 4, graphs), generator.integers(0, 3, graphs)
    return {
        "graph": np.arange(graphs),
        "nodes": nodes,
        "edges": edges,
        "senders": np.arange(edges.sum()),
        "receivers": np.arange(edges.sum())[::-1].copy(),
        "status": generator.choice(WORDS, graphs).tolist(),
        "domain": generator.choice(WORDS, graphs, p=[0, 0.9, 0, 0, 0.02, 0.04, 0.04]).tolist(),
        "domain_score": generator.normal(size=graphs),
        "fields/energy/mean": generator.normal(size=graphs).astype(np.float32),
        "fields/energy/set": generator.random((graphs, 3)) < 0.5,
        "fields/forces/mean": generator.normal(size=(nodes.sum(), 3)).astype(np.float32),
        "fields/bond/mean": generator.normal(size=edges.sum()),
    }


def joined_file(folder: Path, pieces: list[dict[str, Any]]) -> Path:
    sink = Hdf5Sink(folder / "out.h5", Heading(targets=TARGETS, nominal=0.9, ensemble="e", members=("a",)))
    sink.begin()
    for one in pieces:
        sink.append(one)
    sink.complete()
    assert [path.name for path in folder.iterdir()] == ["out.h5"]
    return sink.path


@pytest.mark.parametrize("rows", [4096, 8, 64])
@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_pieces_are_read_back(tmp_path_factory: pytest.TempPathFactory, rows: int, sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    pieces = [piece(generator, size) for size in sizes]
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "ROWS", rows)
        path = joined_file(folder, pieces)
    expected = joined(pieces)
    read = arrays_of(path)
    with h5py.File(path) as file:
        assert file["fields/energy"].attrs["unit"] == "eV"
        summed = [name for name, values in read.items() if len(values) and file[name].fletcher32]
    assert summed == [name for name, values in read.items() if len(values) and values.dtype != "O"]
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values.dtype.kind == "O" or values.dtype == np.asarray(expected[name]).dtype
        np.testing.assert_array_equal(values, np.asarray(expected[name]), err_msg=name)
