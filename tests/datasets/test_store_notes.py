"""Stores count the graphs that are not what their author thinks, and call one of each kind by its name."""

import json
import shutil
from pathlib import Path
from typing import Any

import ase.io
import meshio
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.neighborlist import neighbor_list

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, examine_store, finish_store, open_store, store_info
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays
from hydragnn.graphs.defects import fill_values
from hydragnn.graphs.pyg import torch_geometric
from tests.datasets.conftest import edit_manifest
from tests.refusals import refuses

PLATE = {"kind": "mesh", "files": ["*.vtu"]}


NOTES = [
    "several components in 1 of 2 graphs, for example graph 'torn.vtu' (32 components of 96 nodes)",
    "coincident nodes in 1 of 2 graphs, for example graph 'torn.vtu' (96 nodes at 25 places)",
]


def test_a_torn_mesh_is_named_by_build_info_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a square of 4 x 4 in 32 triangles, once with shared points and once with points of every triangle's own
    side = np.arange(5.0)
    points = np.stack([*(axis.ravel() for axis in np.meshgrid(side, side)), np.zeros(25)], axis=1)
    corner = (np.arange(4)[:, None] * 5 + np.arange(4)).reshape(-1, 1)
    cells = (corner[:, None] + [[0, 1, 5], [1, 6, 5]]).reshape(-1, 3)
    meshio.write(tmp_path / "shared.vtu", meshio.Mesh(points, [("triangle", cells)]))
    torn = meshio.Mesh(points[cells.ravel()], [("triangle", np.arange(96).reshape(-1, 3))])
    meshio.write(tmp_path / "torn.vtu", torn)
    monkeypatch.chdir(tmp_path)
    built = hydragnn.build_store(PLATE, tmp_path / "p.h5", quiet=True)
    checked = examine_store(tmp_path / "p.h5")
    assert checked.problems == []
    for notes in (built.notes, store_info(tmp_path / "p.h5").notes, checked.notes):
        assert [note.split(":")[0] for note in notes] == NOTES
    assert json.loads(json.dumps(built.to_json()))["notes"] == checked.notes


def lone(number: int) -> GraphBatch:
    return graph_from_arrays(np.eye(3), [0, 1], [1, 2 if number % 2 == 0 else 0])


def test_parts_count_as_one_store_does(tmp_path: Path) -> None:
    for part, numbers in enumerate(([0, 2], [4, 1, 3], [5])):
        with StoreWriter(tmp_path / "s.h5", [], dim=3, part=part) as writer:
            for number in numbers:
                writer.write(lone(number))
    finish_store(tmp_path / "s.h5", 3)
    info = store_info(tmp_path / "s.h5")
    assert info.notes == tuple(examine_store(tmp_path / "s.h5").notes)
    (note,) = info.notes
    assert note.startswith("lone nodes in 3 of 6 graphs, for example graph 3 (1 of 3 nodes)")
    # defects that a manifest cannot have are damage
    edit_manifest(tmp_path / "s.h5", lambda table: table["parts"][1]["defects"]["lone nodes"].update(first=9))
    refuses("is damaged", open_store, tmp_path / "s.h5")


def test_a_cutoff_in_other_units_than_positions_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ase.io.write("a.xyz", [Atoms("Cu"), bulk("Cu", cubic=True), bulk("Ag", cubic=True)])
    with pytest.raises(InputError, match=r"any of the 2 graphs of several nodes are within the cutoff of 0\.36"):
        hydragnn.build_store({"kind": "ase", "files": ["a.xyz"], "cutoff": 0.36}, "a.h5", quiet=True)
    assert not Path("a.h5").exists()
    ase.io.write("b.xyz", [Atoms("Cu"), Atoms("Ag")])
    assert hydragnn.build_store({"kind": "ase", "files": ["b.xyz"], "cutoff": 0.36}, "b.h5", quiet=True).notes == ()


def test_a_model_of_edges_does_not_train_where_no_graph_has_one(tmp_path: Path) -> None:
    charge, size = Field(name="charge", on="node"), Field(name="size", on="graph", role="target")
    with StoreWriter(tmp_path / "s.h5", [charge, size], dim=3) as writer:
        for number in range(20):
            values = {"nodes": {"charge": [number, 1.0]}, "graphs": {"size": float(number)}}
            writer.write(graph_from_arrays(np.eye(2, 3), [], [], fields=[charge, size], **values))
    model = {"kind": "schnet", "hidden_dim": 4, "num_layers": 1}
    heads = [{"kind": "scalar", "field": "size"}]
    config = {"data": {"store": str(tmp_path / "s.h5")}, "model": model, "heads": heads, "train": {"epochs": 1}}
    words = r"none of the 20 graphs of several nodes has an edge, and model schnet learns from edges"
    refuses(words, hydragnn.train, config, tmp_path / "run", quiet=True)


