"""Pairs searched where positions lie are those of the host, in the same order; a device that fails or errs is asked no more."""

from itertools import chain
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.graphs.atomic import REACH, neighbour_list
from hydragnn.graphs.skin import DeviceSearch, SkinList
from tests.graphs.test_skin import CUTOFF, same_edges, sheared, slab, strained, vibrating
from tests.refusals import refuses


@pytest.mark.parametrize("seed", range(24))
def test_pairs_and_their_order_are_those_of_the_host(seed: int) -> None:
    random = np.random.default_rng(seed)
    cell = random.normal(size=(3, 3)) * random.choice([0.6, 2, 6]) + np.eye(3) * random.choice([2, 5])  # skewed, tiny
    positions, periodic = random.normal(size=(int(random.integers(1, 25)), 3)) * 12, random.random(3) < 0.6
    search = DeviceSearch(2.7 * REACH)
    for _ in range(2):  # in memory that is kept
        positions += 0.1
        there = search(torch.from_numpy(positions), cell, periodic)
        for ours, host in zip(there, neighbour_list(positions, cell, periodic, 2.7), strict=True):
            np.testing.assert_array_equal(ours.numpy(), host)


def test_atoms_without_neighbours_have_no_pairs_there() -> None:
    there = DeviceSearch(2.0)(torch.tensor([[0.0, 0, 0], [9.0, 0, 0]], dtype=torch.float64), np.eye(3), [False] * 3)
    assert [tuple(one.shape) for one in there] == [(0,), (0,), (0, 3)]


def searching_there() -> SkinList:
    skin = SkinList()
    skin.searches_there = True
    return skin


def counted(monkeypatch: pytest.MonkeyPatch) -> Mock:
    search = Mock(side_effect=neighbour_list)
    monkeypatch.setattr("hydragnn.graphs.skin.neighbour_list", search)
    return search


@pytest.mark.parametrize("way", ["crystal", "changing cell", "slab", "triclinic", "outside its cell"])
def test_all_but_the_first_two_structures_are_searched_there(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    skin, on_host = searching_there(), counted(monkeypatch)
    copper = bulk("Cu", cubic=True).repeat(2)
    copper.positions += {"outside its cell": 40.0}.get(way, 0.0)
    course = {"changing cell": strained(copper, 60, 0.01), "slab": vibrating(slab(), 60, 0.03)}
    course["triclinic"] = strained(sheared(), 60, 0.01)
    for atoms in course.get(way, vibrating(copper, 60, 0.03)):
        same_edges(skin, atoms)
    assert skin.searches >= 4 and on_host.call_count == 2 and skin.searches_there


def test_atoms_that_meet_are_refused_and_another_structure_begins_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    skin, on_host, copper = searching_there(), counted(monkeypatch), bulk("Cu", cubic=True)
    for atoms in chain(vibrating(copper, 30, 0.05), [Atoms("Cu2", [(0, 0, 0), (2, 0, 0)])]):
        same_edges(skin, atoms)
    assert on_host.call_count == 3 < skin.searches
    refuses("remove the duplicate", skin.edges, np.zeros((2, 3)), np.eye(3), np.zeros(3, dtype=bool), CUTOFF)


@pytest.mark.parametrize("fault", ["fails", "errs"])
def test_bad_devices_are_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    found = DeviceSearch.__call__

    def search(self: DeviceSearch, *arguments: Any) -> Any:
        if fault == "fails":
            raise RuntimeError("no libnvrtc here")
        return tuple(one[1:] for one in found(self, *arguments))

    monkeypatch.setattr(DeviceSearch, "__call__", search)
    skin = searching_there()
    for atoms in vibrating(bulk("Cu", cubic=True), 40, 0.04):
        same_edges(skin, atoms)
    said = capsys.readouterr().err
    assert said.count("note: neighbours are searched on the CPU") == 1 and not skin.searches_there
    assert ("no libnvrtc here" if fault == "fails" else "not those of the host") in said and skin.searches > 3
