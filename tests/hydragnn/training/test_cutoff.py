"""The cutoff of a model is that of its store, unless somebody says less; what an envelope silences is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.base.errors import InputError
from hydragnn.config import BranchedConfig, RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, from_ase, from_labels, graph_from_arrays
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import space_of
from hydragnn.models import load_model
from hydragnn.record import read_record
from hydragnn.runs import train
from hydragnn.runs.cutoff import check_pairs
from hydragnn.runs.plan import plan_run
from hydragnn.scripts.showing import run_summary
from tests.hydragnn.training.conftest import Trained, written
from tests.once import shared

CUTOFF = 4.2
LABELS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
)
HEAD = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8], "loss": "mse"}
THIRD_SHELL = CUTOFF / 1.5**0.5
"""Lattice constant of an fcc crystal whose third shell lies at the cutoff."""


def crystal(lattice: float, generator: np.random.Generator | None = None) -> Atoms:
    atoms = bulk("Cu", "fcc", a=lattice, cubic=True)
    if generator is not None:
        atoms.positions += generator.normal(0, 0.05, atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
    return atoms


@shared
def copper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve cells of copper with neighbours up to 4.2 Angstrom."""
    generator = np.random.default_rng(0)
    crystals = [crystal(float(lattice), generator) for lattice in np.linspace(3.35, 3.75, 12)]
    graphs = [from_ase(one, CUTOFF, fields=LABELS) for one in crystals]
    return written(tmp_path_factory.mktemp("stores") / "copper.h5", graphs, cutoff=CUTOFF)


@pytest.fixture(scope="session")
def grains() -> MemoryStore:
    """Ten images of grains, 8 to 12 voxels wide, whose faces are edges."""
    generator, graphs = np.random.default_rng(1), []
    fields = (Field(name="volume", on="node"), Field(name="grains", on="graph", role="target"))
    pixels = np.stack(np.meshgrid(np.arange(40), np.arange(40), indexing="ij"), axis=-1)
    for _ in range(10):
        seeds = generator.uniform(0, 40, (generator.integers(12, 20), 2))
        apart = np.abs(pixels[:, :, None] - seeds)
        labels = (np.minimum(apart, 40 - apart) ** 2).sum(-1).argmin(-1)
        _, labels = np.unique(labels, return_inverse=True)
        graph = from_labels(labels.reshape(40, 40), 1.0, True)
        periodic = {"edge_shifts": graph.edge_shifts, "cell": graph.cell[0], "periodic": graph.periodic[0]}
        values = {"nodes": {"volume": graph["volume"].float()}, "graphs": {"grains": [float(graph.num_nodes)]}}
        place = (graph.positions, graph.senders, graph.receivers)
        graphs.append(graph_from_arrays(*place, fields=fields, **values, **periodic))
    return MemoryStore(graphs)


def config_of(store: Path | str, head: dict[str, Any], **model: Any) -> RunConfig:
    settings = {"kind": "schnet", "hidden_dim": 8, "num_layers": 2, "num_radial": 6, **model}
    training = {"epochs": 2, "learning_rate": 0.005, "precision": "fp64"}
    return RunConfig.parse({"data": {"store": str(store)}, "model": settings, "heads": [head], "train": training})


def energy_step(run: Path) -> float:
    """Return how much the energy of an fcc crystal changes as its third shell enters, which moves by 8e-6 Angstrom; eV per atom."""
    model = load_model(run / "model", dtype=torch.float64)
    ends = [from_ase(crystal(THIRD_SHELL * factor), CUTOFF) for factor in (1 - 1e-6, 1 + 1e-6)]
    return float(np.ptp([float(model.predict(one)["energy"].mean[0]) for one in ends])) / 4


