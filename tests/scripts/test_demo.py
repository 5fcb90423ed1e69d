"""Quickstart data: labels obey the physics they claim, and are the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.emt import EMT

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import open_store
from hydragnn.graphs import GraphBatch, concatenate, validate
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.settings import read_campaign
from hydragnn.hpo.space.points import space_of
from hydragnn.scripts.demo import make_alloys, make_plates, make_polycrystals
from hydragnn.scripts.demo.alloys import labelled_alloy
from hydragnn.scripts.demo.plates import LOSS, labelled_plate, random_plate, shares, smooth_fields, solve_conduction
from hydragnn.scripts.demo.polycrystals import conductivities, fluxes, labelled_polycrystal, microstructure

SAMPLES = {"alloys": labelled_alloy, "polycrystals": labelled_polycrystal, "plates": labelled_plate}
MAKERS = {"alloys": make_alloys, "polycrystals": make_polycrystals, "plates": make_plates}


@pytest.mark.parametrize("scale", MAKERS)
def test_the_store_holds_the_samples_of_its_seed_in_order(scale: str, tmp_path: Path) -> None:
    MAKERS[scale](tmp_path / "demo.h5", samples=5, seed=3)
    store = open_store(tmp_path / "demo.h5")
    assert len(store) == 5
    assert store.attributes["seed"] == 3 and "labels" in store.attributes
    batch = validate(store.read(range(5)))
    again = concatenate([SAMPLES[scale](number, 3) for number in range(5)])
    assert torch.equal(batch.positions, again.positions)
    assert all(torch.equal(batch[name], again[name]) for name in again.fields)
    assert sum(field.role == "target" for field in store.fields()) >= 2
    first, other = (SAMPLES[scale](0, seed).positions for seed in (3, 1))
    assert first.shape != other.shape or not torch.equal(first, other)


@pytest.mark.parametrize("scale", MAKERS)
def test_campaigns_search_two_heads_with_at_least_twelve_trials(scale: str, root: Path, tmp_path: Path) -> None:
    MAKERS[scale](tmp_path / "demo.h5", samples=3)
    campaign = root / "scripts" / "demo" / f"{scale}.toml"
    settings = read_campaign(campaign, [f"data.store={tmp_path / 'demo.h5'}"])
    check_campaign(settings, space_of(settings.search.space))
    assert settings.search.trials >= 12
    config = RunConfig.parse(settings.base)
    fields = [field for field in open_store(config.data.store).fields() if field.name in config.targets]
    assert {(field.on, field.role) for field in fields} == {("node", "target"), ("graph", "target")}


def test_no_samples_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1"):
        make_alloys(tmp_path / "demo.h5", samples=0)
    assert not (tmp_path / "demo.h5").exists()


def test_alloys_of_two_or_three_elements_carry_the_energies_and_forces_of_emt() -> None:
    for number in range(8):
        graph = labelled_alloy(number, seed=0)
        atoms = Atoms(graph["atomic_numbers"].numpy(), graph.positions.numpy(), cell=graph.cell[0].numpy())
        atoms.pbc = graph.periodic[0].numpy()
        atoms.calc = EMT()
        assert float(graph["energy"]) == pytest.approx(atoms.get_potential_energy())
        np.testing.assert_allclose(graph["forces"], atoms.get_forces(), rtol=1e-5, atol=1e-6)
    graphs = [labelled_alloy(number, seed=0) for number in range(40)]
    assert {int(graph.periodic.sum()) for graph in graphs} == {0, 2, 3}
    assert max(len(graph["atomic_numbers"].unique()) for graph in graphs) == 3
    assert all(4 <= graph.num_nodes <= 32 for graph in graphs)


def test_one_crystal_conducts_as_its_tensor_says_and_layers_in_series_across_and_in_parallel_along() -> None:
    labels, tensor = np.zeros((8, 8), dtype=np.int64), conductivities(np.array([0.4]))
    result = fluxes(labels, tensor)
    np.testing.assert_allclose(result, np.broadcast_to(tensor[0], result.shape), atol=1e-12)
    labels[4:] = 1
    values = np.array([1.0, 3.0])
    mean = fluxes(labels, values[:, None, None] * np.eye(2)).mean(axis=0)
    np.testing.assert_allclose(mean, np.diag([1 / np.mean(1 / values), values.mean()]), atol=1e-12)


def test_a_polycrystal_keeps_the_determinant_of_its_crystal_and_its_grain_fluxes_average_to_its_conductivity() -> None:
    assert (np.bincount(microstructure(np.random.default_rng(0)).ravel()) > 0).all()  # every grain's number occurs
    for number in range(5):
        graph = labelled_polycrystal(number, seed=0)
        xx, yy, xy = graph["conductivity"][0].tolist()
        # Keller 1964, Dykhne 1970: exact for every arrangement of one crystal in the plane; pixels cost some per cent
        assert xx * yy - xy**2 == pytest.approx(1.0, abs=0.1)
        total = (graph["volume"][:, None] * graph["flux"]).sum(dim=0)
        assert total.tolist() == pytest.approx([xx, xy], abs=1e-5, rel=1e-5)


def own_and_neighbours(graph: GraphBatch) -> tuple[np.ndarray, np.ndarray]:
    """A grain's own orientation; and with it the mean of its neighbours, weighed by boundary and its facing."""
    own = torch.cat([graph["orientation"], torch.ones(graph.num_nodes, 1)], dim=1)
    area = graph["area"].float()
    perimeter = torch.zeros(graph.num_nodes).index_add(0, graph.receivers, area)
    columns = [own]
    for weight in (area, area * graph["facing"][:, 0], area * graph["facing"][:, 1]):
        total = torch.zeros_like(own).index_add(0, graph.receivers, weight[:, None] * own[graph.senders])
        columns.append(total / perimeter[:, None])
    return own.numpy(), torch.cat(columns, dim=1).numpy()


