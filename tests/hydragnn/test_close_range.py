"""Atoms nearer than in training repel each other, whatever the weights say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

import hydragnn
from hydragnn.architectures import architecture_of
from hydragnn.base.files import read_sealed, write_sealed
from hydragnn.config import config_from_table
from hydragnn.conformance.network import force_gaps
from hydragnn.datasets import Normalisation, StoreWriter
from hydragnn.datasets.normalisation import Scale
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, from_ase
from hydragnn.graphs.batch import edge_vectors
from hydragnn.graphs.joining import concatenate
from hydragnn.kernels import Topology
from hydragnn.layers import CloseRange, CloseRangeLimits, limits_from_json
from hydragnn.layers.close_range import bonds, nuclear_repulsion, screening, shortest_distances
from hydragnn.models import GraphModel, TrainedModel, build_from_description, load_model, parse_head, save_model
from hydragnn.models.branched import build_branched
from hydragnn.models.description import degree_statistics, make_description
from hydragnn.models.executor import Eager
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import graph_statistics, statistics_cache
from hydragnn.runs import train as train_run
from hydragnn.runs.graph_statistics import Closest, stiffness_of

CUTOFF = 4.5
KINDS = ("schnet", "painn", "mace", "egnn", "equivariant_transformer")
FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
]
HEAD = {"kind": "energy", "field": "energy", "forces": "forces", "hidden_dims": [8]}
EARLIER = CloseRangeLimits(
    shortest=((29, 29, 2.0), (29, 79, 2.1)), share=0.75, species=(29, 79), cutoff=CUTOFF, energies={"energy": 0.5}
)
LIMITS = replace(EARLIER, stiffness=((29, 29, 0.3), (29, 79, 0.2)))
DIMERS = [("Cu", "Cu", 2.0), ("Cu", "Au", 2.1), ("Au", "Au", 0.75 * 2.72)]


def alloy(seed: int, rattle: float = 0.05) -> Atoms:
    atoms = bulk("Cu", "fcc", a=3.8, cubic=True)
    atoms.symbols[seed % 4] = "Au"
    atoms.rattle(rattle, seed=seed)
    return atoms


def graph(atoms: Atoms) -> GraphBatch:
    return from_ase(atoms, CUTOFF).to(dtype=torch.float64)


def model_of(kind: str, limits: CloseRangeLimits | None = LIMITS, seed: int = 0, scale: float = 1.0) -> GraphModel:
    settings = architecture_of(kind).Settings.parse({"kind": kind, "hidden_dim": 8, "num_layers": 2, "cutoff": CUTOFF})
    statistics = replace(degree_statistics([graph(alloy(0))]), species=(29, 79))
    shape: Any = {"inputs": ["atomic_numbers"], "dim": 3, "statistics": statistics}
    description = make_description(settings, [parse_head(HEAD)], FIELDS, **shape)  # type: ignore[arg-type]
    model = build_from_description(replace(description, close_range=limits), seed).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def values(model: GraphModel, batch: GraphBatch) -> tuple[torch.Tensor, torch.Tensor]:
    predicted = model(batch)
    return predicted["energy"].mean.detach(), predicted["forces"].mean.detach()


def copper(length: float, more: str = "") -> Atoms:
    """Two atoms of copper at a distance, and one of gold beside them."""
    return Atoms(f"Cu2{more}", [[0, 0, 0], [length, 0, 0], [0.8, 2.3, 0.4]][: 3 if more else 2])


def test_repulsion_is_that_of_ziegler_biersack_and_littmark() -> None:
    lengths = np.array([0.05, 0.3, 1.0, 2.5])
    a = 0.46850 / (14**0.23 + 32**0.23)
    x = lengths / a
    phi = 0.18175 * np.exp(-3.19980 * x) + 0.50986 * np.exp(-0.94229 * x)
    phi += 0.28022 * np.exp(-0.40290 * x) + 0.02817 * np.exp(-0.20162 * x)
    inverse, product = (torch.from_numpy(table[[14] * 4, [32] * 4]) for table in screening())
    ours = nuclear_repulsion(torch.from_numpy(lengths), inverse, product).numpy()
    np.testing.assert_allclose(ours, 14.399645 * 14 * 32 / lengths * phi, rtol=1e-12)
    near = nuclear_repulsion(torch.tensor([1e-9], dtype=torch.float64), inverse[:1], product[:1])
    np.testing.assert_allclose(near * 1e-9, 14.399645 * 14 * 32, rtol=1e-4)  # bare nuclei


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_repel_below_nine_tenths_of_the_shortest_distance_whatever_the_weights(kind: str) -> None:
    for seed, scale in ((0, 1.0), (1, 1.5)):
        model = model_of(kind, seed=seed, scale=scale)
        for first, second, shortest in DIMERS:
            lengths = np.geomspace(0.05, 0.9 * shortest, 25)
            pairs = [graph(Atoms([first, second], [[0, 0, 0], [length, 0, 0]])) for length in lengths]
            energies, forces = values(model, concatenate(pairs))
            assert bool((energies.diff() < 0).all())
            assert bool((forces[1::2, 0] > 0).all()) and bool((forces[::2, 0] < 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_where_atoms_are_as_in_training(kind: str) -> None:
    batch = concatenate([graph(alloy(seed)) for seed in range(3)])
    for ours, theirs in zip(values(model_of(kind), batch), values(model_of(kind, None), batch)):
        assert torch.equal(ours, theirs)


def test_forces_are_minus_the_gradient_in_every_window() -> None:
    model = model_of("painn", seed=3, scale=2.0)
    for length in (0.9, 1.2, 1.7, 1.85, 1.91, 1.95, 1.99):  # of 2.0: nuclei, softer, seen as longer, as it is
        batch = graph(copper(length, "Au"))
        assert max(error for error, _ in force_gaps(model, batch)) < 1e-6


@pytest.mark.parametrize("share", [0.987, 0.945, 0.525])
def test_second_derivatives_are_continuous_where_windows_begin_and_end(share: float) -> None:
    model = model_of("schnet", seed=2, scale=2.0)

    def slope(length: float) -> float:
        ends = [float(values(model, graph(copper(length + shift)))[1][1, 0]) for shift in (-2e-6, 2e-6)]
        return (ends[1] - ends[0]) / 4e-6

    below, above = slope(2.0 * share - 5e-6), slope(2.0 * share + 5e-6)
    assert abs(above - below) < 1e-2 * max(abs(above), abs(below), 1.0)


def test_walls_of_earlier_models_stay() -> None:
    wall, topology = CloseRange(EARLIER).double(), Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    vectors = torch.tensor([[1.2, 0.0, 0.0], [-1.2, 0.0, 0.0]], dtype=torch.float64)
    seen, repulsion = wall(vectors, topology, torch.tensor([29, 29]))
    assert repulsion is not None and float(repulsion.sum()) == pytest.approx(
        62.1, abs=0.1
    )  # with its end at the cutoff
    assert float(seen.norm(dim=1).min()) == pytest.approx(0.92 * 2.0)


def crystal(system: str, lattice: float = 1.0) -> Atoms:
    atoms = bulk("Ni" if system == "AuNi" else system, "fcc", a=lattice * CONSTANTS[system], cubic=True)
    if system == "AuNi":
        atoms.symbols[[0, 1]] = "Au"
    return atoms


CONSTANTS = {"Cu": 3.61, "Al": 4.05, "Ag": 4.09, "AuNi": 3.85}


@pytest.mark.parametrize("rattle", [0.04, 0.1])
@pytest.mark.parametrize("system", CONSTANTS)
def test_pairs_go_on_with_the_forces_of_training_and_end_with_those_of_nuclei(system: str, rattle: float) -> None:
    random, forces, graphs = np.random.default_rng(0), FIELDS[2], []
    for seed in range(60):
        atoms = crystal(system, random.uniform(0.97, 1.04)).repeat((2, 1, 1))
        atoms.rattle(rattle, seed=seed)
        atoms.calc = EMT()
        labels = {"forces": torch.from_numpy(atoms.get_forces())}
        graphs.append(from_ase(atoms, 5.0).to(dtype=torch.float64).with_fields(labels, fields=[forces]))
    closest = Closest(species=sorted({int(n) for n in atoms.numbers}), cutoff=5.0, angstrom=1.0)
    limits = closest.limits(np.array([closest.row(one) for one in graphs]))
    stiffness = stiffness_of(concatenate(graphs), "forces", limits)
    wall = CloseRange(replace(limits, stiffness=tuple(stiffness))).double()
    still = crystal(system).repeat(2)
    number, other = int(still.numbers[0]), int(still.get_distances(0, range(1, len(still)), mic=True).argmin()) + 1
    apart = still.get_distance(0, other, mic=True, vector=True)
    shortest = shortest_distances(limits)[number, still.numbers[other]]
    for length in (0.9 * shortest, 0.8 * shortest, 0.8, 0.5):
        ends = torch.tensor([[length, 0.0, 0.0], [-length, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        pair = torch.tensor([number, int(still.numbers[other])])
        energy = wall(ends, Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2), pair)[1].sum()
        ours = -2 * float(torch.autograd.grad(energy, ends)[0][0, 0])
        pushed = still.copy()
        pushed.positions[0] += apart * (1 - length / np.linalg.norm(apart))
        pushed.calc = EMT()
        truth = -float(pushed.get_forces()[0] @ apart) / np.linalg.norm(apart)
        if length < 1:
            at = torch.tensor([length], dtype=torch.float64, requires_grad=True)
            tables = (torch.from_numpy(table[[number], [still.numbers[other]]]) for table in screening())
            truth = -float(torch.autograd.grad(nuclear_repulsion(at, *tables).sum(), at)[0])
        assert 0.5 < ours / truth < 2, (length, ours, truth)


def test_energies_are_extensive_and_independent_of_the_batch() -> None:
    model = model_of("painn", seed=3)
    near = copper(1.5, "Au")
    apart = near.copy()
    apart.positions += [30, 0, 0]
    graphs = [graph(near), graph(alloy(1)), graph(near + apart)]
    together, _ = values(model, concatenate(graphs))
    alone = torch.cat([values(model, one)[0] for one in graphs])
    torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-12)
    assert float(alone[2]) == pytest.approx(2 * float(alone[0]), rel=1e-12)


def test_rare_pairs_have_the_share_of_covalent_radii_of_the_nearest_pair() -> None:
    graphs = [from_ase(alloy(0), CUTOFF) for _ in range(19)] + [from_ase(bulk("Cu", cubic=True), CUTOFF)]
    closest = Closest(species=[29, 79], cutoff=CUTOFF, angstrom=1.0)
    limits = closest.limits(np.array([closest.row(one) for one in graphs]))
    assert [pair[:2] for pair in limits.shortest] == [(29, 29)]  # in 20 graphs
    table, sums = shortest_distances(limits), bonds()
    vectors, ends = edge_vectors(graphs[0]).norm(dim=1), graphs[0].nodes["atomic_numbers"]
    mixed = ends[graphs[0].senders] != ends[graphs[0].receivers]
    assert table[29, 79] <= float(vectors[mixed].min()) + 1e-6
    assert table[29, 79] == table[79, 29] == pytest.approx(limits.share * sums[29, 79])
    assert table[8, 26] == pytest.approx(limits.share * sums[8, 26])  # never seen


def test_units_of_positions_do_not_change_the_repulsion() -> None:
    bohr = 0.529177210903
    one, other = (CloseRange(replace(LIMITS, angstrom=unit)).double() for unit in (1.0, bohr))
    vectors = torch.tensor([[1.1, 0.0, 0.0], [-1.1, 0.0, 0.0]], dtype=torch.float64)
    topology = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    species = torch.tensor([29, 79])
    ours, theirs = one(vectors, topology, species)[1], other(vectors / bohr, topology, species)[1]
    assert ours is not None and theirs is not None
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_branches_repel_in_their_own_units_of_positions() -> None:
    bohr, alone = 0.529177210903, model_of("schnet").description
    limits = (replace(LIMITS, angstrom=bohr), LIMITS)
    descriptions = [replace(alone, branch=name, close_range=one) for name, one in zip(("first", "second"), limits)]
    views = build_branched(descriptions, 0).views
    for view, unit in zip(views, (bohr, 1.0)):
        near, usual = (from_ase(copper(length / unit), CUTOFF) for length in (0.9 * 2.0, 1.01 * 2.0))
        for batch, contacts in ((near, True), (usual, False)):
            graph_of_view = view.eval().message_graph(batch, edge_vectors(batch))
            assert (graph_of_view.repulsion is not None) == contacts


def test_saved_models_repel_and_those_saved_earlier_do_not(tmp_path: Path) -> None:
    model, near = model_of("schnet"), graph(copper(1.2))
    save_model(tmp_path, model, Normalisation())
    loaded = load_model(tmp_path, torch.float64).model
    assert loaded.description.close_range == LIMITS
    torch.testing.assert_close(values(loaded, near)[0], values(model, near)[0], rtol=1e-6, atol=0)  # limits in float32
    content = json.loads(json.dumps(read_sealed(tmp_path / "model.json")))
    assert content["version"] == 4  # programs that know no stiffness refuse it
    former = content["close_range"] | {"crowding": [[29, 14.0], [79, 18.0]], "energies": {"energy": [0.5, [[29, 0.3]]]}}
    del former["species"]  # as 0.2.0 wrote it
    del former["stiffness"]
    assert limits_from_json(former) == EARLIER
    with pytest.raises(ValueError, match="between 0 and 1"):
        limits_from_json(former | {"stiffness": [[29, 29, 1.5]]})
    del content["close_range"], content["model"]["repulsion"]
    write_sealed(tmp_path / "model.json", content | {"version": 2})
    earlier = load_model(tmp_path, torch.float64).model
    assert torch.equal(values(earlier, near)[0], values(model_of("schnet", None), near)[0])


def test_members_as_one_repel() -> None:
    models = [model_of("schnet", seed=seed).requires_grad_(False) for seed in (0, 1)]
    batch = concatenate([graph(copper(1.3, "Au")), graph(alloy(1))])
    members = [TrainedModel(model=one, normalisation=Normalisation(), executor=Eager(model=one)) for one in models]
    for (predicted, _), one in zip(TrainedStack(members).predict_with_states(batch), models):
        torch.testing.assert_close(predicted["forces"].mean, values(one, batch)[1], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("repulsion", ["zbl", "none"])
def test_runs_measure_the_limits_of_their_training_part(
    tmp_path: Path, repulsion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Mock(side_effect=stiffness_of)
    monkeypatch.setattr(graph_statistics, "stiffness_of", fit)
    monkeypatch.setattr(graph_statistics, "SAMPLE", 3)
    monkeypatch.setattr(statistics_cache, "LEAST_GRAPHS", 1)
    energy, forces = replace(FIELDS[1], unit="Ha"), replace(FIELDS[2], unit="Ha/Angstrom")
    with StoreWriter(tmp_path / "s.h5", [FIELDS[0], energy, forces], dim=3) as writer:
        for seed in range(30):
            labels = {"energy": torch.tensor([-4.0 - 0.01 * seed]).double(), "forces": torch.randn(4, 3) * 0.1}
            writer.write(from_ase(alloy(seed, 0.1), CUTOFF).with_fields(labels, fields=[energy, forces]))
    config = {
        "data": {"store": str(tmp_path / "s.h5")},
        "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "cutoff": CUTOFF, "repulsion": repulsion},
        "heads": [HEAD],
        "train": {"epochs": 1},
    }
    hydragnn.train(config, tmp_path / "run")
    train_run(
        config_from_table(config | {"train": {"epochs": 2}}, tmp_path / "CONFIG.toml"), tmp_path / "again", until=1
    )
    assert fit.call_count == (repulsion == "zbl")  # the second has it from the cache
    trained = load_model(tmp_path / "run" / "model")
    limits = trained.model.description.close_range
    assert (limits is None) == (repulsion == "none")
    if limits is not None:
        assert [pair[:2] for pair in limits.shortest] == [(29, 29), (29, 79), (79, 79)] and limits.cutoff == CUTOFF
        assert limits.species == (29, 79)
        sample = fit.call_args.args[0]  # with the graphs of the shortest distances
        nearest = Closest(species=[29, 79], cutoff=CUTOFF, angstrom=1.0).row(sample)[:3]
        np.testing.assert_allclose(1 / nearest, [length for *_, length in limits.shortest], rtol=1e-12)
        scale: Scale = trained.normalisation.scales["energy"]
        assert limits.energies["energy"] == pytest.approx(27.2114 * scale.std[0], rel=1e-5)
        near = trained.predict(from_ase(copper(0.3), CUTOFF))["energy"].mean
        assert 27.2114 * float(near) == pytest.approx(5841.4, rel=0.05)
    # a run that was begun by 0.2.0 goes on with its wall
    path = tmp_path / "again" / "model" / "model.json"
    content = json.loads(json.dumps(read_sealed(path)))
    if repulsion == "zbl":
        content["close_range"]["stiffness"] = None
    write_sealed(path, content)
    hydragnn.train(tmp_path / "again", resume=True)
    later = load_model(path.parent).model.description.close_range
    assert later == (limits and replace(limits, stiffness=None))
