"""Groups of ranks that share every batch of a prediction make the file that one process makes."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import BatchSettings, StoreWriter
from hydragnn.ensemble import build_ensemble, predict_to_file
from hydragnn.graphs import Field, GraphBatch, concatenate, from_ase
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.runs import train
from tests.ensemble.conftest import STRESS, TARGETS
from tests.ensemble.finished import arrays_of, assert_same, finished_units
from tests.ensemble.test_ensemble_ranks import MPIRUN, TORCHRUN, counts, finish, needs_mpirun, started, steps
from tests.graphs.test_cutting import grid
from tests.once import shared

EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""Double precision; sums over ranks are added in another order."""

ENERGY = {"kind": "energy", "field": "energy", "forces": "forces", "stress": "stress", "references": True}
CHARGE = {"kind": "scalar", "field": "charge"}
FIELDS = (*TARGETS, STRESS, Field(name="charge", on="node", role="target"))
LOAD = Field(name="load", on="node")


def crystals(count: int, seed: int = 0) -> list[GraphBatch]:
    """Rattled alloys of four to sixteen atoms, whose cells are smaller than the cutoff."""
    generator, graphs = np.random.default_rng(seed), []
    for number in range(count):
        atoms: Atoms = bulk("Cu", cubic=True) * (1 + number % 3 // 2, 1, 1 + number % 5 // 4)
        atoms.symbols[0] = "Au"
        atoms.rattle(0.08, rng=generator)
        atoms.calc = EMT()
        atoms.get_stress(), atoms.get_forces()
        atoms.arrays["charge"] = atoms.positions[:, 0] - atoms.positions[:, 0].mean()
        graphs.append(from_ase(atoms, 4.0, fields=FIELDS, name=f"alloy {number}"))
    return graphs


def meshes(count: int, seed: int = 0) -> list[GraphBatch]:
    """Meshes of squares with a load and its answer."""
    generator, graphs = np.random.default_rng(seed), []
    for number in range(count):
        mesh = grid(4 + number % 5)
        load = generator.normal(size=mesh.num_nodes)
        values = {"load": load, "charge": np.cumsum(load)}
        ends = mesh.senders.numpy(), mesh.receivers.numpy()
        graphs.append(graph_from_arrays(mesh.positions.numpy(), *ends, fields=(LOAD, FIELDS[-1]), nodes=values))
    return graphs


def written(path: Path, graphs: list[GraphBatch]) -> Path:
    attributes = {"cutoff": 4.0} if "energy" in graphs[0].fields else {}
    with StoreWriter(path, tuple(graphs[0].fields.values()), dim=graphs[0].dim, attributes=attributes) as writer:
        writer.write(concatenate(graphs))
    return path


def ensemble_of(root: Path, make: Callable[..., list[GraphBatch]], **table: Any) -> tuple[Path, Path]:
    """Return an ensemble of two architectures in double precision, and a store of new graphs."""
    store = written(root / "graphs.h5", make(16))
    for number, kind in enumerate(("schnet", "painn")):
        model = {"kind": kind, "hidden_dim": 6, "num_layers": 2, "num_radial": 4, **table["model"]}
        config = {
            "data": {"store": str(store)},
            "split": {"train": 0.5, "valid": 0.25},
            "model": model,
            "heads": table["heads"],
            "train": {"epochs": 1, "precision": "fp64", "seed": number},
        }
        assert train(RunConfig.parse(config), root / f"{number}").status == "finished"
    build_ensemble([root / "0", root / "1"], root / "ensemble")
    return root / "ensemble", written(root / "new.h5", make(5, seed=1))


@shared
def alloys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return ensemble_of(tmp_path_factory.mktemp("alloys"), crystals, model={"cutoff": 4.0}, heads=[ENERGY, CHARGE])


@shared
def plates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return ensemble_of(tmp_path_factory.mktemp("plates"), meshes, model={"cutoff": 2.0}, heads=[CHARGE])


def assert_equal(file: Path, expected: Path) -> None:
    """Compare all arrays: numbers to rounding, and the rest exactly."""
    ours, theirs = arrays_of(file), arrays_of(expected)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(ours[name], values, err_msg=name, **EXACT)
        else:
            np.testing.assert_array_equal(ours[name], values, err_msg=name)


@pytest.mark.parametrize("data", ["alloys", "plates"])
@pytest.mark.parametrize(("graphs", "ranks"), [(1, 2), (3, 4)], ids=["each graph cut", "two groups"])
def test_ranks_that_share_every_batch_make_the_file_of_one_process(
    data: str, graphs: int, ranks: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Energies, forces, stress and node fields of crystals and meshes, with spread, intervals and domain."""
    ensemble, store = request.getfixturevalue(data)
    predict_to_file(ensemble, store, tmp_path / "one.h5", batch=BatchSettings(max_graphs=graphs))
    options = ("--graph-ranks", 2, "--max-graphs", graphs)
    outputs = [finish(process) for process in steps(ensemble, store, tmp_path / "two.h5", *options, ranks=ranks)]
    assert counts("".join(outputs))["ranks"] == ranks // 2
    assert_equal(tmp_path / "two.h5", tmp_path / "one.h5")
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize("launcher", [TORCHRUN, pytest.param(MPIRUN, marks=needs_mpirun)], ids=["torchrun", "mpirun"])
def test_ranks_of_launchers_share_batches(launcher: list[str], plates: tuple[Path, Path], tmp_path: Path) -> None:
    ensemble, store = plates
    predict_to_file(ensemble, store, tmp_path / "one.h5", batch=BatchSettings(max_graphs=4))
    finish(started(ensemble, store, tmp_path / "two.h5", "--graph-ranks", 2, launcher=launcher))
    assert_equal(tmp_path / "two.h5", tmp_path / "one.h5")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_prediction_whose_rank_was_killed_is_resumed_to_the_same_bits(
    rank: int, plates: tuple[Path, Path], tmp_path: Path
) -> None:
    ensemble, store = plates
    options = ("--graph-ranks", 2, "--max-graphs", 1)
    for process in steps(ensemble, store, tmp_path / "whole.h5", *options):
        finish(process)
    faulty = ("--faulty-rank", rank, "--after", 5, "--at", "shared")
    processes = steps(ensemble, store, tmp_path / "out.h5", *options, *faulty)
    for process in processes:
        process.communicate(timeout=300)
    assert processes[rank].returncode == -signal.SIGKILL
    assert processes[1 - rank].returncode not in (0, -signal.SIGKILL)
    assert finished_units(tmp_path / "out.h5.parts")
    with pytest.raises(InputError, match="another number of graph ranks"):
        predict_to_file(ensemble, store, tmp_path / "out.h5", batch=BatchSettings(max_graphs=1), resume=True)
    outputs = [finish(process) for process in steps(ensemble, store, tmp_path / "out.h5", *options, "--resume")]
    assert counts("".join(outputs))["units_resumed"]
    assert_same(tmp_path / "out.h5", tmp_path / "whole.h5")


def test_members_whose_graphs_cannot_be_shared_are_refused_before_anything_is_read(
    alloys: tuple[Path, Path], tmp_path: Path
) -> None:
    config = json.loads((alloys[0].parent / "0" / "config.json").read_text())
    config["model"] = {"kind": "dimenet", "hidden_dim": 4, "num_layers": 1, "num_radial": 6, "cutoff": 3.0}
    config["train"]["epochs"] = 1
    assert train(RunConfig.parse(config), tmp_path / "angles").status == "finished"
    processes = steps(tmp_path / "angles", alloys[1], tmp_path / "out.h5", "--graph-ranks", 2)
    assert "consecutive edges" in finish(processes[0], code=2)
    finish(processes[1], code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["angles"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph_ranks": 2}, "does not divide the 1 ranks"),
        ({"graph_ranks": 0}, "a whole number from 1"),
        ({"graph_ranks": 2, "workers": 2}, "not --workers"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_in_one_sentence(
    options: dict[str, int], words: str, plates: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        predict_to_file(*plates, tmp_path / "out.h5", **options)
    assert not list(tmp_path.iterdir())
