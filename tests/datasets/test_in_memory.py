"""Stores of graphs of other libraries in memory, and models that read these."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

import hydragnn
from hydragnn.datasets import build, open_store
from hydragnn.datasets.sources.registry import rule_of
from hydragnn.graphs import Field
from hydragnn.graphs.objects import graphs_in
from hydragnn.graphs.pyg import torch_geometric
from tests.refusals import refuses

PYG, LOADERS = torch_geometric("data"), torch_geometric("loader")
EDGES, COUNT = torch.tensor([[0, 1], [1, 0]]), 8


def data(number: int) -> Any:
    return PYG.Data(x=torch.tensor([number + 1.0, 2.0]), edge_index=EDGES, y=torch.tensor([float(number)]))


def hetero(number: int, kinds: tuple[str, str] = ("a", "b")) -> Any:
    graph = PYG.HeteroData(y=torch.tensor([float(number)]))
    graph[kinds[0]].x, graph[kinds[1]].x = torch.tensor([number + 1.0, 2.0]), torch.tensor([3.0, number])
    graph[kinds[0], "to", kinds[1]].edge_index = graph[kinds[1], "from", kinds[0]].edge_index = EDGES
    return graph


def network(number: int) -> Any:
    graph = networkx.Graph([(0, 1), (1, 2)], y=float(number))
    networkx.set_node_attributes(graph, {node: float(node + number) for node in graph}, "x")
    return graph


def crystal(number: int) -> Atoms:
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=number)
    atoms.calc = EMT()
    atoms.get_stress()
    atoms.info["y"], atoms.arrays["x"] = float(number), np.arange(4.0) + number
    return atoms


def moving() -> Iterator[Atoms]:
    """One structure that moves, as in a run of dynamics."""
    atoms = crystal(0)
    for number in range(COUNT):
        atoms.positions[0, 0] += 0.01
        atoms.info["y"] = float(number)
        atoms.get_potential_energy()
        yield atoms


Y = {"name": "y", "on": "graph", "role": "target"}
FIELDS: list[dict[str, Any]] = [{"name": "width", "on": "node", "key": "x", "scale": 2.0}, Y]
PHYSICS: list[dict[str, Any]] = [
    {**Y, "name": "energy"},
    {"name": "forces", "on": "node", "shape": [3], "parity": "vector", "role": "target"},
    {**Y, "name": "stress", "shape": [3, 3], "parity": "tensor"},
]
MANY, KINDS, CRYSTALS = ([make(number) for number in range(COUNT)] for make in (data, hetero, crystal))


def broken() -> Iterator[Any]:
    yield data(0)
    raise OSError("disk gone")


def crossed() -> Any:
    """A relation of kind a, of two nodes, whose third sender would be the first node of b."""
    graph = hetero(0)
    graph["a", "to", "b"].edge_index = torch.tensor([[2, 1], [1, 0]])
    return graph


def built(kind: str, graphs: Any, out: Path, **table: Any) -> Any:
    table = {"kind": kind, "fields": FIELDS, **({"cutoff": 4.0} if kind == "ase" else {}), **table}
    hydragnn.build_store(table, out, data=graphs, quiet=True)
    return open_store(out)


def loader(graphs: Any = MANY, **more: Any) -> Any:
    return LOADERS.DataLoader(graphs, **{"batch_size": 3, **more})


TAKEN: dict[str, tuple[str, Callable[[], Any]]] = {
    "structures": ("ase", lambda: CRYSTALS),
    "moving structure": ("ase", moving),
    "networks": ("networkx", lambda: map(network, range(COUNT))),
    "kinds": ("pyg", lambda: KINDS),
    "places": ("pyg", lambda: type("", (), {"__getitem__": lambda self, place: MANY[place]})()),
    "loader": ("pyg", lambda: loader(shuffle=True)),
    "loader of kinds": ("pyg", lambda: loader(KINDS)),
    "batches": ("pyg", lambda: [PYG.Batch.from_data_list(MANY[:2]), *MANY[2:]]),
    "loader of torch": ("pyg", lambda: DataLoader(MANY, 2, collate_fn=PYG.Batch.from_data_list)),
}


@pytest.mark.parametrize("form", TAKEN)
def test_graphs_in_memory_are_a_store(form: str, tmp_path: Path) -> None:
    kind, graphs = TAKEN[form]
    store = built(kind, graphs(), tmp_path / "s.h5")
    assert store[:]["y"].tolist() == [*range(COUNT)] and list(store.texts["name"])[1] == "data#1"


def test_atoms_bring_the_results_of_their_calculator(tmp_path: Path) -> None:
    graph = built("ase", CRYSTALS[3], tmp_path / "one.h5", fields=[*FIELDS, *PHYSICS])[0]
    assert graph["energy"].item() == CRYSTALS[3].get_potential_energy() and graph["width"].tolist() == [6, 8, 10, 12]
    np.testing.assert_allclose(graph["forces"], CRYSTALS[3].get_forces(), atol=1e-6)
    np.testing.assert_allclose(graph["stress"][0], CRYSTALS[3].get_stress(voigt=False), atol=1e-8)
    assert len({atoms.positions[0, 0] for atoms in [*graphs_in(moving())]}) == COUNT
    moved = built("ase", moving(), tmp_path / "moved.h5", fields=PHYSICS[:1])[:]
    assert len({*moved["energy"].tolist()}) == COUNT and moved.positions[0, 0] < moved.positions[-4, 0]


def shared_calculator() -> list[Atoms]:
    atoms = [crystal(0), crystal(1)]
    atoms[0].calc = atoms[1].calc
    return atoms


REFUSED: list[tuple[str, Callable[[], Any], dict[str, Any], str]] = [
    ("pyg", list, {}, "data: no graphs in there"),
    ("pyg", lambda: [data(0), None], {}, "graph 1 of the data is None; leave it out"),
    ("pyg", lambda: "train.pt", {}, "'train.pt' is no list, data set or generator"),
    ("pyg", lambda: {0: data(0)}, {}, "is no list, data set or generator"),
    ("pyg", lambda: [data(0), crystal(0)], {}, "data, graph 1: a Atoms is no Data of torch_geometric"),
    ("pyg", lambda: [data(0), hetero(0)], {}, "graph 1: Data and HeteroData are in one data set"),
    ("pyg", lambda: [hetero(0), crossed()], {}, r"a of relation .*: node index 2 is out of range; there are 2 nodes"),
    (
        "pyg",
        lambda: [data(0), PYG.Data(x=torch.zeros(2), y=torch.zeros(1))],
        {},
        "graph 1 and the first graph: one has",
    ),
    ("pyg", broken, {}, r"graph 1 of the data cannot be read \(OSError: disk gone\); repair"),
    ("pyg", lambda: MANY, {"transform": f"{__name__}.tenfold"}, "names no function; write package.module:name"),
    ("pyg", lambda: MANY, {"transform": f"{__name__}:on_meta"}, "a sparse, quantised or meta tensor"),
    ("pyg", lambda: MANY, {"transform": f"{__name__}:marked_later"}, "of which a build's first graph has all"),
    ("pyg", lambda: [PYG.Batch(x=torch.zeros(2, 1))], {}, "batch 0 of the data cannot be taken apart"),
    ("pyg", lambda: itertools.cycle(MANY), {}, "has no end; give every graph once"),
    ("pyg", lambda: loader(sampler=WeightedRandomSampler([1.0] * COUNT, 4)), {}, "with a sampler or collate_fn of its"),
    ("pyg", lambda: loader(sampler=RandomSampler(MANY, num_samples=2)), {}, "with a sampler or collate_fn of its own"),
    ("pyg", lambda: loader(sampler=RandomSampler(MANY, True)), {}, "with a sampler or collate_fn of its own"),
    (
        "pyg",
        lambda: LOADERS.DataLoader(MANY, batch_sampler=BatchSampler(RandomSampler(MANY, num_samples=2), 2, False)),
        {},
        "with a sampler or collate_fn of its own",
    ),
    ("pyg", lambda: DataLoader(MANY, collate_fn=crystal), {}, "with a sampler or collate_fn of its own"),
    ("pyg", lambda: LOADERS.DataLoader(MANY, batch_sampler=[[0, 0]]), {}, "with a sampler or collate_fn of its own"),
    ("networkx", lambda: [network(0), data(0)], {}, "data, graph 1: a Data is no graph of networkx"),
    (
        "networkx",
        lambda: [network(0)],
        {"fields": [{"name": "w", "on": "edge"}]},
        "edge 0 to 1 has no w; it has nothing",
    ),
    ("networkx", lambda: [network(0), network(1).to_directed()], {}, "graph 1 and the first graph: one is directed"),
    ("networkx", lambda: [networkx.Graph([(0, 1)], y="high")], {"fields": [Y]}, r"has y = \['high'\], not numbers"),
    ("ase", lambda: [crystal(0), data(0)], {}, "data, structure 1: a Data is no Atoms of ASE"),
    ("ase", lambda: crystal(0), {"index": "-1"}, "index: this is about files"),
    ("ase", shared_calculator, {"fields": PHYSICS}, "structure 0: the stored energy belongs to other positions"),
    ("ase", lambda: Atoms("Cu", calculator=EMT()), {"fields": PHYSICS}, "the calculator nothing yet; name the right"),
    ("voxels", lambda: MANY, {}, "kind = 'voxels' takes files; data are for ase, climate, networkx and pyg"),
]


@pytest.mark.parametrize(("kind", "graphs", "table", "words"), REFUSED)
def test_what_is_no_graph_in_memory_gets_a_sentence(
    kind: str, graphs: Callable[[], Any], table: dict[str, Any], words: str, tmp_path: Path
) -> None:
    refuses(words, built, kind, graphs(), tmp_path / "no.h5", **table)
    assert not (tmp_path / "no.h5").exists()


READ: list[tuple[str, Callable[[int], Any], str, Any, str]] = [
    ("pyg", data, "gin", PYG.Data(x=torch.zeros(2)), "graph 0 has not all of edge_index, x; give data like those of"),
    ("pyg", data, "gin", [data(0), network(0)], "not networkx's Graph and torch_geometric's Data"),
    ("pyg", hetero, "relational", hetero(0, ("a", "c")), "something else by node_kind"),
    ("networkx", network, "gin", KINDS, "the training store was not built of graphs like torch_geometric's HeteroData"),
]


def trained(place: Path, model: str, field: str = "y") -> Any:
    run = {"data": {"store": str(place / "s.h5")}, "model": {"kind": model, "hidden_dim": 4, "num_layers": 1}}
    hydragnn.train({**run, "heads": [{"kind": "scalar", "field": field}], "train": {"epochs": 1}}, place / "run")
    return hydragnn.load(place / "run")


@pytest.mark.parametrize(("kind", "make", "model", "wrong", "words"), READ)
def test_a_model_reads_what_its_store_was_built_of(
    kind: str, make: Callable[[int], Any], model: str, wrong: Any, words: str, tmp_path: Path
) -> None:
    graphs = [make(number) for number in range(12)]
    store = built(kind, graphs, tmp_path / "s.h5")
    loaded = trained(tmp_path, model)
    expected, module = loaded.predict(store)["y"].mean, loaded.trainable()
    for source in (graphs, iter(graphs), graphs[0], store.to_pyg(), *([loader(graphs)] if kind == "pyg" else [])):
        values = loaded.predict(source)["y"].mean
        np.testing.assert_allclose(values, expected[: len(values)], atol=1e-6)
    np.testing.assert_allclose(module(graphs)["y"].detach(), expected, atol=1e-6)
    for use in (loaded.predict, module):
        refuses(words, use, wrong)
    if make is data:
        refuses("every pair is listed in one direction", module, PYG.Data(x=torch.zeros(2), edge_index=EDGES[:, :1]))


def test_models_of_0_2_0_read_edges_of_one_direction_and_scale_what_to_pyg_did_not_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "rule_of", lambda table: {k: v for k, v in rule_of(table).items() if k != "undirected"})
    more = {"edge_index": EDGES[:, :1], "periodic": torch.zeros(1, 3, dtype=torch.bool)}
    graphs = [PYG.Data(x=torch.tensor([n, 2.0]), y=torch.tensor([float(n)]), **more) for n in range(12)]
    fields = [{"name": "x", "on": "node", "scale": 3.0}, Y]
    store, loaded = built("pyg", graphs, tmp_path / "s.h5", fields=fields, undirected=False), trained(tmp_path, "gin")
    for source in (graphs, store.to_pyg(), PYG.Batch.from_data_list([*store.to_pyg()])):
        np.testing.assert_allclose(loaded.predict(source)["y"].mean, loaded.predict(store)["y"].mean, atol=1e-6)
    assert capsys.readouterr().err.count("Data are scaled as in training (x by 3)") == 1


EDGES_GIVEN = [  # places of edges among those by receiver
    ("pyg", data, "gin", [1, 0]),
    ("pyg", hetero, "relational", [3, 2, 1, 0]),
    ("networkx", network, "gin", [1, 3, 0, 2]),
]


@pytest.mark.parametrize(("kind", "make", "model", "rows"), EDGES_GIVEN)
def test_edges_are_predicted_in_the_order_of_the_data(
    kind: str, make: Callable[[int], Any], model: str, rows: list[int], tmp_path: Path
) -> None:
    graphs = [make(number) for number in range(12)]
    for number, graph in enumerate(graphs):
        if kind == "networkx":
            networkx.set_edge_attributes(graph, float(number), "flow")
        for edges in getattr(graph, "edge_stores", [graph]) if kind == "pyg" else ():
            edges.flow = torch.arange(2.0) + number
    flow = {**Y, "name": "flow", "on": "edge"}
    store = built(kind, graphs, tmp_path / "s.h5", fields=[*FIELDS, flow])
    loaded = trained(tmp_path, model, "flow")
    expected = loaded.predict(store)["flow"].mean.reshape(12, -1)[:, rows].ravel()
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(loaded.predict(graphs)["flow"].mean, expected, atol=1e-6)
    np.testing.assert_allclose(loaded.trainable()(iter(graphs))["flow"].detach(), expected, atol=1e-6)


def tenfold(graph: Any) -> Any:
    graph["x"].mul_(10)
    return graph


def on_meta(graph: Any) -> Any:
    return graph.with_fields({"width": graph["width"].to("meta")})


def marked_later(graph: Any) -> Any:
    """A field of all graphs but the first."""
    mark = {"mark": torch.ones(1)} if float(graph["y"]) else {}
    return graph.with_fields(mark, fields=[Field(name="mark", on="graph")] if mark else [])


def with_gradient(graph: Any) -> Any:
    return graph.with_fields({"width": graph["width"] * torch.ones(1, requires_grad=True)})


def test_a_transform_may_leave_gradients(tmp_path: Path) -> None:
    changed = built("pyg", MANY, tmp_path / "a.h5", transform=f"{__name__}:with_gradient")
    assert torch.equal(changed[:]["width"], built("pyg", MANY, tmp_path / "b.h5")[:]["width"])


def test_a_transform_in_place_changes_no_data_of_its_user(tmp_path: Path) -> None:
    graphs, fields = [data(number) for number in range(2)], [{"name": "x", "on": "node"}, Y]
    for name in ("a.h5", "b.h5"):
        store = built("pyg", graphs, tmp_path / name, fields=fields, transform=f"{__name__}:tenfold")
        assert store[:]["x"].tolist() == [10.0, 20.0, 20.0, 20.0]
