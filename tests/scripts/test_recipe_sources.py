"""New raw files of recipes, without labels, become the graphs that the recipe trained on; others are refused in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.datasets.build import graphs_of, makers_of
from hydragnn.datasets.sources.registry import settings_of_rule
from hydragnn.graphs import GraphBatch
from hydragnn.scripts.recipes import cantilever, fept, terfenol
from tests.scripts.raw_data import Arrays, microstructures, rows_of


def few_cells(raw: Arrays) -> Arrays:
    """Twenty configurations and the pure cells."""
    iron = (raw["Z"] == 26).sum(axis=1)
    return rows_of(raw, (np.arange(len(iron)) % (len(iron) // 20) == 0) | np.isin(iron, (0, 32)))


def few_grains(raw: Arrays) -> Arrays:
    """The first six microstructures."""
    return microstructures(raw, np.arange(len(raw["n_grains"])) < 6)


def few_densities(raw: Arrays) -> Arrays:
    """Four densities of the published run."""
    return rows_of(raw, np.arange(196) % 60 == 0)


def write_densities(raw: Path, store: Path) -> None:
    cantilever.write_samples(cantilever.published_samples(raw), cantilever.read_mesh(raw)[0], store)


RECIPES: dict[str, tuple[str, Callable[[Arrays], Arrays], Callable[[Path, Path], None], tuple[str, ...]]] = {
    "fept": ("fept/fept_32atoms.npz", few_cells, fept.write_store, ("Z",)),
    "terfenol": (
        "terfenol/terfenol_394.npz",
        few_grains,
        terfenol.write_store,
        ("n_grains", "n_edges", "euler_size_nnb", "edge"),
    ),
    "cantilever": ("cantilever/cantilever_196.npz", few_densities, write_densities, ("w",)),
}


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest, real_data: Path, tmp_path: Path) -> tuple[Path, Arrays]:
    """A store of a cut of the raw file, and the arrays that a new file has to hold."""
    name, cut, write_store, needed = RECIPES[request.param]
    with np.load(real_data / name, allow_pickle=False) as file:
        arrays = cut({key: file[key] for key in file.files})
    np.savez(tmp_path / "raw.npz", **arrays)
    write_store(tmp_path / "raw.npz", tmp_path / "store.h5")
    return tmp_path / "store.h5", {key: arrays[key] for key in needed}


def graphs_by_rule(store: Path, arrays: Arrays) -> list[GraphBatch]:
    """The graphs of new arrays by what the store remembers."""
    np.savez(store.with_name("new.npz"), **arrays)
    rule = open_store(store).attributes["build"]
    return [*graphs_of(settings_of_rule(rule, store.with_name("new.npz"), "the store"))]


def test_a_new_file_without_labels_gives_the_inputs_of_training(recipe: tuple[Path, Arrays]) -> None:
    store, arrays = recipe
    trained = open_store(store)
    inputs = [field for field in trained.fields() if field.role == "input"]
    graphs = graphs_by_rule(store, arrays)
    assert len(graphs) >= len(trained) > 3
    texts = {str(digest(graph)) for graph in graphs}
    for number in range(len(trained)):
        graph = trained.read([number], [field.name for field in inputs])
        assert all(graph.fields[field.name] == graphs[0].fields[field.name] for field in inputs)
        assert str(digest(graph)) in texts


def digest(graph: GraphBatch) -> list[Any]:
    """Everything that a model reads of a graph."""
    tensors = [
        graph.senders,
        graph.receivers,
        *(graph[name] for name in sorted(graph.fields) if name != "texture_index"),
    ]
    return [[name for name in sorted(graph.fields) if name != "texture_index"], [tensor.tolist() for tensor in tensors]]


WRONG: dict[str, list[tuple[Callable[[Arrays], Arrays], str]]] = {
    "fept": [
        (lambda a: {"numbers": a["Z"]}, "has no Z; it has numbers"),
        (lambda a: {"Z": a["Z"][:, :16]}, r"Z has shape \[\d+, 16\], not \[cells, 32\]"),
        (lambda a: {"Z": a["Z"].astype(float)}, "Z holds float64 values; give whole numbers"),
        (lambda a: {**a, "pos": np.zeros((32, 3))}, "pos are other sites"),
    ],
    "terfenol": [
        (lambda a: {name: a[name] for name in a if name != "edge"}, "has no edge"),
        (lambda a: {**a, "euler_size_nnb": a["euler_size_nnb"][:, :4]}, r"shape \[\d+, 4\], not \[grains, 5\]"),
        (lambda a: {**a, "n_grains": a["n_grains"][:-1]}, "n_grains counts .* rows of euler_size_nnb, which has"),
        (lambda a: {**a, "n_edges": np.append(a["n_edges"], 0)}, "n_grains counts 6 microstructures, n_edges 7"),
    ],
    "cantilever": [
        (lambda a: {"density": a["w"]}, "has no w"),
        (lambda a: {"w": a["w"][:, :100]}, r"w has shape \[4, 100\], not \[densities, 4961\]"),
        (lambda a: {"w": a["w"].astype(str)}, "w holds .* values; give numbers"),
        (lambda a: {**a, "points": np.ones((4961, 2))}, "points are another mesh"),
        (lambda a: {**a, "load_fy_nodes": np.ones(4961)}, "pulls at other nodes"),
    ],
}


def test_files_with_other_arrays_are_refused_in_a_sentence(
    recipe: tuple[Path, Arrays], request: pytest.FixtureRequest
) -> None:
    store, arrays = recipe
    for change, sentence in WRONG[request.node.callspec.params["recipe"]]:
        with pytest.raises(InputError, match=sentence):
            graphs_by_rule(store, change(arrays))


def damaged(arrays: Arrays) -> Arrays:
    """The second graph cannot be made."""
    if "Z" in arrays:
        return {"Z": np.where(np.arange(len(arrays["Z"]))[:, None] == 1, 14, arrays["Z"])}
    if "w" in arrays:
        return {"w": np.where(np.arange(4)[:, None] == 1, np.nan, arrays["w"])}
    rows = arrays["euler_size_nnb"].astype(np.float64)
    rows[arrays["n_grains"][0], 3] = 0.0
    return {**arrays, "euler_size_nnb": rows}


def test_one_graph_that_cannot_be_made_is_named_and_leaves_the_others(recipe: tuple[Path, Arrays]) -> None:
    store, arrays = recipe
    np.savez(store.with_name("new.npz"), **damaged(arrays))
    settings = settings_of_rule(open_store(store).attributes["build"], store.with_name("new.npz"), "the store")
    for number, make in enumerate(makers_of(settings)):
        if number == 1:
            with pytest.raises(InputError, match=r"new\.npz, \w+ 1: .*(14 is neither|is nan at node 0|positive size)"):
                make()
        else:
            assert make().num_graphs == 1


def test_a_rule_with_other_sites_is_refused_in_a_sentence(real_data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", Z=np.full((2, 32), 26))
    kind = "hydragnn.scripts.recipes.fept:FePt"
    with np.load(real_data / "fept" / "fept_32atoms.npz") as file:
        sites = file["pos"].tolist()
    for wrong in (sites[:31], [[0.0, 0.0, 0.0]] * 32, [[0.3 * n, 0.0, 0.0] for n in range(32)], None, "x"):
        with pytest.raises(InputError):
            [*graphs_of(settings_of_rule({"kind": kind, "sites": wrong}, tmp_path / "new.npz", "the ensemble"))]
    assert len([*graphs_of(settings_of_rule({"kind": kind, "sites": sites}, tmp_path / "new.npz", "it"))]) == 2
