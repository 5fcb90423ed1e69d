"""Exchange with torch_geometric in both directions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.neighborlist import neighbor_list

from hydragnn.graphs import Field, concatenate, edge_vectors, from_pyg, from_voronoi, graph_from_arrays, to_pyg
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.graphs.validate import validate
from tests.refusals import refuses

Data = torch_geometric("data").Data

X = Field(name="x", on="node", shape=(2,))
Y = Field(name="y", on="graph", role="target")
WEIGHT = Field(name="edge_attr", on="edge")
EDGES = torch.tensor([[0, 1], [1, 0]])


def test_a_batch_comes_back_from_torch_geometric_bit_for_bit() -> None:
    generator = np.random.default_rng(0)
    batch = concatenate([from_voronoi(generator.random((n, 3)), [1.0, 2.0, 1.0], [True, True, False]) for n in (4, 9)])
    back = concatenate([from_pyg(data, batch.fields.values()) for data in to_pyg(batch)])
    assert torch.equal(batch.positions, back.positions)
    assert torch.equal(batch.senders, back.senders) and torch.equal(batch.receivers, back.receivers)
    assert torch.equal(edge_vectors(batch), edge_vectors(back))
    assert torch.equal(batch.cell, back.cell) and torch.equal(batch.periodic, back.periodic)
    assert all(torch.equal(batch[name], back[name]) for name in batch.fields)


def test_messages_flow_as_in_torch_geometric() -> None:
    edge_index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, edge_index=edge_index)
    graph = from_pyg(data, [X])
    convolution = torch_geometric("nn").SimpleConv(aggr="sum")
    ours = torch.zeros(3, 2).index_add(0, graph.receivers, graph["x"][graph.senders])
    torch.testing.assert_close(convolution(x, edge_index), ours)


def test_scalars_kept_as_columns_and_graph_labels_kept_as_rows_are_accepted() -> None:
    more = {"y": torch.tensor([[3.0]]), "edge_index": EDGES, "edge_attr": torch.tensor([[1.0], [2.0]])}
    graph = validate(from_pyg(Data(pos=torch.zeros(2, 3), x=torch.ones(2, 2), **more), [X, Y, WEIGHT]))
    assert graph["y"].tolist() == [3.0]
    assert graph["edge_attr"].tolist() == [2.0, 1.0]


def test_data_without_positions_or_edges_is_legal() -> None:
    graph = validate(from_pyg(Data(x=torch.ones(3, 2)), [X, Y], optional=["y"]))
    assert (graph.num_nodes, graph.num_edges, graph.dim) == (3, 0, 0)


def test_batches_of_torch_geometric_stack_our_graph_fields() -> None:
    energy = Field(name="energy", on="graph", shape=(2,), role="target")
    graphs = [graph_from_arrays(np.zeros((n, 2)), [], [], fields=[energy], graphs={"energy": [n, 1]}) for n in (1, 2)]
    stacked = torch_geometric("data").Batch.from_data_list(to_pyg(concatenate(graphs)))
    assert stacked.energy.tolist() == [[1.0, 1.0], [2.0, 1.0]]
    assert stacked.cell.shape == (2, 3, 3)


def bent_crystal(periodic: tuple[bool, bool, bool] = (True, True, True)) -> Atoms:
    """A cell without right angles whose atoms lie some cells away from each other."""
    atoms = bulk("NaCl", "rocksalt", a=4.0, cubic=True)
    atoms.set_cell(atoms.cell.array @ [[1.0, 0.1, 0.0], [0.0, 0.9, 0.05], [0.2, 0.0, 1.1]], scale_atoms=True)
    atoms.rattle(0.1, seed=0)
    turns = np.random.default_rng(0).integers(-2, 3, (len(atoms), 3)) * np.array(periodic)
    atoms.positions += turns @ atoms.cell.array
    atoms.pbc = periodic
    return atoms


Edges = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Centres, neighbours, images in cell vectors and vectors from centre to neighbour, as ASE finds them."""


