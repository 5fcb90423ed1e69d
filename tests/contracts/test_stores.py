"""Every store gives back what was written, bit for bit, in any order, to any number of readers, from any number of writers."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import hydragnn.datasets.writer
from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, MemoryStore, StoreWriter, check_store, convert_store, finish_store, open_store
from hydragnn.graphs import Field, GraphBatch, Topology, concatenate

STRUCTURE = ("positions", "senders", "receivers", "edge_shifts", "cell", "periodic", "node_offsets", "edge_offsets")


def field_values(field: Field, items: int, rng: np.random.Generator) -> torch.Tensor:
    shape = (items, *field.shape)
    if field.classes:
        return torch.from_numpy(rng.integers(int(field is NUMBERS), field.classes, shape))
    values = rng.standard_normal(shape)
    symmetric = values + values.swapaxes(-1, -2) if field.parity == "tensor" else values
    return torch.from_numpy(symmetric).to(field.torch_dtype)


def a_graph(nodes: int, edges: int, dim: int, fields: Sequence[Field], seed: int, periodic: bool = False) -> GraphBatch:
    rng = np.random.default_rng(seed)
    items = {"node": nodes, "edge": edges, "graph": 1}
    drawn = {field.name: field_values(field, items[field.on], rng) for field in fields}
    flags, apart = (
        torch.tensor([[periodic, False, periodic and dim == 3]]),
        np.arange(nodes)[:, None] * np.eye(3)[1, :dim] * 5,
    )
    side = 5.0 + rng.random()
    images = rng.integers(-1, 2, (edges, dim)) * flags[0, :dim].numpy()
    return GraphBatch(
        positions=torch.from_numpy(rng.standard_normal((nodes, dim)) + apart),
        topology=Topology.square(
            torch.from_numpy(rng.integers(0, nodes, edges)),
            torch.from_numpy(np.sort(rng.integers(0, nodes, edges))),
            nodes,
        ),
        edge_shifts=torch.from_numpy(images * side),
        cell=torch.from_numpy(np.eye(3)[None] * side * periodic),
        periodic=flags,
        node_offsets=torch.tensor([0, nodes]),
        edge_offsets=torch.tensor([0, edges]),
    ).with_fields(drawn, fields=fields)


NUMBERS = Field(name="atomic_numbers", on="node", classes=119, dtype="int64")
ENERGY = Field(name="energy", on="graph", dtype="float64", unit="eV", role="target")
BOND = Field(name="bond", on="edge", shape=(2,))
FORCES = {dim: Field(name="forces", on="node", shape=(dim,), parity="vector", role="target") for dim in (2, 3)}
STRESS = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", dtype="float64")
PHASE = Field(name="phase", on="graph", classes=4, dtype="int64")


def several(dim: int, fields: Sequence[Field], periodic: Sequence[bool] = (False,)) -> list[GraphBatch]:
    sizes = [(1 + k % 6, (k * 5) % 14) for k in range(23)]
    return [a_graph(n, e, dim, fields, k, periodic[k % len(periodic)]) for k, (n, e) in enumerate(sizes)]


def with_missing_labels() -> list[GraphBatch]:
    """Graphs of which some lack forces, some energy, and some both."""
    return [
        a_graph(2 + k % 4, k % 9, 3, [NUMBERS, *([ENERGY] * (k % 2)), *([FORCES[3]] * (k % 3 > 0)), BOND], k)
        for k in range(23)
    ]


def with_texts() -> list[GraphBatch]:
    """Graphs of which some have a name, some a phase in words, and some neither."""
    return [
        graph.with_texts({key: [f"{key} {k} \N{GREEK SMALL LETTER ALPHA}"] for key in ("name", "phase")[: k % 3]})
        for k, graph in enumerate(several(3, [ENERGY]))
    ]


def with_minus_zero() -> list[GraphBatch]:
    """Shifts and positions of minus zero, whose bits are not those of zero."""
    graphs = several(3, [NUMBERS])
    return [replace(graph, edge_shifts=-torch.zeros_like(graph.edge_shifts)) for graph in graphs]


CORNERS = {
    "three dimensions": several(3, [NUMBERS, ENERGY, FORCES[3], BOND, STRESS, PHASE]),
    "mixed periodicity": several(3, [NUMBERS, ENERGY], periodic=(False, False, True, False, False)),
    "missing labels": with_missing_labels(),
    "two dimensions": several(2, [FORCES[2], BOND]),
    "no geometry": several(0, [NUMBERS, BOND, PHASE]),
    "no edges": [a_graph(1 + k % 3, 0, 3, [NUMBERS, BOND], k) for k in range(23)],
    "no fields": several(3, []),
    "minus zero": with_minus_zero(),
    "texts": with_texts(),
}


def assert_same(actual: GraphBatch, expected: GraphBatch) -> None:
    """Equal in every bit, dtype and shape."""
    pairs = {name: (getattr(actual, name), getattr(expected, name)) for name in STRUCTURE}
    assert dict(actual.fields) == dict(expected.fields)
    assert {key: list(texts) for key, texts in actual.texts.items()} == dict(expected.texts)
    pairs |= {name: (actual[name], expected[name]) for name in expected.fields}
    pairs |= {f"mask of {name}": (actual.present(name), expected.present(name)) for name in expected.fields}
    for name, (left, right) in pairs.items():
        assert left.dtype == right.dtype, name
        assert left.shape == right.shape, name
        assert left.numpy().tobytes() == right.numpy().tobytes(), name


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks of seven graphs, so that small stores have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydragnn.datasets.writer, "BLOCK_GRAPHS", 7)
        yield


def written(graphs: list[GraphBatch], path: Path, parts: int = 0) -> GraphStore:
    everything = concatenate(graphs)
    fields, more = list(everything.fields.values()), {"dim": everything.dim, "attributes": {"unit": "Angstrom"}}
    if not parts:
        with StoreWriter(path, fields, **more) as writer:
            for start in range(0, len(graphs), 3):
                writer.write(concatenate(graphs[start : start + 3]))
        return open_store(path)
    for part in reversed(range(parts)):
        with StoreWriter(path, fields, **more, part=part) as writer:
            for graph in graphs[part * len(graphs) // parts : (part + 1) * len(graphs) // parts]:
                writer.write(graph)
    finish_store(path, parts)
    return open_store(path)


def converted(graphs: list[GraphBatch], folder: Path) -> GraphStore:
    written(graphs, folder / "first.h5", parts=2)
    convert_store(folder / "first.h5", folder / "second.bp")
    convert_store(folder / "second.bp", folder / "third.h5")
    return open_store(folder / "third.h5")


STORES: dict[str, Callable[[list[GraphBatch], Path], GraphStore]] = {
    "memory": lambda graphs, folder: MemoryStore(graphs, {"unit": "Angstrom"}),
    "HDF5": lambda graphs, folder: written(graphs, folder / "store.h5"),
    "ADIOS2": lambda graphs, folder: written(graphs, folder / "store.bp"),
    "HDF5 of three writers": lambda graphs, folder: written(graphs, folder / "store.h5", parts=3),
    "ADIOS2 of three writers": lambda graphs, folder: written(graphs, folder / "store.bp", parts=3),
    "converted": converted,
}
Case = tuple[GraphStore, GraphBatch, list[GraphBatch]]


@pytest.fixture(params=[(store, corner) for store in STORES for corner in CORNERS], ids=", ".join, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    store, corner = request.param
    graphs = CORNERS[corner]
    return STORES[store](graphs, tmp_path_factory.mktemp("stores")), concatenate(graphs), graphs


def test_everything_comes_back_bit_for_bit(case: Case) -> None:
    store, everything, graphs = case
    assert len(store) == len(graphs)
    assert store.dim == everything.dim
    assert_same(store.read(range(len(store))), everything)


def test_any_order_with_repeats_is_served(case: Case) -> None:
    store, everything, graphs = case
    rng = np.random.default_rng(0)
    reference = MemoryStore(everything)
    for size in (1, 2, 7, 40):
        indices = rng.integers(0, len(store), size)
        actual = store.read(indices)
        assert_same(actual, reference.read(indices))
        for name in STRUCTURE[:4]:
            single = torch.cat([getattr(graphs[i], name) for i in indices])
            if name in ("senders", "receivers"):
                single = single + actual.node_offsets[:-1].index_select(0, actual.owner("edge"))
            assert torch.equal(getattr(actual, name), single)


def test_no_graphs_are_a_batch_without_graphs(case: Case) -> None:
    store, everything, _ = case
    actual = store.read([])
    assert actual.num_graphs == actual.num_nodes == actual.num_edges == 0
    assert set(actual.fields) == set(everything.fields)


def test_sizes_are_known_without_payload(case: Case) -> None:
    store, everything, _ = case
    assert store.sizes().nodes.tolist() == everything.counts("node").tolist()
    assert store.sizes().edges.tolist() == everything.counts("edge").tolist()


def test_columns_hold_one_field_of_consecutive_graphs(case: Case) -> None:
    store, everything, _ = case
    for name in everything.fields:
        for start, stop in ((0, None), (4, 17), (3, 3)):
            column = store.column(name, start, stop)
            part = MemoryStore(everything).read(range(start, len(store) if stop is None else stop))
            assert np.array_equal(column.values, part[name].numpy())
            assert column.values.dtype == part[name].numpy().dtype
            assert np.array_equal(column.present, part.present(name).numpy())


def test_only_the_named_fields_are_read(case: Case) -> None:
    store, everything, _ = case
    for name in everything.fields:
        actual = store.read([2, 0], fields=[name])
        assert list(actual.fields) == [name]
        assert torch.equal(actual[name], store.read([2, 0])[name])


def test_the_fingerprint_depends_on_the_content_alone(case: Case) -> None:
    store, everything, graphs = case
    assert store.fingerprint == MemoryStore(everything).fingerprint
    assert store.fingerprint != MemoryStore(graphs[1:]).fingerprint
    moved = replace(everything, positions=everything.positions + 1.0)
    assert store.dim == 0 or store.fingerprint != MemoryStore(moved).fingerprint


def test_what_is_not_there_is_refused(case: Case) -> None:
    store, _, graphs = case
    for wrong in (-1, len(graphs)):
        with pytest.raises(InputError, match=f"no graph {wrong}; the store has {len(graphs)} graphs"):
            store.read([0, wrong])
    with pytest.raises(InputError, match="no field temperature"):
        store.read([0], fields=["temperature"])
    with pytest.raises(InputError, match="no field temperature"):
        store.column("temperature")


DISK = {"HDF5": ".h5", "ADIOS2": ".bp"}


@pytest.mark.parametrize("corner", CORNERS)
def test_hdf5_and_adios2_hold_the_same_bits_and_pass_their_check(corner: str, tmp_path: Path) -> None:
    first, second = (written(CORNERS[corner], tmp_path / f"store{suffix}", parts=2) for suffix in DISK.values())
    assert [check_store(tmp_path / f"store{suffix}") for suffix in DISK.values()] == [[], []]
    assert first.fingerprint == second.fingerprint
    assert first.attributes == second.attributes == {"unit": "Angstrom"}
    order = np.random.default_rng(3).permutation(len(first))
    assert_same(first.read(order), second.read(order))


def child(run: Callable[[], object]) -> int:
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        run()
        code = 0
    finally:
        os._exit(code)


def write_fingerprint(path: Path, graphs: Sequence[int], answer: Path) -> None:
    answer.write_text(MemoryStore(open_store(path).read(graphs)).fingerprint)


@pytest.mark.parametrize("suffix", DISK.values(), ids=DISK)
def test_three_writers_parts_are_read_by_two_ranks(suffix: str, tmp_path: Path) -> None:
    graphs, path = CORNERS["missing labels"], tmp_path / f"store{suffix}"
    written(graphs, path, parts=3)
    everything = MemoryStore(graphs)
    for rank in range(2):
        share, answer = range(rank, len(graphs), 2), tmp_path / "answer"
        number = child(partial(write_fingerprint, path, share, answer))
        assert os.waitpid(number, 0)[1] == 0
        assert answer.read_text() == MemoryStore(everything.read(share)).fingerprint


@pytest.mark.parametrize("parts", [0, 3], ids=["one writer", "three writers"])
@pytest.mark.parametrize("suffix", DISK.values(), ids=DISK)
def test_a_killed_writer_leaves_a_readable_store_or_a_clear_error(suffix: str, parts: int, tmp_path: Path) -> None:
    graphs = CORNERS["mixed periodicity"] * 2
    expected = MemoryStore(graphs).fingerprint
    start = time.monotonic()
    written(graphs, tmp_path / f"undisturbed{suffix}", parts)
    duration = time.monotonic() - start
    rng = np.random.default_rng(11)
    endings = []
    for moment in [0.0, *rng.uniform(0, 1.2, 3)]:  # the first is killed before it has done anything
        path = tmp_path / f"{moment:.4f}{suffix}"
        number = child(partial(written, graphs, path, parts))
        time.sleep(moment * duration)
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        try:
            assert open_store(path).fingerprint == expected
            assert check_store(path) == []
            endings.append("complete")
        except InputError as error:
            assert (
                "does not exist" in str(error)
                or "the writer did not finish; run it again" in str(error)
                or ("is not a store" in str(error) and not list(path.iterdir()))
            )
            endings.append("absent")
            assert written(graphs, path, parts).fingerprint == expected
            assert not list(path.glob(".*"))
        shutil.rmtree(path)
    assert "absent" in endings