def test_the_flux_in_a_grain_depends_on_its_neighbours() -> None:
    graphs = [labelled_polycrystal(number, seed=0) for number in range(60)]
    target = np.concatenate([graph["flux"].numpy() for graph in graphs])
    features = [np.concatenate(parts) for parts in zip(*map(own_and_neighbours, graphs))]
    half = len(target) // 2
    alone, together = (
        np.sqrt(((x[half:] @ np.linalg.lstsq(x[:half], target[:half], rcond=None)[0] - target[half:]) ** 2).mean())
        for x in features
    )
    # a linear model already loses a tenth of its error to the neighbours; layers of a network see further
    assert together < 0.9 * alone < 0.4


def test_plates_are_cold_on_their_pipes_and_no_hotter_than_without_them() -> None:
    for number in range(4):
        graph = labelled_plate(number, seed=0)
        assert (graph["temperature"][graph["place"] == 2] == 0).all()
        assert (graph["temperature"] >= -1e-6).all()
        # maximum principle: at the hottest point the source at most balances the loss to the air
        assert float(graph["temperature"].max()) <= 1.05 * float(graph["source"].max()) / LOSS


def test_compliance_is_close_to_the_sum_over_vertices_which_share_the_area_of_the_plate() -> None:
    graph = labelled_plate(2, seed=0)
    lumped = (graph["share"] * graph["source"] * graph["temperature"]).sum()
    # one value per vertex stands for its whole share on a mesh of ten cells across
    assert float(graph["compliance"]) == pytest.approx(float(lumped), rel=0.25)
    plate = random_plate(np.random.default_rng(0))
    width = plate.points[:, 0].max()
    holes = np.pi * (plate.pipes[:, 2] ** 2).sum()
    # pipes are polygons of at least eight sides: up to a tenth less than their circles
    assert shares(plate).sum() == pytest.approx(width - holes, abs=0.1 * holes)


def test_a_finer_mesh_changes_the_labels_little(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(4)
    plate, (conductivity, source) = random_plate(generator), smooth_fields(generator)
    coarse, _ = solve_conduction(plate, conductivity, source)
    monkeypatch.setattr("hydragnn.scripts.demo.plates.FINER", 3)
    fine, _ = solve_conduction(plate, conductivity, source)
    assert np.linalg.norm(fine - coarse) < 0.01 * np.linalg.norm(fine)