def data_of(**values: Any) -> Any:
    data = Data()
    for key, value in values.items():
        data[key] = torch.as_tensor(np.ascontiguousarray(value))
    return data


def data_like(program: str, a: Atoms, edges: Edges) -> Any:
    """Return the graph in the names, signs, units and dtypes of a program."""
    i, j, images, vectors = edges
    cell, shifts, lengths = a.cell.array, images @ a.cell.array, np.linalg.norm(vectors, axis=1)
    pos, ends, back, whole, turns = {"pos": a.positions}, [i, j], [j, i], cell[None], images.astype(float)
    crystal = {"frac_coords": a.get_scaled_positions(wrap=False)}
    own = {**pos, "edge_index": ends, "cell": cell, "pbc": a.pbc.astype(np.int32)}
    small = {"cell": whole.astype(np.float32), "distances": lengths.astype(np.float32), "natoms": [len(a)]}
    parts: dict[str, dict[str, Any]] = {
        "hydragnn": {**own, "edge_shifts": shifts},
        "turned": {**own, "edge_shifts": -shifts},  # the same names with the other sign: lengths tell
        "mace": {"positions": a.positions, "edge_index": ends, "shifts": shifts, "unit_shifts": images, "cell": cell},
        "nequip": {**own, "edge_cell_shift": images.astype(np.float32), "cell": whole, "pbc": a.pbc[None]},
        "fairchem": {**small, "pos": a.positions.astype(np.float32), "edge_index": back, "cell_offsets": images},
        "sevenn": {**pos, "edge_index": ends, "pbc_shift": turns, "cell_lattice_vectors": cell, "edge_vec": vectors},
        "matgl": {**crystal, "edge_index": ends, "pbc_offset": images, "lattice": whole, "bond_dist": lengths},
        "schnetpack": {"_positions": a.positions, "_idx_i": i, "_idx_j": j, "_offsets": shifts, "_cell": whole}
        | {"_pbc": a.pbc},
        "e3nn": {**pos, "edge_index": ends, "edge_shift": turns, "lattice": whole},
        "cdvae": {**crystal, "edge_index": back, "to_jimages": images, "cell": cell},
    }
    return data_of(**parts[program])


CENTRE_RECEIVES = {"nequip", "fairchem", "schnetpack", "cdvae"}
PROGRAMS = [*CENTRE_RECEIVES, "hydragnn", "turned", "mace", "sevenn", "matgl", "e3nn"]


