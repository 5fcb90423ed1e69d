"""Any number of ranks, started in any way, some of them slow or dead, or sharing every batch, make the file that one process makes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Never

import numpy as np
import psutil
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import read

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.config import RunConfig
from hydragnn.datasets import BatchSettings
from hydragnn.distributed import finishing
from hydragnn.ensemble import build_ensemble
from hydragnn.ensemble.members import member as members
from hydragnn.ensemble.prediction import rules as blocks
from hydragnn.ensemble.prediction import sources, work
from hydragnn.ensemble.prediction.job import Inputs, PredictionJob
from hydragnn.ensemble.prediction.predict import begin, predict_to_file, predict_with
from hydragnn.ensemble.prediction.rules import blocks_of, frames_of
from hydragnn.graphs import Field, GraphBatch, concatenate, from_ase
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.runs import train
from tests.acting import first_acts
from tests.ensemble.conftest import STRESS, TARGETS, Predict, refused, written
from tests.ensemble.finished import assert_same, finished_units
from tests.ensemble.test_ensemble_queues import Pair
from tests.forked import Forked
from tests.graphs.test_cutting import grid
from tests.once import shared

BIN = Path(sys.executable).parent
PREDICTING = Path(__file__).with_name("predicting.py")
MPIRUN = [str(BIN / "mpirun"), "-n", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
BATCH = BatchSettings(max_graphs=4)
Process = subprocess.Popen[str] | Forked
Files = dict[str, Path]
needs_mpirun = pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="no mpirun beside this Python; install mpich")


@pytest.fixture(scope="session")
def structures(structures_file: Callable[[int], Path]) -> Path:
    return structures_file(40)


@shared
def whole(tmp_path_factory: pytest.TempPathFactory, ensemble: Path, stored: Path, structures: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    for name, source in (("store", stored), ("structures", structures)):
        predict_to_file(ensemble, source, folder / f"{name}.h5", batch=BATCH)
    return {name: folder / f"{name}.h5" for name in ("store", "structures")}


def started(
    ensemble: Path, source: Path, out: Path, *options: object, launcher: Sequence[str] = (), **environment: str
) -> Process:
    words = [str(PREDICTING), str(ensemble), str(source), str(out), *map(str, options)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if not launcher:
        return Forked(words, variables)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*launcher, *words], env=variables, **pipes)


def finish(process: Process, code: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


def counts(output: str) -> dict[str, Any]:
    """What the rank said that wrote the file; exactly one did."""
    (line,) = re.findall(r"\{.*\}", output)  # behind which a note may stand, since launchers mix what ranks print
    return json.loads(line)


def steps(ensemble: Path, source: Path, out: Path, *options: object, ranks: int = 2) -> list[Process]:
    """Ranks of a job step without MPI, as srun starts them."""
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": str(ranks)}
    return [started(ensemble, source, out, *options, **step, SLURM_PROCID=str(rank)) for rank in range(ranks)]


LATE = ("--faulty-rank", 1, "--at", "graphs", "--until-there")


@needs_mpirun
def test_a_late_rank_of_mpi_ends_well(ensemble: Path, structures: Path, whole: Files, tmp_path: Path) -> None:
    result = counts(finish(started(ensemble, structures, tmp_path / "out.h5", *LATE, launcher=MPIRUN)))
    assert_same(tmp_path / "out.h5", whole["structures"])
    assert (
        result["ranks"] == 2 and 1 <= len(result["busy_seconds"]) <= 2
    )  # one that comes when all is done may have none
    plan = json.loads((tmp_path / "out.h5.plan.json").read_text())
    assert plan["measured"]["units_done"] == plan["planned"]["units"] >= 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.h5", "out.h5.faltered", "out.h5.plan.json"]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_ranks_of_launchers_make_the_same_file(
    launcher: str, ensemble: Path, stored: Path, whole: Files, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By torchrun, and as a job step of a real Slurm on two nodes."""
    words, environment = TORCHRUN, dict[str, str]()
    if launcher == "srun":
        words = ["srun", "-N2", "-n2", "--mpi=none", "--chdir", str(tmp_path), sys.executable]
        environment = request.getfixturevalue("slurm").environment
    result = counts(finish(started(ensemble, stored, tmp_path / "out.h5", launcher=words, **environment)))
    assert (result["ranks"], result["ranks_lost"]) == (2, 0)
    assert_same(tmp_path / "out.h5", whole["store"])


