"""Stores whose edges came about otherwise than those of training are refused; those in which members see the same are not."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from hydragnn.architectures import ArchitectureSettings, architecture_of
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.reading.structures import check_edges, check_lengths
from hydragnn.graphs.atomic import from_ase
from tests.ensemble.conftest import CUTOFF


def settings(kind: str, **changes: Any) -> ArchitectureSettings:
    """Those of a member that looks 4 Angstrom far."""
    table = {"kind": kind, "cutoff": 4.0, "envelope": "polynomial", **changes}
    return architecture_of(kind).Settings.parse(table)


SMOOTH, COUNTING, OPEN = settings("painn"), settings("pna"), settings("schnet", envelope="none")


@pytest.mark.parametrize(
    ("members", "given", "refused"),
    [
        ([SMOOTH, COUNTING], {"cutoff": 5.0}, False),
        ([SMOOTH], {"cutoff": 4.0}, False),  # as far as it looks
        ([SMOOTH], {"cutoff": 9.0}, False),  # messages end smoothly before
        ([COUNTING], {}, False),  # nothing is known
        ([SMOOTH], {"cutoff": 3.9}, True),
        ([SMOOTH, COUNTING], {"cutoff": 9.0}, True),  # counts what is beyond, too
        ([OPEN], {"cutoff": 9.0}, True),
        ([OPEN], {"cutoff": 4.5}, True),
        ([SMOOTH], {"cutoff": 5.0, "max_neighbours": 12}, True),
    ],
)
def test_stores_in_which_members_see_other_neighbours_are_refused(
    members: list[ArchitectureSettings], given: Mapping[str, Any], refused: bool
) -> None:
    words = r"built with (cutoff|max_neighbours) = .*; build it in the same way"
    with pytest.raises(InputError, match=words) if refused else nullcontext():
        check_edges(members, {"cutoff": 5.0}, given)
    check_edges(members, {}, {"cutoff": 5.0, **given})


def test_a_prediction_and_an_evaluation_on_shorter_edges_are_refused_at_the_door(
    ensemble: Path, frames: list[Atoms], tmp_path: Path
) -> None:
    graphs = [from_ase(atoms, 3.0) for atoms in frames[:3]]
    short, loaded = MemoryStore(graphs, {"cutoff": 3.0}), Ensemble.load(ensemble)
    with pytest.raises(InputError, match=r"cutoff = 3, the graphs of training with cutoff = 4\.5"):
        loaded.predict(short)
    with StoreWriter(tmp_path / "short.h5", short.fields(), dim=3, attributes=short.attributes) as writer:
        writer.write(short.read(np.arange(3)))
    with pytest.raises(InputError, match="build it in the same way"):
        predict_to_file(ensemble, tmp_path / "short.h5", tmp_path / "out.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.h5"]
    wide = MemoryStore([from_ase(atoms, 6.0) for atoms in frames[:3]], {"cutoff": 6.0})
    same = MemoryStore([from_ase(atoms, CUTOFF) for atoms in frames[:3]], {"cutoff": CUTOFF})
    said = [loaded.predict(one)["energy"].mean for one in (wide, same)]
    np.testing.assert_allclose(*said, rtol=1e-5)


BOHR, ASE = {"length_unit": "bohr"}, {"source": "ase"}


@pytest.mark.parametrize(
    ("training", "given", "refused"),
    [
        *((BOHR, given, True) for given in (ASE, {"source": "npz"}, {"length_unit": "nm"})),
        (ASE, BOHR, True),
        *((BOHR, given, False) for given in ({"length_unit": "Bohr"}, {})),
        *((training, BOHR, False) for training in ({}, {"length_unit": "box"})),
        (ASE, {"source": "pyg"}, False),
    ],
)
def test_stores_with_positions_in_another_unit_are_refused(
    training: dict[str, str], given: dict[str, str], refused: bool
) -> None:
    words = r"the positions of the store are in .*, those of training in"
    with pytest.raises(InputError, match=words) if refused else nullcontext():
        check_lengths(training, given)
