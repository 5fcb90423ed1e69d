"""The cutoff of a model, and what is wrong or open in labels, is refused or noted before the first step."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.datasets.fit import precision_notes
from hydragnn.graphs import Field, edge_vectors, from_ase, graph_from_arrays
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import space_of
from hydragnn.models import load_model, parse_head
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train
from hydragnn.runs.cutoff import check_pairs
from hydragnn.runs.plan import plan_run
from hydragnn.scripts.showing import run_summary
from tests.hydragnn.training.conftest import ENERGY_FIELD, FORCES_FIELD, Trained, branched, crystal, written
from tests.once import shared

CUTOFF = 4.2
HEAD = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8], "loss": "mse"}
THIRD_SHELL = CUTOFF / 1.5**0.5
"""Lattice constant of an fcc crystal whose third shell lies at the cutoff."""


def cells_of(cutoff: float, lattices: Any = (3.6,) * 12, max_neighbours: int | None = None) -> list[Any]:
    generator = np.random.default_rng(0)
    crystals = [crystal(generator, lattice=float(lattice), rattle=0.05) for lattice in lattices]
    fields = (ENERGY_FIELD, FORCES_FIELD)
    return [from_ase(one, cutoff, fields=fields, max_neighbours=max_neighbours) for one in crystals]


@shared
def copper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graphs = cells_of(CUTOFF, np.linspace(3.35, 3.75, 12))
    return written(tmp_path_factory.mktemp("stores") / "copper.h5", graphs, cutoff=CUTOFF)


@pytest.fixture(scope="session")
def rings() -> MemoryStore:
    """Ten rings of six grains, 3 to 12 wide, without a cutoff."""
    here = np.arange(6)
    circle, graphs = np.stack([np.cos(here * np.pi / 3), np.sin(here * np.pi / 3)], axis=1), []
    for width in np.linspace(3.0, 12.0, 10):
        ends = np.concatenate([here, (here + 1) % 6])
        size = Field(name="size", on="graph", role="target")
        graphs.append(graph_from_arrays(width * circle, ends, np.roll(ends, 6), fields=[size], graphs={"size": width}))
    return MemoryStore(graphs)


def config_of(store: Path | str, head: dict[str, Any], **model: Any) -> RunConfig:
    settings = {"kind": "schnet", "hidden_dim": 8, "num_layers": 2, "num_radial": 6, **model}
    training = {"epochs": 2, "learning_rate": 0.005, "precision": "fp64"}
    return RunConfig.parse({"data": {"store": str(store)}, "model": settings, "heads": [head], "train": training})


def energy_step(run: Path) -> float:
    """Return how much the energy of an fcc crystal changes as its third shell enters, which moves by 8e-6 Angstrom; eV per atom."""
    model = load_model(run / "model", dtype=torch.float64)
    ends = [from_ase(bulk("Cu", "fcc", a=THIRD_SHELL * factor, cubic=True), CUTOFF) for factor in (1 - 1e-6, 1 + 1e-6)]
    return float(np.ptp([float(model.predict(one)["energy"].mean[0]) for one in ends])) / 4


def test_the_default_is_the_cutoff_of_the_store_where_energies_are_continuous(copper: Path, tmp_path: Path) -> None:
    record = train(config_of(copper, HEAD), tmp_path / "run")
    settings = load_model(tmp_path / "run" / "model").description.model.to_json()
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


def test_a_cutoff_beyond_the_store_is_refused_unless_the_run_began_with_it(copper: Path, tmp_path: Path) -> None:
    config = config_of(copper, HEAD, cutoff=5.0)
    words = r"model.cutoff = 5, but the edges of the store end at its cutoff of 4\.2.*at most"
    with pytest.raises(InputError, match=words):
        train(config, tmp_path / "run")
    assert plan_run(config, begun=True).branches[0].model.model.to_json()["cutoff"] == 5.0
    data = config.data.model_copy(update={"edges": False})
    assert plan_run(config.model_copy(update={"data": data})).branches[0].model.edges is False


def test_branches_share_the_smallest_cutoff_and_errors_name_the_branch(copper: Path) -> None:
    cutoffs, heads = {"near": 4.0, "far": 5.0}, {"near": [HEAD], "far": [HEAD]}
    stores = {name: MemoryStore(cells_of(cutoff), {"cutoff": cutoff}) for name, cutoff in cutoffs.items()}
    plan = plan_run(branched(config_of(copper, HEAD), heads), stores)
    assert [branch.model.model.to_json()["cutoff"] for branch in plan.branches] == [4.0, 4.0]
    with pytest.raises(InputError, match=r"branch near: model\.cutoff = 4\.5"):
        plan_run(branched(config_of(copper, HEAD, cutoff=4.5), heads), stores)


@pytest.mark.parametrize(
    "space, sentence",
    [
        ({"model.cutoff": {"type": "float", "low": 3.0, "high": 4.5}}, r'search\.space\."model\.cutoff" = 4\.5'),
        ({"model.cutoff": {"type": "categorical", "choices": [4.0, 6.0]}}, r'search\.space\."model\.cutoff" = 6'),
        ({"model.hidden_dim": {"type": "int", "low": 8, "high": 64}}, r"model\.cutoff = 5"),
    ],
)
def test_cutoffs_of_a_campaign_are_checked(space: dict[str, Any], sentence: str, copper: Path, tmp_path: Path) -> None:
    table = config_of(copper, HEAD, cutoff=5.0).to_json()
    objective = {"trials": 2, "objective": "valid/energy/mae"}
    settings = campaign_settings({**table, "search": {**objective, "space": space}}, tmp_path / "CAMPAIGN.toml")
    with pytest.raises(InputError, match=sentence):
        check_campaign(settings, space_of(settings.search.space))


def test_edges_that_an_envelope_silences_are_counted(rings: MemoryStore, tmp_path: Path) -> None:
    head = {"kind": "scalar", "field": "size"}
    default = train(config_of("in memory", head, cutoff=5.0), tmp_path / "default", store=rings)
    assert load_model(tmp_path / "default" / "model").description.model.to_json()["envelope"] == "none"
    assert default.notes == []
    record = train(config_of("in memory", head, cutoff=5.0, envelope="polynomial"), tmp_path / "run", store=rings)
    (note,) = record.notes
    train_part = plan_run(config_of("in memory", head), rings).branches[0].split.train
    lengths = edge_vectors(rings.read(train_part)).norm(dim=1)
    share = float((lengths >= 5.0).double().mean())
    assert 0.5 < share < 1 and f"of the {len(lengths)} edges of the training part ({share:.1%})" in note
    assert note in run_summary(record, tmp_path / "run")["notes"]


@pytest.mark.parametrize(
    "model, norm, note",
    [("painn", "smooth", ""), ("painn", "paper", "force constants of perfect crystals"), ("pna", "", "energies jump")],
)
def test_forces_that_jump_are_noted(model: str, norm: str, note: str, trained: Trained, tmp_path: Path) -> None:
    changes = {"model__norm": norm} if norm else {}
    record = trained("run", model, until=1, **changes)
    assert record.notes == read_record(tmp_path / "run").notes and len(record.notes) == bool(note)
    assert note in run_summary(record, tmp_path / "run").get("notes", "")
    assert trained("charges", model, [{"kind": "scalar", "field": "charge"}], until=1, **changes).notes == []


NEAR = 3.5
STRESS = Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target")
LABEL_HEAD = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [4]}


def run(store: MemoryStore, out: Path, seed: int = 0, **head: Any) -> RunRecord:
    table = {
        "data": {"store": "in memory"},
        "split": {"train": 0.6, "valid": 0.2, "seed": seed},
        "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 4, "cutoff": NEAR},
        "heads": [{**LABEL_HEAD, **head}],
        "train": {"epochs": 1},
    }
    return train(RunConfig.parse(table), out, store=store)


def store_of(frames: list[Atoms], *fields: Field, optional: tuple[str, ...] = ()) -> MemoryStore:
    graphs = [from_ase(atoms, NEAR, fields=fields, optional=optional) for atoms in frames]
    named = [graph.with_texts({"name": [f"frame {i}"]}) for i, graph in enumerate(graphs)]
    return MemoryStore(named, {"cutoff": NEAR})


@pytest.mark.parametrize("sign", [1, -1])
def test_forces_of_the_other_sign_are_noted(sign: int, tmp_path: Path) -> None:
    frames = [crystal(number, rattle=0.08) for number in range(40)]
    for atoms in frames:
        atoms.calc.results["forces"] *= sign
    record = run(store_of(frames, ENERGY_FIELD, FORCES_FIELD), tmp_path / "run", forces="forces")
    turned = [note for note in record.notes if "scale = -1.0" in note]
    assert len(turned) == (sign < 0) and all("pairs of neighbouring structures" in note for note in turned)


def test_forces_without_parity_are_taken_as_vectors_with_a_note(tmp_path: Path) -> None:
    plain = Field(name="forces", on="node", shape=(3,), role="target")
    frames = [crystal(number, rattle=0.08) for number in range(10)]
    record = run(store_of(frames, ENERGY_FIELD, plain), tmp_path / "a", forces="forces")
    assert [note for note in record.notes if "forces is taken as a vector" in note and 'parity = "vector"' in note]
    vectors = run(store_of(frames, ENERGY_FIELD, FORCES_FIELD), tmp_path / "b", forces="forces")
    assert record.curves == vectors.curves and not vectors.notes


ENERGIES = {"Cu": -3.0, "Ag": -2.0, "Au": -4.0, "Pt": -6.0}


def mixtures(compositions: list[dict[str, int]]) -> MemoryStore:
    """Atoms far from each other, whose energies are sums over elements."""
    frames = []
    for number in range(20):
        symbols = [symbol for symbol, count in compositions[number % len(compositions)].items() for _ in range(count)]
        atoms = Atoms(symbols, positions=[[2.5 * i, 0.1 * number * i, 0] for i in range(len(symbols))])
        energy = sum(ENERGIES[symbol] for symbol in symbols) + 1e-3 * number
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        frames.append(atoms)
    return store_of(frames, ENERGY_FIELD)


def test_references_that_composition_leaves_open_are_noted(tmp_path: Path) -> None:
    three = [{"Cu": 1, "Ag": 1}, {"Cu": 1, "Au": 2, "Pt": 1}, {"Ag": 2, "Cu": 1}]
    (note,) = run(mixtures(three), tmp_path / "open").notes
    assert "3 are independent, and there are 4 elements" in note
    assert "those of Pt, Au are a choice" in note  # copper and silver are determined
    assert not run(mixtures([*three, {"Cu": 1, "Pt": 1}]), tmp_path / "closed").notes
    assert not run(mixtures(three), tmp_path / "given", references=ENERGIES).notes


def test_a_species_without_reference_is_named_with_its_structure(tmp_path: Path) -> None:
    frames = [crystal(number, rattle=0.08) for number in range(10)]
    for atoms in (frames[8], frames[8].calc.atoms):
        atoms.numbers[2] = 79
    store = store_of(frames, ENERGY_FIELD)
    message = r"graph 'frame 8' of the validation part has atomic number 79 \(Au\), for which energy has no reference"
    with pytest.raises(InputError, match=message):
        for seed in range(50):  # until a split puts it into the validation part
            run(store, tmp_path / f"{seed}", seed=seed)


def test_energies_that_float32_rounds_are_noted_and_refused(tmp_path: Path) -> None:
    rough = Field(name="energy", on="graph", unit="eV", role="target")
    words = r'digits are lost; build the store with dtype = "float64" for energy'
    for offset, is_lost in ((0.0, False), (-45000.123, True)):
        frames = [crystal(number, rattle=0.08) for number in range(20)]
        for atoms in frames:
            atoms.calc.results["energy"] += offset * len(atoms)
        store = store_of(frames, rough)
        notes = list(precision_notes(store))
        # 180,000 has 17 bits before the point, so that 24 bits end at 2^-6
        assert [note for note in notes if "energy: float32" in note and "stand 0.016 apart" in note] == notes
        assert bool(notes) == is_lost
        with pytest.raises(InputError, match=words) if is_lost else nullcontext():
            run(store, tmp_path / f"rough {offset}")
        exact = store_of(frames, ENERGY_FIELD)
        assert not list(precision_notes(exact))
        run(exact, tmp_path / f"exact {offset}")


def test_a_stress_without_a_volume_is_refused_whatever_its_source(tmp_path: Path) -> None:
    fields = [ENERGY_FIELD, FORCES_FIELD, STRESS]
    graphs = [from_ase(crystal(number, rattle=0.08), NEAR, fields=fields) for number in range(10)]
    whole = graphs[0]
    place, values = (whole.positions, whole.senders, whole.receivers), {"nodes": whole.nodes, "graphs": whole.graphs}
    flat = graph_from_arrays(*place, fields=whole.fields.values(), **values)
    store = MemoryStore([flat.with_texts({"name": ["slab"]}), *[one.with_texts({"name": ["x"]}) for one in graphs]])
    with pytest.raises(InputError, match=r"graph 'slab' has a label of stress and no volume"):
        for seed in range(50):  # until a split uses it
            run(store, tmp_path / f"{seed}", seed=seed, stress="stress")


def test_labels_are_counted_in_every_part(tmp_path: Path) -> None:
    frames = [crystal(number, rattle=0.08) for number in range(20)]
    for atoms in frames[::2]:
        del atoms.calc.results["stress"]
    store = store_of(frames, ENERGY_FIELD, FORCES_FIELD, STRESS, optional=("stress",))
    record = run(store, tmp_path / "run", stress="stress")
    assert record.labels["energy"] == record.parts
    assert sum(record.labels["stress"].values()) == 10
    counts = record.labels["stress"]
    words = ", ".join(f"{part} {counts[part]} of {total}" for part, total in record.parts.items() if total)
    assert run_summary(record, tmp_path)["labels"] == {"stress": words}


def test_extensive_fields_count_per_node_unless_somebody_says_otherwise() -> None:
    head = {"kind": "scalar", "field": "energy", "pool": "sum", "extensive": True}
    for table, expected in ((head, True), ({**head, "per_node": False}, False), ({**head, "extensive": False}, False)):
        (target,) = parse_head(table).targets({"energy": ENERGY_FIELD})
        assert target.per_node is expected
    assert parse_head(parse_head(head).to_json()) == parse_head(head)