@pytest.mark.parametrize("nearest", [None, 3], ids=["all neighbours", "three neighbours"])
@pytest.mark.parametrize("periodic", [(True, True, True), (True, True, False)], ids=["crystal", "slab"])
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_edges_of_every_program_have_the_vectors_of_ase(program: str, periodic: Any, nearest: int | None) -> None:
    atoms = bent_crystal(periodic)
    i, j, images, vectors = neighbor_list("ijSD", atoms, 3.3)
    if nearest:
        rank = np.argsort(np.linalg.norm(vectors, axis=1), kind="stable")
        chosen = np.sort(np.concatenate([rank[i[rank] == centre][:nearest] for centre in range(len(atoms))]))
        i, j, images, vectors = i[chosen], j[chosen], images[chosen], vectors[chosen]
    data = data_like(program, atoms, (i, j, images, vectors))
    data.number = torch.arange(len(i))
    graph = validate(from_pyg(data, [Field(name="number", on="edge")]))
    number = graph["number"].long().numpy()
    ends = (graph.receivers, graph.senders) if program in CENTRE_RECEIVES else (graph.senders, graph.receivers)
    assert np.array_equal(ends[0], i[number]) and np.array_equal(ends[1], j[number])
    expected = vectors[number] if program in CENTRE_RECEIVES else -vectors[number]
    np.testing.assert_allclose(edge_vectors(graph).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(graph.cell[0].numpy(), atoms.cell.array, rtol=1e-6)
    assert graph.periodic[0].tolist() == list(periodic)


def test_cells_and_flags_may_have_any_usual_form() -> None:
    atoms = fcc111("Cu", (2, 2, 2), vacuum=5.0)
    edges = neighbor_list("ijSD", atoms, 3.0)
    for pbc in (atoms.pbc, atoms.pbc[None], atoms.pbc.astype(np.int64), atoms.pbc.astype(np.float32)):
        data = data_like("hydragnn", atoms, edges)
        data.pbc, data.cell = torch.as_tensor(pbc), torch.as_tensor(atoms.cell.array[None])
        assert from_pyg(data).periodic[0].tolist() == [True, True, False]
    ends = np.array([0, 1]), np.array([1, 0]), np.zeros((2, 3)), edges[3][:2]
    assert not from_pyg(data_like("hydragnn", Atoms("H2", [[0, 0, 0], [0, 0, 0.7]]), ends)).periodic.any()


def lengths_of(data: Any) -> torch.Tensor:
    i, j = data.edge_index
    return (data.pos[j] - data.pos[i] + data.edge_shifts).norm(dim=1)[:, None]


def changed(**values: Any) -> Any:
    """Data in the names of the public HydraGNN, with some attributes changed or (None) taken away."""
    atoms = bent_crystal()
    data = data_like("hydragnn", atoms, neighbor_list("ijSD", atoms, 3.3))
    for key, value in values.items():
        data[key] = None if value is None else value(data)
    return Data(**{key: value for key, value in data.to_dict().items() if value is not None})


FORMS: dict[str, Callable[[Any], Any]] = {
    "lists": lambda value: value.tolist(),
    "arrays": lambda value: value.numpy(),
    "a leading axis": lambda value: value[None],
}


@pytest.mark.parametrize("form", FORMS)
def test_shifts_may_have_any_usual_form(form: str) -> None:
    usual = from_pyg(changed(pbc=None))
    other = from_pyg(changed(pbc=None, edge_shifts=lambda d: FORMS[form](d.edge_shifts)))
    assert torch.equal(edge_vectors(other), edge_vectors(usual)) and other.periodic.all()


def test_what_is_no_length_of_edges_says_nothing_of_images() -> None:
    atoms = Atoms("OH2", [[0, 0, 0], [0.96, 0, 0], [0, 0.96, 0]], cell=[9, 9, 9])
    i, j, vectors = neighbor_list("ijD", atoms, 1.2)
    bonds, road = torch.ones(len(i)), torch.as_tensor(np.linalg.norm(vectors, axis=1) * [1, 2, 1, 1])
    for values in ({"edge_attr": bonds}, {"edge_attr": bonds[:, None].expand(-1, 4)}, {"edge_weight": road}):
        data = data_of(pos=atoms.positions, edge_index=[i, j], cell=atoms.cell.array, pbc=[False] * 3, **values)
        assert from_pyg(data).num_edges == 4


def test_a_cell_is_only_a_box_where_the_data_say_so() -> None:
    apart = changed(edge_shifts=None, pbc=lambda d: torch.zeros(3, dtype=torch.bool))
    assert not from_pyg(apart).periodic.any()


UNREAD, NO_ATTRIBUTE = "no reading of {} gives edges that agree with {}", "by {}, and no attribute says through"
NOT_UNDERSTOOD: list[tuple[dict[str, Any], str]] = [
    ({"bond_image": lambda d: d.edge_shifts, "edge_shifts": None}, "graph 3: the attribute bond_image seems to say"),
    ({"edge_shifts": lambda d: d.edge_shifts * 0.7}, "edge_shifts are not zero but they are no whole numbers of cell"),
    ({"cell": None, "pbc": None}, "edge_shifts are not zero but there is no cell"),
    ({"edge_length": lambda d: torch.full((len(d.edge_shifts),), 2.0)}, UNREAD.format("edge_shifts", "edge_length")),
    ({"unit_shifts": lambda d: torch.zeros_like(d.edge_shifts)}, UNREAD.format("unit_shifts", "the declared cutoff")),
    ({"edge_attr": lengths_of, "edge_shifts": None, "pbc": None}, NO_ATTRIBUTE.format("edge_attr")),
    ({"edge_shifts": lambda d: d.edge_shifts.T}, "edge_shifts of shape .* is not .edges, 3"),
    ({"pbc": lambda d: "TTF"}, "pbc = 'TTF' is not one flag per axis"),
    ({"edge_shifts": None}, "where an image is .* away, and nothing says through which images"),
    ({"edge_shifts": None, "pbc": None}, "graph 3 has a cell and does not say which axes repeat; give periodic .pbc"),
]


@pytest.mark.parametrize(("changes", "message"), NOT_UNDERSTOOD, ids=[message for _, message in NOT_UNDERSTOOD])
def test_images_that_are_not_understood_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    refuses(message, from_pyg, changed(**changes), cutoff=3.3, name="graph 3")


def test_lengths_through_images_beside_no_shift_cell_or_flags_are_refused() -> None:
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True) * 2
    i, j, lengths = neighbor_list("ijd", atoms, 2.9)
    words = f"long by its positions and .* {NO_ATTRIBUTE.format('edge_weight')}"
    refuses(words, from_pyg, data_of(pos=atoms.positions, edge_index=[i, j], edge_weight=lengths))


