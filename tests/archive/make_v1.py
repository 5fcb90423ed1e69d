"""How the runs, the campaign and the ensemble of version 1 in this folder were made; only the code of 57a3d48 can do it.

    cd CHECKOUT-OF-57a3d48 && PYTHONPATH=. python .../tests/archive/make_v1.py /data

Runs and campaigns keep the absolute path of their store, so all of it was made in a folder with a neutral name and then
copied here. These files are never made anew: what a later version writes gets files of its own beside them.
``configurations-v1`` was written by hand and has every key of that version.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

from hydragnn import build_ensemble, load
from hydragnn.base.errors import Interrupted
from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, from_ase, graph_from_arrays, relation_field
from hydragnn.hpo import campaign_history, campaign_settings, run_search
from hydragnn.training import train

Table = dict[str, Any]

GRAPHS, CUTOFF = 16, 3.6
STORE = "graphs-v1.h5"
INTERRUPTED_FIRST, INTERRUPTED_LAST = 2, 8
INPUTS = (
    ATOMIC_NUMBERS_FIELD,
    Field(name="size", on="node", shape=(2,)),
    Field(name="load", on="graph"),
    Field(name="phase", on="graph", classes=2, dtype="int64"),
    Field(name="area", on="edge", dtype="float64"),
    relation_field(6),
    relation_field(3, "level"),
)
LABELS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target", dtype="float64"),
    Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target"),
    Field(name="charge", on="node", shape=(2,), unit="e", role="target"),
    Field(name="gap", on="graph", unit="eV", role="target"),
    Field(name="dipole", on="graph", shape=(3,), unit="e Angstrom", parity="vector", role="target"),
    Field(name="flow", on="node", shape=(2, 3), parity="vector", role="target"),
)
FAMILY = Field(name="family", on="graph", classes=8, dtype="int64", role="auxiliary")
ENERGY = {"field": "energy", "pool": "sum", "references": True, "per_node": True, "hidden_dims": [6]}
FORCES = {**ENERGY, "forces": "forces", "forces_weight": 2.0}
STRESS = {**FORCES, "stress": "stress", "stress_weight": 0.5}
SMALL = {"hidden_dims": [5]}
NLL = {"distribution": "gaussian", "loss": "nll"}
MODELS: dict[str, Table] = {
    "schnet": {
        "model": {"kind": "schnet", "cutoff": CUTOFF, "num_radial": 5, "envelope": "cosine"},
        "heads": [STRESS, {"field": "charge", **SMALL, **NLL}],
    },
    "painn": {
        "model": {"kind": "painn", "cutoff": CUTOFF, "num_radial": 5},
        "heads": [FORCES, {"field": "dipole", "pool": "mean", **SMALL, **NLL}, {"field": "flow", "hidden_dims": [4]}],
        "train": {"ema_decay": 0.9},
    },
    "egnn": {
        "model": {"kind": "egnn", "cutoff": CUTOFF, "num_radial": 5, "radial": "gaussian", "attention": True},
        "heads": [
            STRESS,
            {"field": "dipole", "pool": "sum", "hidden_dims": []},
            {"field": "charge", "graph_scale": True, **SMALL, **NLL},
        ],
    },
    "pna": {
        "model": {"kind": "pna", "cutoff": CUTOFF, "num_radial": 5, "envelope": "none", "dropout": 0.1},
        "heads": [
            STRESS,
            {"field": "gap", "pool": "max", "loss": "huber", **SMALL},
            {"field": "charge", "loss": "mae", **SMALL},
        ],
    },
    "pna-without-edges": {
        "data": {"edges": False, "inputs": ["atomic_numbers", "size"]},
        "model": {"kind": "pna", "cutoff": CUTOFF, "num_radial": 5},
        "heads": [{"field": "gap", **SMALL, **NLL}],
    },
    "relational": {
        "model": {"kind": "relational", "num_layers": 4, "schedule": [0, 1, 2, 0], "reduce": "mean"},
        "heads": [
            ENERGY,
            {"field": "gap", **SMALL, **NLL},
            {"field": "charge", "loss": "relative", "graph_scale": True, **SMALL},
        ],
        "train": {"optimizer": "sgd"},
    },
}


def main() -> None:
    """Make everything in the folder that the command line names."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    out.mkdir()
    with StoreWriter(out / STORE, [*INPUTS, *LABELS, FAMILY], dim=3, attributes={"cutoff": CUTOFF}) as writer:
        for number in range(GRAPHS):
            writer.write(graph(number))
    make_models(out)
    make_runs(out)
    make_campaign(out)
    expect(out)