@needs_mpirun
def test_a_killed_mpi_is_resumed(predict: Predict, ensemble: Path, stored: Path, whole: Files, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    # the other rank, which could do the rest before MPI ends it, waits for that
    fault = ("--faulty-rank", 0, "--after", 2, "--at", "segment", "--others-seconds", 60)
    killed = started(ensemble, stored, out, *fault, launcher=MPIRUN)
    killed.communicate(timeout=300)
    assert killed.returncode != 0 and not out.exists()
    finished = finished_units(tmp_path / "out.h5.parts")
    assert finished >= 1 and list((tmp_path / "out.h5.parts").glob(".*.part"))
    assert predict("out.h5", batch=BATCH, resume=True).units_resumed == finished
    assert_same(out, whole["store"])


def test_bad_input_is_refused_by_all_ranks_and_leaves_nothing(ensemble: Path, structures: Path, tmp_path: Path) -> None:
    (tmp_path / "there.h5").write_text("precious")
    outputs = [finish(process, code=2) for process in steps(ensemble, structures, tmp_path / "there.h5")]
    assert all("exists already" in output for output in outputs)
    assert [path.name for path in tmp_path.iterdir()] == ["there.h5"]


@pytest.mark.parametrize(("at", "after"), [("unit", 4), ("piece", 1), ("segment", 3)])
def test_the_work_of_a_killed_job_step_rank_is_done_by_the_others(
    at: str, after: int, ensemble: Path, structures: Path, whole: Files, tmp_path: Path
) -> None:
    """Rank 0 is killed, which would have written the file: while it predicts, keeps a segment, or joins."""
    options = ("--faulty-rank", 0, "--after", after, "--at", at)
    processes = steps(ensemble, structures, tmp_path / "out.h5", *options)
    processes[0].communicate(timeout=300)
    assert processes[0].returncode == -signal.SIGKILL
    result = counts(finish(processes[1]))
    assert_same(tmp_path / "out.h5", whole["structures"])
    assert (result["units_resumed"], result["ranks"], result["ranks_lost"]) == (0, 2, 1)
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize(("suffix", "late"), [(".csv", ()), (".xyz", LATE)])
def test_lines_that_ranks_make_are_those_of_one_process(
    predict: Predict, suffix: str, late: tuple[object, ...], ensemble: Path, structures: Path, tmp_path: Path
) -> None:
    for process in steps(ensemble, structures, tmp_path / f"two{suffix}", *late):
        finish(process)
    predict(f"one{suffix}", structures, batch=BATCH)
    for path in tmp_path.glob(f"two*{suffix}"):
        assert_same(path, path.with_name(path.name.replace("two", "one")))
    assert not list(tmp_path.glob("*.parts"))


def test_a_killed_worker_costs_nothing(ensemble: Path, stored: Path, whole: Files, tmp_path: Path) -> None:
    process = started(ensemble, stored, tmp_path / "out.h5", "--workers", 2, "--max-graphs", 4)
    spawned: list[psutil.Process] = []
    while process.poll() is None and not spawned:
        with suppress(psutil.Error):  # some children live shorter than the look
            children = psutil.Process(process.pid).children()
            spawned = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        time.sleep(0.01)
    assert spawned, process.communicate()[0]
    spawned[0].kill()
    assert counts(finish(process))["ranks"] == 2
    assert_same(tmp_path / "out.h5", whole["store"])


@needs_mpirun
def test_idle_ranks_replace_hanging_ones(ensemble: Path, stored: Path, whole: Files, tmp_path: Path) -> None:
    """Under a script that ends like any other, the output is whole."""
    fault = ("--faulty-rank", 1, "--after", 8, "--seconds", 600)
    options = (*fault, "--hesitation", 0.1, "--farewell", 0.1, "--fall-off")
    output = finish(started(ensemble, stored, tmp_path / "out.h5", *options, launcher=MPIRUN))
    assert "some ranks hang" in output and counts(output)["ranks"] == 2
    assert_same(tmp_path / "out.h5", whole["store"])
    assert json.loads((tmp_path / "out.h5.plan.json").read_text())["measured"]["ranks_heard"] == 1


@needs_mpirun
def test_a_stopped_rank_costs_seconds(ensemble: Path, stored: Path, whole: Files, tmp_path: Path) -> None:
    """The first one, which decides for all, so that without it nobody would lay out or write the file."""
    options = ("--faulty-rank", 0, "--after", 2, "--seconds", -1, "--farewell", 1, "--hesitation", 10**4)
    output = finish(started(ensemble, stored, tmp_path / "out.h5", *options, launcher=MPIRUN))
    assert_same(tmp_path / "out.h5", whole["store"])
    assert "the job ends without them" in output and "Abort" not in output


def test_ranks_that_leave_once_the_file_is_there_are_not_lost(
    ensemble: Path, stored: Path, whole: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaving(Pair):
        def gone(self, rank: int) -> bool:
            return (tmp_path / "out.h5").exists()

    monkeypatch.setattr(finishing, "HESITATION", 0.0)
    job = PredictionJob(model=ensemble, sources=(stored,), out=tmp_path / "out.h5", batch=BATCH)
    assert predict_with(Leaving(dead=False), job, lambda: None).ranks_lost == 0
    assert_same(tmp_path / "out.h5", whole["store"])


@pytest.mark.parametrize(
    ("share", "ranks", "words"), [(0.9, 1, "each of 1 processes"), (1.5, 2, "each of 2 processes"), (1.5, 1, "")]
)
def test_members_that_do_not_fit_into_memory_are_refused_with_what_they_take(
    share: float, ranks: int, words: str, ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in ensemble.rglob("weights.safetensors"))
    monkeypatch.setattr(members, "free_memory", lambda: share * members.GROWTH * size)
    monkeypatch.setattr(members, "cores", lambda: 2)
    job = PredictionJob(model=ensemble, sources=(stored,), out=tmp_path / "out.h5")
    sentence = rf"{ensemble}: its members take .* GB .*{words}; take fewer members"
    with ExitStack() as lock, pytest.raises(InputError, match=sentence) if words else nullcontext():
        begin(Inputs(job, processes=ranks * job.graph_ranks), lock)
    assert bool(list(tmp_path.iterdir())) == (not words)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "FRAMES", 7)
    monkeypatch.setattr(blocks, "BYTES", 1)


ATOM = "H 0 0 0\n"
TORN: dict[str, tuple[Callable[[str], str], str]] = {
    "cut off": (lambda text: text[: text.rindex("\n", 0, -1) + 1], "structure 39: the file ends before"),
    "many atoms": (lambda text: f"{10**15}\n\n{ATOM}", f"structure 0: the file ends before its {10**15} atoms"),
    "a number of 5000 digits": (lambda text: f"{'9' * 5000}\n\n{ATOM}", "neither a store nor a file that ASE can"),
    "an empty line": (lambda text: f"{text}\n{text}", "structure 40: an empty line"),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", TORN)
def test_structures_of_a_torn_file_are_not_left_out_without_a_word(name: str, structures: Path, tmp_path: Path) -> None:
    change, words = TORN[name]
    (tmp_path / "torn.xyz").write_text(change(structures.read_text()))
    with pytest.raises(InputError, match=words):
        list(frames_of(tmp_path / "torn.xyz", blocks_of(tmp_path / "torn.xyz")[0]))


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_a_file_hold_every_structure_once_and_the_same(structures: Path) -> None:
    actual = blocks_of(structures)
    assert [first for first, _, _ in actual] == [0, 7, 14, 21, 28, 35]
    back = [atoms for block in actual for atoms in frames_of(structures, block)]
    assert len(back) == 40 and back == read(structures, ":")


@pytest.mark.parametrize("name", ["\r\n", "cells.xyz"])
def test_structures_are_found_whatever_ends_their_lines(tmp_path: Path, name: str) -> None:
    text = "2\nname=Grüße\nH 0 0 0\nH 0 0 1\n" + ("" if name == "\r\n" else "VEC1 1 0 0\nVEC2 0 1 0\nVEC3 0 0 1\n")
    (tmp_path / "odd.xyz").write_bytes((text * 2).replace("\n", "\r\n" if name == "\r\n" else "\n").encode())
    (block,) = blocks_of(tmp_path / "odd.xyz")
    assert [len(atoms) for atoms in frames_of(tmp_path / "odd.xyz", block)] == [2, 2]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_are_built_survive_an_interruption(
    predict: Predict, structures: Path, whole: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> Never:
        raise KeyboardInterrupt

    parts = tmp_path / "out.h5.parts"
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="--resume"):
        first_acts(patch, work, "outcome_of", stop)
        predict("out.h5", structures, batch=BATCH)
    (parts / "graphs.json").unlink()
    assert (parts / "block-00003.json").exists()
    monkeypatch.setattr(finishing, "PAUSES", (0.0, 0.0))
    built = first_acts(monkeypatch, sources.Graphs, "_write", lambda: None)
    predict("out.h5", structures, batch=BATCH, resume=True)
    assert built == [] and not parts.exists()
    assert_same(tmp_path / "out.h5", whole["structures"])


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
    generator, graphs = np.random.default_rng(seed), []
    for number in range(count):
        mesh = grid(4 + number % 5)
        load = generator.normal(size=mesh.num_nodes)
        values = {"load": load, "charge": np.cumsum(load)}
        ends = mesh.senders.numpy(), mesh.receivers.numpy()
        graphs.append(graph_from_arrays(mesh.positions.numpy(), *ends, fields=(LOAD, FIELDS[-1]), nodes=values))
    return graphs


def stored_in(path: Path, graphs: list[GraphBatch]) -> Path:
    return written(path, concatenate(graphs), **({"cutoff": 4.0} if "energy" in graphs[0].fields else {}))


def ensemble_of(root: Path, make: Callable[..., list[GraphBatch]], **table: Any) -> tuple[Path, Path]:
    """Return an ensemble of two architectures in double precision, and a store of new graphs."""
    config = {"data": {"store": str(stored_in(root / "graphs.h5", make(16)))}, "split": {"train": 0.5, "valid": 0.25}}
    runs = [root / "schnet", root / "painn"]
    for seed, run in enumerate(runs):
        model = {"kind": run.name, "hidden_dim": 6, "num_layers": 2, "num_radial": 4, **table["model"]}
        own = {"model": model, "heads": table["heads"], "train": {"epochs": 1, "precision": "fp64", "seed": seed}}
        assert train(RunConfig.parse({**config, **own}), run).status == "finished"
    build_ensemble(runs, root / "ensemble")
    return root / "ensemble", stored_in(root / "new.h5", make(5, seed=1))


@shared
def alloys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return ensemble_of(tmp_path_factory.mktemp("alloys"), crystals, model={"cutoff": 4.0}, heads=[ENERGY, CHARGE])


@shared
def plates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return ensemble_of(tmp_path_factory.mktemp("plates"), meshes, model={"cutoff": 2.0}, heads=[CHARGE])


@pytest.mark.parametrize(
    ("data", "graphs", "ranks"),
    [("plates", 1, 2), ("alloys", 3, 4), pytest.param("plates", 4, 0, marks=needs_mpirun)],
    ids=["each graph cut", "two groups", "mpirun"],
)
def test_ranks_share_work(data: str, graphs: int, ranks: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Energies, forces, stress and node fields of crystals and meshes, with spread, intervals and domain."""
    ensemble, store = request.getfixturevalue(data)
    predict_to_file(ensemble, store, tmp_path / "one.h5", batch=BatchSettings(max_graphs=graphs))
    words = (ensemble, store, tmp_path / "two.h5", "--graph-ranks", 2, "--max-graphs", graphs)
    processes = steps(*words, ranks=ranks) if ranks else [started(*words, launcher=MPIRUN)]
    assert counts("".join(map(finish, processes)))["ranks"] == max(ranks // 2, 1)
    # double precision; sums over ranks are added in another order
    assert_same(tmp_path / "two.h5", tmp_path / "one.h5", 1e-10)
    assert not list(tmp_path.glob("*.parts"))


def test_a_killed_rank_is_resumed_to_the_same_bits(plates: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--graph-ranks", 2, "--max-graphs", 1)
    for process in steps(*plates, tmp_path / "whole.h5", *options):
        finish(process)
    for rank in (0, 1):
        out, faulty = tmp_path / f"{rank}.h5", ("--faulty-rank", rank, "--after", 5, "--at", "shared")
        processes = steps(*plates, out, *options, *faulty)
        for process in processes:
            process.communicate(timeout=300)
        assert processes[rank].returncode == -signal.SIGKILL
        assert processes[1 - rank].returncode not in (0, -signal.SIGKILL)
        assert finished_units(out.with_name(f"{rank}.h5.parts"))
        words, budget = "another number of graph ranks", BatchSettings(max_graphs=1)
        refused(words, predict_to_file, *plates, out, batch=budget, resume=True)
        outputs = [finish(process) for process in steps(*plates, out, *options, "--resume")]
        assert counts("".join(outputs))["units_resumed"]
        assert_same(out, tmp_path / "whole.h5")


def test_members_whose_graphs_cannot_be_shared_are_refused(alloys: tuple[Path, Path], tmp_path: Path) -> None:
    config = json.loads((alloys[0].parent / "schnet" / "config.json").read_text())
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
def test_odd_ranks_are_refused(options: dict[str, int], words: str, plates: tuple[Path, Path], tmp_path: Path) -> None:
    refused(words, predict_to_file, *plates, tmp_path / "out.h5", **options)
    assert not list(tmp_path.iterdir())