def test_two_attributes_that_disagree_are_refused() -> None:
    atoms = bulk("Cu", cubic=True)
    data = data_like("mace", atoms, neighbor_list("ijSD", atoms, 3.0))
    data.unit_shifts = data.unit_shifts.flip(0)
    refuses("shifts and unit_shifts say different shifts", from_pyg, data)


POS, THREE = torch.zeros(2, 3), {"x": torch.ones(3, 2)}
WRONG: dict[str, tuple[dict[str, Any], list[Field], str]] = {
    "missing attribute": (THREE, [X, Y], "graph 7: .* no attribute y"),
    "index out of range": ({**THREE, "edge_index": torch.tensor([[0], [3]])}, [X], "receivers: node index 3"),
    "transposed edges": ({**THREE, "edge_index": torch.zeros(4, 2, dtype=torch.int64)}, [X], "transpose it"),
    "NaN": ({"x": torch.full((3, 2), torch.nan)}, [X], "field x: nan"),
    "floats": ({"pos": POS, "edge_index": EDGES.float()}, [], "float32 values are no node indices"),
    "truth values": ({"pos": POS, "edge_index": EDGES.bool()}, [], "bool values are no node indices"),
    "a node that is not there": ({"pos": POS, "edge_index": 5 * EDGES}, [], "node index 5 is out of range"),
    "a negative node": ({"pos": POS, "edge_index": -EDGES}, [], "node index -1 is out of range"),
    "positions on one axis": ({"pos": torch.zeros(2), "edge_index": EDGES}, [], "is not .nodes, 2. or .nodes, 3."),
    "one position": ({"pos": torch.tensor(0.0), "edge_index": EDGES}, [], "is not .nodes, 2. or .nodes, 3."),
}


@pytest.mark.parametrize(("values", "fields", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(values: dict[str, Any], fields: list[Field], message: str) -> None:
    refuses(message, from_pyg, Data(**values), fields, name="graph 7")


@pytest.mark.parametrize("key", ["cell", "pbc", "edge_shifts", "pos"])
def test_long_doubles_are_numbers_like_others(key: str) -> None:
    values = {"pos": torch.eye(3)[:2], "cell": np.eye(3) * 4, "pbc": np.ones(3), "edge_shifts": np.zeros((2, 3))}
    longer = {**values, key: np.asarray(values[key]).astype(np.longdouble)}
    one, other = (from_pyg(Data(edge_index=EDGES, **given)) for given in (values, longer))
    for name in ("positions", "cell", "periodic"):
        assert torch.equal(getattr(one, name), getattr(other, name))