def graph(number: int) -> GraphBatch:
    """A rattled cell or cluster of copper, gold and palladium with EMT's labels and made-up others; some labels are absent."""
    random = np.random.default_rng([11, number])
    atoms = bulk("Cu", "fcc", a=3.8, cubic=True)
    if number % 4 == 3:
        atoms = Atoms(atoms.symbols, atoms.positions)[: int(random.integers(1, 5))]
    atoms.symbols[:] = [["Cu", "Au", "Pd"][(k + number) % 3] for k in range(len(atoms))]
    if atoms.pbc.all():
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + random.normal(0.0, 0.03, (3, 3))), scale_atoms=True)
    atoms.positions += random.normal(0.0, 0.08, atoms.positions.shape)
    atoms.calc = EMT()
    atoms.get_forces()
    periodic = bool(atoms.pbc.all())
    if periodic:
        atoms.get_stress()
    bare = from_ase(atoms, CUTOFF, fields=[f for f in LABELS[:3] if periodic or f.name != "stress"])
    edges, shares = bare.num_edges, random.random((bare.num_nodes, 2))
    labels: Table = {
        "charge": shares - shares.mean(0),
        "gap": float(shares.std()),
        "dipole": atoms.get_forces().std(0),
        "flow": np.stack([atoms.get_forces(), -atoms.get_forces()], axis=1),
    }
    absent = {"gap"} if number % 5 == 4 else {"charge", "dipole"} if number % 7 == 6 else set()
    known = [*INPUTS, *bare.fields.values(), *LABELS[3:], FAMILY]
    fields = {field.name: field for field in known if field.name not in absent}
    given = {
        "node": {"size": shares},
        "edge": {
            "area": random.random(edges),
            "relation": random.integers(0, 6, edges),
            "level": random.integers(0, 3, edges),
        },
        "graph": {"load": random.normal(), "phase": number % 2, "family": number % 8},
    }
    for name, value in labels.items():
        if name not in absent:
            given[fields[name].on][name] = value
    return graph_from_arrays(
        bare.positions,
        bare.senders,
        bare.receivers,
        fields=list(fields.values()),
        nodes={**bare.nodes, **given["node"]},
        edges=given["edge"],
        graphs={**bare.graphs, **given["graph"]},
        edge_shifts=bare.edge_shifts,
        cell=bare.cell[0],
        periodic=bare.periodic[0],
        name=f"graph {number}",
    )


def configuration(out: Path, **sections: Any) -> RunConfig:
    """A small run in double precision on the store."""
    table: Table = {
        "data": {"store": str(out / STORE)},
        "split": {"train": 0.6, "valid": 0.25},
        "batch": {"max_graphs": 4},
        "model": {"hidden_dim": 4, "num_layers": 2},
        "train": {"epochs": 4, "learning_rate": 5e-3, "precision": "fp64", "checkpoint_seconds": 0.0},
    }
    for name, section in sections.items():
        table[name] = table.get(name, {}) | section if isinstance(section, dict) else section
    return RunConfig.parse(table)


def make_models(out: Path) -> None:
    """One finished run per architecture, without its checkpoints."""
    for name, sections in MODELS.items():
        folder = out / "models-v1" / name
        assert train(configuration(out, **sections), folder).status == "finished"
        shutil.rmtree(folder / "checkpoints")


class StopsAt:
    """Shows nothing, and ends the run by a signal in the middle of an epoch."""

    def __init__(self, epochs: float) -> None:
        self.epochs = epochs

    def begin(self, epochs: float, total: int) -> None:
        pass

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        if epochs >= self.epochs:
            os.kill(os.getpid(), signal.SIGTERM)

    def epoch(self, number: int, values: dict[str, float | None]) -> None:
        pass

    def end(self, sentence: str) -> None:
        pass