def test_what_is_left_out_is_the_cutoff_of_the_store_and_energies_are_continuous_there(
    copper: Path, tmp_path: Path
) -> None:
    record = train(config_of(copper, HEAD), tmp_path / "run")
    settings = load_model(tmp_path / "run" / "model").settings.to_json()
    assert (settings["cutoff"], settings["envelope"]) == (CUTOFF, "polynomial")
    assert record.config["model"]["cutoff"] is None and record.notes == []
    assert energy_step(tmp_path / "run") < 1e-4
    bare = train(config_of(copper, HEAD, envelope="none"), tmp_path / "bare")
    assert energy_step(tmp_path / "bare") > 1e-2
    assert "energies jump and forces are not smooth where neighbours cross the store's cutoff of 4.2" in bare.notes[0]


def test_attention_among_all_pairs_of_a_crystal_is_refused_before_anything_starts(copper: Path, tmp_path: Path) -> None:
    def config(**attention: Any) -> RunConfig:
        return config_of(copper, HEAD, global_attention={"kind": "equivariant", "heads": 2, **attention})

    words = r"sees all pairs of nodes, and graphs of the store are periodic.*give it a cut"
    with pytest.raises(InputError, match=words):
        train(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    plan_run(config(cutoff=6.0))
    space = {"model.global_attention.cutoff": {"type": "categorical", "choices": [6.0, 8.0]}}
    campaign = {**config(cutoff=6.0).to_json(), "search": {"trials": 2, "space": space}}
    open_settings = campaign_settings(campaign, Path("CAMPAIGN.toml"))
    check_campaign(open_settings, space_of(open_settings.search.space))


@pytest.mark.parametrize("place", [0, 4, 9])
def test_crystals_among_molecules_are_found_wherever_they_lie(place: int) -> None:
    lone = from_ase(Atoms("Cu"), CUTOFF)
    graphs = [lone] * 9
    graphs.insert(place, from_ase(bulk("Cu"), CUTOFF))
    attention = GlobalAttentionSettings(kind="equivariant")
    check_pairs(attention, MemoryStore([lone] * 10))
    with pytest.raises(InputError, match="graphs of the store are periodic"):
        check_pairs(attention, MemoryStore(graphs))


def test_where_a_store_keeps_the_nearest_neighbours_alone_energies_jump_and_the_run_says_so(tmp_path: Path) -> None:
    store = MemoryStore(cells_of(CUTOFF, max_neighbours=2), {"cutoff": CUTOFF, "max_neighbours": 2})
    record = train(config_of("in memory", HEAD), tmp_path / "run", store=store)
    (note,) = record.notes
    assert "energies jump and forces are not smooth where another neighbour becomes one of the 2 nearest" in note
    assert note in run_summary(record, tmp_path / "run")["notes"]
    model = load_model(tmp_path / "run" / "model", dtype=torch.float64)
    # the first atom is as far from the third as from the fourth, whose own neighbours are unlike
    ends = [
        Atoms("Cu5", [[0, 0, 0], [0, 2.3, 0], [2.5, 0, 0], [-2.5 + d, 0, 0], [-2.5, 2.4, 0]]) for d in (-1e-7, 1e-7)
    ]
    jump, smooth = (
        np.ptp([float(model.predict(from_ase(one, CUTOFF, max_neighbours=most))["energy"].mean) for one in ends])
        for most in (2, None)
    )
    assert jump > 1e-5 > 1e-8 > smooth  # both have moved by 2e-7 Angstrom
    energies = {key: value for key, value in HEAD.items() if key != "forces"}
    assert train(config_of("in memory", energies), tmp_path / "energies", store=store).notes == []


def test_a_cutoff_beyond_that_of_the_store_is_refused_unless_the_run_began_with_it(
    copper: Path, tmp_path: Path
) -> None:
    config = config_of(copper, HEAD, cutoff=5.0)
    words = r"model.cutoff = 5, but the edges of the store end at its cutoff of 4\.2.*at most"
    with pytest.raises(InputError, match=words):
        train(config, tmp_path / "run")
    assert plan_run(config, begun=True).branches[0].model.model.to_json()["cutoff"] == 5.0
    data = config.data.model_copy(update={"edges": False})
    assert plan_run(config.model_copy(update={"data": data})).branches[0].model.edges is False


def test_branches_share_the_smallest_cutoff_and_errors_name_the_branch(copper: Path) -> None:
    table = config_of(copper, HEAD).to_json()
    own = {key: table.pop(key) for key in ("data", "split", "heads")}
    branches = [{"name": name, **own} for name in ("near", "far")]
    cutoffs = {"near": 4.0, "far": 5.0}
    stores = {name: MemoryStore(cells_of(cutoff), {"cutoff": cutoff}) for name, cutoff in cutoffs.items()}
    plan = plan_run(BranchedConfig.parse({**table, "branches": branches}), stores)
    assert [branch.model.model.to_json()["cutoff"] for branch in plan.branches] == [4.0, 4.0]
    asked = {**table, "model": {**table["model"], "cutoff": 4.5}, "branches": branches}
    with pytest.raises(InputError, match=r"branch near: model\.cutoff = 4\.5"):
        plan_run(BranchedConfig.parse(asked), stores)


def cells_of(cutoff: float, max_neighbours: int | None = None) -> list[Any]:
    generator = np.random.default_rng(0)
    crystals = (crystal(3.6, generator) for _ in range(12))
    return [from_ase(one, cutoff, fields=LABELS, max_neighbours=max_neighbours) for one in crystals]


@pytest.mark.parametrize(
    "space, sentence",
    [
        ({"model.cutoff": {"type": "float", "low": 3.0, "high": 4.5}}, r'search\.space\."model\.cutoff" = 4\.5'),
        ({"model.cutoff": {"type": "categorical", "choices": [4.0, 6.0]}}, r'search\.space\."model\.cutoff" = 6'),
        ({"model.hidden_dim": {"type": "int", "low": 8, "high": 64}}, r"model\.cutoff = 5"),
    ],
)
def test_every_cutoff_that_a_campaign_may_try_is_held_against_the_store(
    space: dict[str, Any], sentence: str, copper: Path, tmp_path: Path
) -> None:
    table = config_of(copper, HEAD, cutoff=5.0).to_json()
    objective = {"trials": 2, "objective": "valid/energy/mae"}
    settings = campaign_settings({**table, "search": {**objective, "space": space}}, tmp_path / "CAMPAIGN.toml")
    with pytest.raises(InputError, match=sentence):
        check_campaign(settings, space_of(settings.search.space))


def test_edges_that_an_envelope_silences_are_counted_and_without_a_cutoff_there_is_no_envelope(
    grains: MemoryStore, tmp_path: Path
) -> None:
    head = {"kind": "scalar", "field": "grains"}
    default = train(config_of("in memory", head, cutoff=5.0), tmp_path / "default", store=grains)
    assert load_model(tmp_path / "default" / "model").settings.to_json()["envelope"] == "none"
    assert default.notes == []
    record = train(config_of("in memory", head, cutoff=5.0, envelope="polynomial"), tmp_path / "run", store=grains)
    (note,) = record.notes
    train_part = plan_run(config_of("in memory", head), grains).branches[0].split.train
    batch = grains.read(train_part)
    vectors = batch.positions[batch.senders] + batch.edge_shifts - batch.positions[batch.receivers]
    lengths = vectors.norm(dim=1)
    share = float((lengths >= 5.0).double().mean())
    assert 0.5 < share < 1 and f"of the {len(lengths)} edges of the training part ({share:.1%})" in note
    assert note in run_summary(record, tmp_path / "run")["notes"]


@pytest.mark.parametrize(
    "model, norm, note",
    [("painn", "smooth", ""), ("painn", "paper", "force constants of perfect crystals"), ("pna", "", "energies jump")],
)
def test_forces_that_are_not_smooth_are_noted(
    model: str, norm: str, note: str, trained: Trained, tmp_path: Path
) -> None:
    changes = {"model__norm": norm} if norm else {}
    record = trained("run", model, until=1, **changes)
    assert record.notes == read_record(tmp_path / "run").notes and len(record.notes) == bool(note)
    assert note in run_summary(record, tmp_path / "run").get("notes", "")
    assert trained("charges", model, [{"kind": "scalar", "field": "charge"}], until=1, **changes).notes == []
