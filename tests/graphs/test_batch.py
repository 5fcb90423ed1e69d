"""A batch and its topology own what follows from them, any graphs can be taken out, and far ones keep their edges in single precision."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn.conformance.smoothness import atoms_graph, energy_model
from hydragnn.datasets import MemoryStore, Normalisation
from hydragnn.graphs import Field, GraphBatch, Texts, concatenate, edge_vectors, graph_label, unbatch
from hydragnn.graphs.topology import LONG, Topology, ascending, counted_offsets, searched_offsets
from hydragnn.graphs.validate import graph_from_arrays, validate
from hydragnn.kernels import gather_multiply_sum, scatter_multiply_sum
from hydragnn.runs.preparation import normalise_store
from tests.graphs.geometry import assert_same
from tests.refusals import refuses

SIZES = (3, 1, 4, 2)
VOLUME = Field(name="volume", on="graph")
FIELDS = [
    Field(name="mass", on="node"),
    Field(name="force", on="node", shape=(2,), parity="vector", role="target"),
    Field(name="length", on="edge"),
    Field(name="energy", on="graph", role="target", dtype="float64"),
]


def graph(nodes: int, seed: int = 0, *, labelled: bool = True) -> GraphBatch:
    random = torch.Generator().manual_seed(seed)
    edges = 2 * nodes - 1
    return graph_from_arrays(
        torch.randn(nodes, 2, generator=random, dtype=torch.float64),
        torch.randint(nodes, (edges,), generator=random),
        torch.randint(nodes, (edges,), generator=random),
        fields=FIELDS if labelled else FIELDS[:-1],
        nodes={"mass": torch.rand(nodes, generator=random), "force": torch.randn(nodes, 2, generator=random)},
        edges={"length": torch.rand(edges, generator=random)},
        graphs={"energy": torch.randn(1, generator=random, dtype=torch.float64)} if labelled else {},
    )


def mixed() -> GraphBatch:
    """Four graphs, of which number 1 has no energy."""
    return concatenate([graph(size, seed, labelled=seed != 1) for seed, size in enumerate(SIZES)])


def test_sums_over_a_replaced_topology_are_sums_over_its_own_edges() -> None:
    batch = mixed()
    states = torch.arange(10.0).unsqueeze(1)
    for sums in (gather_multiply_sum, scatter_multiply_sum):
        sums(states, None, batch.topology)  # now everything derived from the old edges is there
    edges = batch.topology
    turned = replace(batch, topology=replace(edges, senders=edges.senders.flip(0)))
    fewer = replace(batch, topology=replace(edges, senders=edges.senders[:5], receivers=edges.receivers[:5]))
    for changed in (turned, fewer):
        fresh = Topology.square(changed.senders.clone(), changed.receivers.clone(), 10)
        for sums in (gather_multiply_sum, scatter_multiply_sum):
            torch.testing.assert_close(sums(states, None, changed.topology), sums(states, None, fresh))


def test_owners_and_counts_follow_replaced_offsets() -> None:
    batch = mixed()
    assert batch.owner("node").tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    assert batch.counts("node").tolist() == list(SIZES)
    assert batch.owner("node") is batch.owner("node")
    other = replace(batch, node_offsets=torch.tensor([0, 1, 4, 8, 10]))
    assert other.counts("node").tolist() == [1, 3, 4, 2]
    assert other.owner("node").tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert (batch.owner("graph").tolist(), batch.counts("graph").tolist()) == ([0, 1, 2, 3], [1] * 4)


@pytest.mark.parametrize("numbers", [[0], [1], [1, 2], [3, 0], [2, 2, 0], [0, 1, 2, 3], []], ids=str)
def test_selected_graphs_are_those_graphs_in_that_order(numbers: list[int]) -> None:
    batch = mixed()
    selected = batch.select(numbers)
    if numbers:
        validate(selected)
    assert selected.counts("node").tolist() == [SIZES[number] for number in numbers]
    assert_same(batch.select(torch.tensor(numbers, dtype=torch.int64)), selected)
    for place, number in enumerate(numbers):
        alone = graph(SIZES[number], number, labelled=number != 1)
        (actual,) = unbatch(selected.select([place]))
        assert_same(actual, alone)
        assert torch.equal(edge_vectors(actual), edge_vectors(alone))


def test_consecutive_graphs_are_views() -> None:
    batch = mixed()
    part = batch.select(slice(1, 3))
    for name in ("positions", "edge_shifts", "cell"):
        assert getattr(part, name).untyped_storage().data_ptr() == getattr(batch, name).untyped_storage().data_ptr()
    assert part["mass"].untyped_storage().data_ptr() == batch["mass"].untyped_storage().data_ptr()
    assert batch.select(slice(None)) is batch


def test_graphs_are_selected_by_a_tensor_of_flags() -> None:
    batch = mixed()
    assert_same(batch.select(batch.present("energy")), batch.select([0, 2, 3]))


REFUSED: list[tuple[Callable[[GraphBatch], object], str]] = [
    (lambda batch: batch.select(torch.tensor([True])), "flags for 4 graphs"),
    (lambda batch: batch.select([4]), "of a batch of 4; use 0 to 3"),
    (lambda batch: batch.select([-1]), "of a batch of 4; use 0 to 3"),
    (lambda batch: batch.select([0, 7]), "of a batch of 4; use 0 to 3"),
    (lambda batch: batch.with_fields({"volume": torch.ones(4)}), "values of volume, which is no field of the batch"),
    (lambda batch: batch.with_fields(fields=[VOLUME]), "field volume is declared but has no tensor"),
    (lambda batch: batch.with_fields({"force": torch.ones(10, 3)}), r"field force: shape \(10, 3\) is not \(10, 2\)"),
    (lambda batch: batch.with_fields(drop=["gap"]), "the batch has no field gap"),
    (lambda batch: batch.with_texts({"name": ["one"]}), "name: .* for 4 graphs; give a list with one text per graph"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_graphs_and_fields_that_cannot_be_are_refused(call: Callable[[GraphBatch], object], message: str) -> None:
    refuses(message, call, mixed())


def test_fields_are_replaced_added_and_dropped_with_their_tensors_and_masks() -> None:
    batch = mixed()
    values = {"mass": batch["mass"] * 2, "volume": torch.ones(4)}
    changed = batch.with_fields(values, fields=[VOLUME], drop=["length", "energy"])
    assert set(changed.fields) == {"mass", "force", "volume"}
    assert torch.equal(changed["mass"], batch["mass"] * 2)
    assert torch.equal(changed["force"], batch["force"])
    assert not changed.edges and not changed.masks
    assert changed.fields["volume"] == VOLUME and changed.present("volume").all()
    assert torch.equal(batch.with_fields({"energy": batch["energy"] + 1}).present("energy"), batch.present("energy"))
    moved = batch.with_fields({"energy": torch.ones(10)}, fields=[Field(name="energy", on="node")])
    assert "energy" not in moved.graphs and moved.present("energy").all()
    validate(moved)


def test_items_of_graphs_without_a_label_are_absent() -> None:
    batch = mixed().with_fields(masks={"force": torch.tensor([True, False, True, False])})
    present = batch.present_items("force")
    assert present is not None and present.tolist() == [True] * 3 + [False] + [True] * 4 + [False] * 2
    assert torch.equal(batch.present_items("energy"), batch.present("energy"))
    assert batch.present_items("mass") is None


def test_a_batch_in_another_dtype_keeps_its_topology_and_what_it_knows() -> None:
    batch = mixed()
    order, owner = batch.topology.by_sender, batch.owner("node")
    cast = batch.to(dtype=torch.float32)
    assert cast.positions.dtype == torch.float32 and cast["energy"].dtype == torch.float32
    assert cast.topology.by_sender is order and cast.owner("node") is owner


def test_everything_is_made_on_the_device_of_the_batch() -> None:
    """On the device ``meta``, where tensors have no values, as on a GPU."""
    batch = mixed()
    assert batch.topology.row_offsets.device.type == batch.owner("edge").device.type == "cpu"
    moved = batch.to("meta")
    meta = torch.device("meta")
    assert moved.device == meta
    edges = moved.topology
    derived = [edges.row_offsets, edges.degrees, edges.by_sender, edges.column_offsets, edges.receivers_by_sender]
    derived += [edges.edge_numbers, moved.present("mass"), moved.present("energy")]
    derived += [make(place) for make in (moved.owner, moved.counts) for place in ("node", "edge", "graph")]
    assert all(tensor.device == meta for tensor in derived)
    joined = concatenate([moved, graph(2).with_fields(drop=["energy", "mass"]).to("meta")])
    assert all(joined[name].device == joined.present(name).device == meta for name in joined.fields)


@pytest.mark.parametrize("index", [[], [0], [2, 2], [0, 0, 1, 3, 3, 3]], ids=str)
def test_row_offsets_are_the_same_counted_and_searched(index: list[int]) -> None:
    expected = [sum(entry < row for entry in index) for row in range(6)]
    for offsets in (counted_offsets, searched_offsets):
        assert offsets(torch.tensor(index, dtype=torch.int64), 5).tolist() == expected


def test_a_batch_says_on_one_line_what_it_is() -> None:
    assert repr(mixed()) == (
        "GraphBatch(4 graphs, 10 nodes, 16 edges, dim 2; mass (node), force (node), length (edge), "
        "energy (graph, masked); cpu)"
    )


def test_names_stay_with_their_graphs() -> None:
    batch = concatenate([graph(2).with_texts({"name": ["first"]}), graph(3), graph(4).with_texts({"name": ["third"]})])
    assert list(batch.names or ()) == ["first", "", "third"]
    picked = batch.select([2, 0, 2]).to(dtype=torch.float32).with_fields(drop=["mass"])
    assert list(picked.names or ()) == ["third", "first", "third"]
    assert [list(one.names or ()) for one in unbatch(batch)] == [["first"], [""], ["third"]]
    assert graph(2).names is None
    labels = [graph_label(batch, position, 10 + position) for position in range(3)]
    assert labels == ["graph 'first'", "graph 11", "graph 'third'"]


def test_names_are_read_when_they_are_asked_for_and_not_before() -> None:
    asked: list[list[int]] = []

    def read(rows: np.ndarray) -> list[str]:
        asked.append(rows.tolist())
        return [f"text {row}" for row in rows]

    batch = replace(concatenate([graph(2), graph(3), graph(4)]), texts={"name": Texts.unread(read, 3)})
    joined = concatenate([batch.select([2, 0]), batch])
    assert not asked
    assert pickle.loads(pickle.dumps(joined.names)) == ["text 2", "text 0", "text 0", "text 1", "text 2"]
    assert asked == [[2, 0], [0, 1, 2]]


RANDOM = np.random.default_rng(7)


def random_edges(rows: int, edges: int) -> Topology:
    receivers = torch.from_numpy(np.sort(RANDOM.integers(0, rows, edges)))
    return Topology.square(torch.from_numpy(RANDOM.integers(0, rows, edges)), receivers, rows)


def test_the_longest_row_and_column_are_counted_and_the_count_moves_with_the_edges_and_not_with_others() -> None:
    for rows, edges in ((1, 0), (4, 1), (9, 200)):
        topology = random_edges(rows, edges)
        ends = topology.receivers, topology.senders
        assert topology.longest == tuple(int(torch.bincount(end, minlength=1).max()) for end in ends)
    topology = random_edges(3, 60)
    assert topology.longest is not None
    moved = topology.mapped(torch.clone)
    assert moved._longest == topology.longest and topology.sharing(topology.edge_numbers, 60)._longest
    assert replace(topology, senders=topology.senders[:0], receivers=topology.receivers[:0])._longest is None


def test_what_no_cpu_has_seen_may_be_long() -> None:
    edges = torch.empty(LONG + 1, dtype=torch.int64, device="meta")
    assert Topology.square(edges, edges, 5).long_ends() == (True, True)
    assert Topology.square(edges[1:], edges[1:], 5).long_ends() == (False, False)
    hub = torch.zeros(LONG + 1, dtype=torch.int64)
    others = torch.arange(LONG + 1)
    assert Topology.square(others, hub, LONG + 1).long_ends() == (True, False)
    assert Topology.square(hub, others, LONG + 1).long_ends() == (False, True)


def test_a_prepared_topology_has_what_sorting_gives_and_is_known_to_ascend() -> None:
    for rows, edges in ((3, 0), (1, 1), (7, 90)):
        topology = random_edges(rows, edges)
        topology.prepare()
        fresh = replace(topology)
        for name in ("by_sender", "receivers_by_sender", "column_offsets", "row_offsets", "sorted_senders"):
            assert torch.equal(getattr(topology, name), getattr(fresh, name)), name
        for one in (topology, topology.mapped(torch.clone)):
            noted = ascending(one.receivers, rows)
            assert noted is not None and torch.equal(noted.offsets, one.row_offsets)
        assert ascending(topology.receivers, rows + 1) is None
        topology.receivers.add_(0)  # another version of the same tensor
        assert ascending(topology.receivers, rows) is None


def test_pairs_move_to_a_device_where_the_edges_are_already() -> None:
    edges = torch.zeros(4, dtype=torch.int64, device="meta")
    shared = Topology.square(edges, edges, 2).sharing(torch.zeros(4, dtype=torch.int64), 1)
    moved = shared.to("meta")
    assert moved.pair is not None and moved.pair.is_meta


CUTOFF = 3.4
OFFSETS = (100.0, 1e4, 5.4e6)


def single(batch: GraphBatch) -> GraphBatch:
    return batch.to(dtype=torch.float32)


def structures() -> list[Atoms]:
    """A molecule, a cell of one atom that sees its images, and a crystal."""
    crystal = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    crystal.rattle(0.1, seed=0)
    return [molecule("C2H6"), bulk("Cu", "fcc", a=3.61), crystal]


def moved(atoms: Atoms, offset: float) -> Atoms:
    copy = atoms.copy()
    copy.positions += offset * np.array([1.0, -0.7, 0.3])
    return copy


def batch_of(offset: float) -> GraphBatch:
    return concatenate([atoms_graph(moved(atoms, offset), CUTOFF) for atoms in structures()])


@pytest.mark.parametrize("offset", OFFSETS)
def test_edges_keep_their_vectors_in_single_precision_wherever_graphs_lie(offset: float) -> None:
    batch = batch_of(offset)
    # doubles have 1e-9 at the farthest offset, singles 2e-7 of lengths up to 3.4
    torch.testing.assert_close(edge_vectors(single(batch)).double(), edge_vectors(batch), rtol=0, atol=2e-6)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("attention", [{}, {"global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 4.3}}])
def test_energies_do_not_depend_on_where_graphs_lie(offset: float, attention: dict[str, object]) -> None:
    model = energy_model("painn", **attention).float()
    here, there = (model(single(batch_of(by)))["energy"].mean for by in (0.0, offset))
    torch.testing.assert_close(there, here, rtol=2e-5, atol=2e-5)


def test_what_is_kept_in_memory_for_training_keeps_edges_too() -> None:
    store = MemoryStore([atoms_graph(moved(atoms, 5.4e6), CUTOFF) for atoms in structures()])
    kept = normalise_store(store, np.arange(len(store)), [], Normalisation(), torch.float32).read(range(len(store)))
    expected = edge_vectors(store.read(range(len(store))))
    assert kept.positions.dtype == torch.float32
    torch.testing.assert_close(edge_vectors(kept).double(), expected, rtol=0, atol=2e-6)


def test_graphs_that_are_not_far_keep_every_bit() -> None:
    """Also beside one that is far, and where there are no nodes."""
    near = concatenate([atoms_graph(atoms, CUTOFF) for atoms in structures()])
    torch.testing.assert_close(single(near).positions, near.positions.float(), rtol=0, atol=0)
    both = single(concatenate([near, atoms_graph(moved(molecule("CH4"), 1e5), CUTOFF)]))
    torch.testing.assert_close(both.positions[: near.num_nodes], near.positions.float(), rtol=0, atol=0)
    whole = near.select([0])
    nodes, edges = (torch.tensor([0, 0, count, count]) for count in (8, whole.num_edges))
    cell, periodic = whole.cell.repeat(3, 1, 1), whole.periodic.repeat(3, 1)
    bare = whole.with_fields(drop=whole.fields)
    padded = replace(bare, cell=cell, periodic=periodic, node_offsets=nodes, edge_offsets=edges)
    torch.testing.assert_close(single(padded).positions, whole.positions.float(), rtol=0, atol=0)
    doubles = atoms_graph(moved(molecule("CH4"), 1e5), CUTOFF)
    assert doubles.to(dtype=torch.float64).positions is doubles.positions