def make_runs(out: Path) -> None:
    """One run that finished and one that was interrupted in its third epoch, with their checkpoints."""
    config = configuration(out, **MODELS["schnet"], train={"epochs": 3, "ema_decay": 0.9})
    train(config, out / "run-v1")
    try:
        train(config, out / "interrupted-run-v1", progress=StopsAt(2.4))
    except Interrupted as note:
        print(note)


def campaign_table(out: Path) -> Table:
    """Nine trials of three architectures; one learning rate diverges."""
    base = configuration(out, model={"kind": "schnet", "cutoff": CUTOFF, "num_radial": 5}, heads=[FORCES]).to_json()
    # small shared sections, as a person writes them
    search_config = {name: base[name] for name in ("batch", "train")}
    search_config |= {"data": {"store": STORE}, "split": {"train": 0.6, "valid": 0.25}}
    search_config["model"] = {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "cutoff": CUTOFF, "num_radial": 5}
    search_config["heads"] = [FORCES, {"field": "charge", **SMALL, **NLL}]
    search_config["search"] = {
        "trials": 9,
        "sampler": "random",
        "seed": 3,
        "objective": {"energy": 1.0, "forces": 1.0, "charge": 0.5},
        "rungs": [2],
        "reduction": 2,
        "finalists": 4,
        "space": {
            "model.kind": {"type": "categorical", "choices": ["schnet", "painn", "egnn"]},
            "model.hidden_dim": {"type": "int", "low": 3, "high": 5, "step": 1},
            "model.attention": {"type": "categorical", "choices": [True], "when": {"model.kind": ["egnn"]}},
            "train.learning_rate": {"type": "categorical", "choices": [2e-3, 4e-3, 6e-3, 1e290]},
            "heads.0.forces_weight": {"type": "float", "low": 0.5, "high": 5.0, "log": True},
        },
    }
    return search_config


def make_campaign(out: Path) -> None:
    """A campaign that was stopped twice, the second time for good, and an ensemble of its three best trials."""
    table, folder = campaign_table(out), out / "campaign-v1"
    (out / "campaign-v1.toml").write_text(tomli_w.dumps(table))
    settings = campaign_settings(table, out / "campaign-v1.toml")

    def stops(trial: int) -> Any:
        def note(state: Any, event: Any, seconds: float) -> None:
            if type(event).__name__ == "Launched" and event.trial == trial:
                os.kill(os.getpid(), signal.SIGTERM)

        return note

    print(run_search(settings, folder, on_event=stops(INTERRUPTED_FIRST)).to_json())
    print(run_search(settings, folder, resume=True, on_event=stops(INTERRUPTED_LAST)).to_json())
    build_ensemble(folder, out / "ensemble-v1", top_k=3)
    trials = campaign_history(folder).trials
    assert trials[INTERRUPTED_LAST].status == "waiting", (
        "it was faster than the signal; delete everything and try again"
    )
    for trial in trials:
        print(trial.number, trial.status, trial.failure, trial.values)
        if trial.number != INTERRUPTED_LAST:  # they are large, and nobody reads those of the others again
            shutil.rmtree(trial.folder / "checkpoints", ignore_errors=True)
        for earlier in sorted((trial.folder / "checkpoints").glob("0*"))[:-1]:
            shutil.rmtree(earlier)


def expect(out: Path) -> None:
    """What every model says about the whole store."""
    store, values = open_store(out / STORE), {}
    folders = {name: out / "models-v1" / name for name in MODELS}
    folders |= {"run": out / "run-v1", "interrupted run": out / "interrupted-run-v1", "ensemble": out / "ensemble-v1"}
    for name, folder in folders.items():
        restored: Ensemble = load(folder)
        output = restored.predict(store)
        assert output.ok.all(), output.status
        for field, estimate in output.fields.items():
            for quantity in ("mean", "std", "lower", "upper") if name == "ensemble" else ("mean", "std"):
                values[f"{name}/{field}/{quantity}"] = estimate[quantity]
    np.savez_compressed(out / "predictions-v1.npz", **values)


if __name__ == "__main__":
    main()