def test_edges_of_lists_agree_with_the_declared_cutoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graphs = []
    for seed in range(3):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.08, seed=seed)
        i, j, images = neighbor_list("ijS", atoms, 3.6)
        arrays = {"pos": atoms.positions, "edge_index": np.stack([i, j]), "edge_shifts": images @ atoms.cell.array}
        arrays |= {"cell": atoms.cell.array, "pbc": np.ones(3, dtype=np.int32)}
        graphs.append(torch_geometric("data").Data(**{key: torch.tensor(value) for key, value in arrays.items()}))
    torch.save(graphs, "list.pt")
    table = {"kind": "pyg", "files": ["list.pt"], "attributes": {"cutoff": 3.6}}
    assert hydragnn.build_store(table, "p.h5", quiet=True).notes == ()
    with pytest.raises(InputError, match=r"list\.pt, graph 0: no reading of edge_shifts .* declared cutoff of 2"):
        hydragnn.build_store({**table, "attributes": {"cutoff": 2.0}}, "q.h5", quiet=True)
    edit_manifest(Path("p.h5"), lambda table: table["attributes"].update(cutoff=2.6))
    problems = examine_store(Path("p.h5")).problems
    assert len(problems) == 3 and all("beyond the cutoff of 2.6" in problem for problem in problems)
    assert "graph 'list.pt#1': edge" in problems[1]


def test_a_check_counts_stress_without_a_volume_and_names_fields_that_lost_digits(tmp_path: Path) -> None:
    energy = Field(name="energy", on="graph", role="target")
    stress = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target")
    with StoreWriter(tmp_path / "p.h5", [energy, stress], dim=3) as writer:
        for number in range(6):
            cell = np.diag([4.0, 4.0, 4.0 if number < 4 else 0.0])
            values = {"energy": torch.tensor(-144000.0 + 0.05 * number), "stress": torch.zeros(3, 3)}
            periodic = [True, True, number < 4]
            fields = {"fields": [energy, stress], "graphs": values}
            writer.write(graph_from_arrays([[0.0] * 3, [1.0] * 3], [0], [1], cell=cell, periodic=periodic, **fields))
    checked = examine_store(tmp_path / "p.h5")
    assert checked.problems == []
    # numbers of single precision near 144,000 stand 2^-6 apart
    flat, digits = checked.notes
    assert flat.startswith("stress without a volume in 2 of 6 graphs, for example graph 4 (stress)")
    assert digits.startswith("energy: float32 numbers as large as 1.44e+05 stand 0.016 apart")


ROWS = [f"{20 + number % 7},{number % 3}" for number in range(30)]
FILLED: dict[str, Any] = {"kind": "tables", "files": ["nodes.csv"], "edges": "edges.csv", "undirected": True}
FIELDS = ({"name": "t", "on": "node"}, {"name": "y", "on": "node", "role": "target"})


def filled(folder: Path, mark: str, **changes: Any) -> tuple[str, ...]:
    """Return the notes on a store of a table with three marks among the targets."""
    rows = ["t,y", *(f"{row.partition(',')[0]},{mark}" if n in (4, 5, 9) else row for n, row in enumerate(ROWS))]
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    (folder / "edges.csv").write_text("sender,receiver\n" + "".join(f"{n},{(n + 1) % 30}\n" for n in range(30)))
    table = {**FILLED, "fields": [FIELDS[0], {**FIELDS[1], **changes}]}
    return hydragnn.build_store(table, folder / "n.h5", quiet=True).notes


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize(
    "mark", ["-999", "-9999.0", "9999", "-999.9", "1e20", "9.96921e36", "-32768", "-3.4028235e+38"]
)
def test_numbers_that_stand_for_missing_values_are_named(
    mark: str, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not -99 < float(mark) * scale < 900:  # what is between is usual
        (note,) = filled(tmp_path, mark, scale=scale)
        assert note.startswith(
            f"fill values in 1 of 1 graphs, for example graph '0' (3 x {float(mark) * scale:.6g} in y)"
        )
        assert note.endswith("say missing_value for the field in the build file, and optional = true if it is a target")
        assert examine_store(tmp_path / "n.h5").notes == [note]
        shutil.rmtree(tmp_path / "n.h5")
    with pytest.raises(InputError, match=r"field y: nan in row 4 \(3 in all\).*optional = true"):
        filled(tmp_path, mark, scale=scale, missing_value=float(mark))
    assert filled(tmp_path, mark, scale=scale, missing_value=float(mark), optional=True) == ()
    labels = open_store(tmp_path / "n.h5")[:]["y"].flatten()
    assert labels.isnan().nonzero().flatten().tolist() == [4, 5, 9] and float(labels.nansum()) == pytest.approx(
        27 * scale
    )


USUAL = [[900.0, 1000, 1013.25, 999], [99.9, 0.999, 20, 9.99], [1e14, 3e15, 1e18, 1e20], [0, 0, 1e5], [-100, 0, 100]]
USUAL += [[-9999.0, -9998, -9997], [-999.0, -1500, 2000], [999.0, 999], [1e20, 1e20]]


@pytest.mark.parametrize("values", USUAL)
def test_usual_numbers_stand_for_themselves(values: list[float]) -> None:
    field = Field(name="x", on="node", dtype="float64")
    assert not fill_values(graph_from_arrays(None, [0], [1], fields=[field], nodes={"x": np.array(values)}))
