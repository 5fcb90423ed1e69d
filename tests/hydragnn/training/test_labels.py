"""What is wrong or open in the labels of a data set is said before the first step."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.datasets.fit import precision_notes
from hydragnn.graphs import Field, from_ase, graph_from_arrays
from hydragnn.models import parse_head
from hydragnn.record import RunRecord
from hydragnn.runs import train
from hydragnn.scripts.showing import run_summary

CUTOFF = 3.5
ENERGY = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
FORCES = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")
STRESS = Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target")
HEAD = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [4]}


def copper(number: int) -> Atoms:
    """A rattled crystal with labels of EMT."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.08, seed=number)
    atoms.calc = EMT()
    labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), "stress": atoms.get_stress()}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    return atoms


def run(store: MemoryStore, out: Path, seed: int = 0, **head: Any) -> RunRecord:
    table = {
        "data": {"store": "in memory"},
        "split": {"train": 0.6, "valid": 0.2, "seed": seed},
        "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 4, "cutoff": CUTOFF},
        "heads": [{**HEAD, **head}],
        "train": {"epochs": 1},
    }
    return train(RunConfig.parse(table), out, store=store)


def store_of(frames: list[Atoms], *fields: Field, optional: tuple[str, ...] = ()) -> MemoryStore:
    graphs = [from_ase(atoms, CUTOFF, fields=fields, optional=optional) for atoms in frames]
    named = [graph.with_texts({"name": [f"frame {i}"]}) for i, graph in enumerate(graphs)]
    return MemoryStore(named, {"cutoff": CUTOFF})


@pytest.mark.parametrize("sign", [1, -1])
def test_forces_of_the_other_sign_are_noted(sign: int, tmp_path: Path) -> None:
    frames = [copper(number) for number in range(40)]
    for atoms in frames:
        atoms.calc.results["forces"] *= sign
    record = run(store_of(frames, ENERGY, FORCES), tmp_path / "run", forces="forces")
    turned = [note for note in record.notes if "scale = -1.0" in note]
    assert len(turned) == (sign < 0) and all("pairs of neighbouring structures" in note for note in turned)


def test_forces_without_parity_are_taken_as_vectors_with_a_note(tmp_path: Path) -> None:
    plain = Field(name="forces", on="node", shape=(3,), role="target")
    frames = [copper(number) for number in range(10)]
    record = run(store_of(frames, ENERGY, plain), tmp_path / "a", forces="forces")
    assert [note for note in record.notes if "forces is taken as a vector" in note and 'parity = "vector"' in note]
    vectors = run(store_of(frames, ENERGY, FORCES), tmp_path / "b", forces="forces")
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
    return store_of(frames, ENERGY)


def test_references_that_composition_leaves_open_are_noted(tmp_path: Path) -> None:
    three = [{"Cu": 1, "Ag": 1}, {"Cu": 1, "Au": 2, "Pt": 1}, {"Ag": 2, "Cu": 1}]
    (note,) = run(mixtures(three), tmp_path / "open").notes
    assert "3 are independent, and there are 4 elements" in note
    assert "those of Pt, Au are a choice" in note  # copper and silver are determined
    assert not run(mixtures([*three, {"Cu": 1, "Pt": 1}]), tmp_path / "closed").notes
    assert not run(mixtures(three), tmp_path / "given", references=ENERGIES).notes


def test_a_species_without_reference_is_named_with_its_structure(tmp_path: Path) -> None:
    frames = [copper(number) for number in range(10)]
    for atoms in (frames[8], frames[8].calc.atoms):
        atoms.numbers[2] = 79
    store = store_of(frames, ENERGY)
    message = r"graph 'frame 8' of the validation part has atomic number 79 \(Au\), for which energy has no reference"
    with pytest.raises(InputError, match=message):
        for seed in range(50):  # until a split puts it into the validation part
            run(store, tmp_path / f"{seed}", seed=seed)


def test_energies_that_float32_rounds_are_noted_and_refused(tmp_path: Path) -> None:
    rough = Field(name="energy", on="graph", unit="eV", role="target")
    words = r'digits are lost; build the store with dtype = "float64" for energy'
    for offset, is_lost in ((0.0, False), (-45000.123, True)):
        frames = [copper(number) for number in range(20)]
        for atoms in frames:
            atoms.calc.results["energy"] += offset * len(atoms)
        store = store_of(frames, rough)
        notes = list(precision_notes(store))
        # 180,000 has 17 bits before the point, so that 24 bits end at 2^-6
        assert [note for note in notes if "energy: float32" in note and "stand 0.016 apart" in note] == notes
        assert bool(notes) == is_lost
        with pytest.raises(InputError, match=words) if is_lost else nullcontext():
            run(store, tmp_path / f"rough {offset}")
        exact = store_of(frames, ENERGY)
        assert not list(precision_notes(exact))
        run(exact, tmp_path / f"exact {offset}")


def test_a_stress_without_a_volume_is_refused_whatever_its_source(tmp_path: Path) -> None:
    graphs = [from_ase(copper(number), CUTOFF, fields=[ENERGY, FORCES, STRESS]) for number in range(10)]
    whole = graphs[0]
    place, values = (whole.positions, whole.senders, whole.receivers), {"nodes": whole.nodes, "graphs": whole.graphs}
    flat = graph_from_arrays(*place, fields=whole.fields.values(), **values)
    store = MemoryStore([flat.with_texts({"name": ["slab"]}), *[one.with_texts({"name": ["x"]}) for one in graphs]])
    with pytest.raises(InputError, match=r"graph 'slab' has a label of stress and no volume"):
        for seed in range(50):  # until a split uses it
            run(store, tmp_path / f"{seed}", seed=seed, stress="stress")


def test_labels_are_counted_in_every_part(tmp_path: Path) -> None:
    frames = [copper(number) for number in range(20)]
    for atoms in frames[::2]:
        del atoms.calc.results["stress"]
    record = run(store_of(frames, ENERGY, FORCES, STRESS, optional=("stress",)), tmp_path / "run", stress="stress")
    assert record.labels["energy"] == record.parts
    assert sum(record.labels["stress"].values()) == 10
    counts = record.labels["stress"]
    words = ", ".join(f"{part} {counts[part]} of {total}" for part, total in record.parts.items() if total)
    assert run_summary(record, tmp_path)["labels"] == {"stress": words}


def test_extensive_fields_count_per_node_unless_somebody_says_otherwise() -> None:
    head = {"kind": "scalar", "field": "energy", "pool": "sum", "extensive": True}
    for table, expected in ((head, True), ({**head, "per_node": False}, False), ({**head, "extensive": False}, False)):
        (target,) = parse_head(table).targets({"energy": ENERGY})
        assert target.per_node is expected
    assert parse_head(parse_head(head).to_json()) == parse_head(head)
