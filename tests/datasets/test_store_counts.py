"""A store whose counts, shapes or dtypes are not those of its files is refused by the validation, before anything is allocated."""

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import check_graphs, check_store, convert_store, open_store
from hydragnn.datasets.manifest import checksum
from tests.datasets.conftest import edit_manifest
from tests.refusals import refuses

HUGE = 10**13


def test_a_block_of_negative_length_is_damage(path: Path) -> None:
    def negative(table: dict[str, Any]) -> None:
        first, second = table["parts"][0]["blocks"]
        first[2] += second[2] + 5
        second[2] = -5

    edit_manifest(path, negative)
    for look in (open_store, check_store):
        refuses(r"manifest.json is damaged", look, path)


@pytest.mark.parametrize("column", [0, 1, 2], ids=["graphs", "nodes", "edges"])
def test_a_count_beyond_the_files_is_refused_before_memory_is_taken(column: int, path: Path) -> None:
    def grow(table: dict[str, Any]) -> None:
        part = table["parts"][0]
        part["blocks"][1][column] += HUGE
        part[("graphs", "nodes", "edges")[column]] += HUGE
        table["graphs"] = part["graphs"]

    edit_manifest(path, grow)
    tracemalloc.start()
    refuses(r"as the manifest counts, take at least [0-9]{14,}; copy the store again", open_store, path)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    assert "take at least" in check_store(path)[0]


def moved_edge_to_the_other_block(table: dict[str, Any]) -> None:
    first, second = table["parts"][0]["blocks"]
    first[2], second[2] = first[2] - 1, second[2] + 1


def test_blocks_of_other_lengths_are_refused(path: Path) -> None:
    """HDF5 has no blocks, so that only the sum counts there."""
    edit_manifest(path, moved_edge_to_the_other_block)
    if path.suffix == ".h5":
        assert open_store(path).sizes().edges.sum() > 0
    else:
        refuses(r"[0-9]+ rows of shape \(\) and dtype .*, expected are [0-9]+", open_store(path).sizes)


@pytest.mark.parametrize("path", [".h5"], indirect=True)
def test_the_check_names_graphs_by_their_numbers_and_counts_the_rest(path: Path, tmp_path: Path) -> None:
    part = path / "part-00000.h5"
    with h5py.File(part, "r+") as file:
        for graph in range(10, 35):
            file["positions"][int(file["node_stops"][graph - 1])] = np.inf
    whole = checksum(part)
    own = {part.name: {"bytes": whole.bytes, "blake2b": whole.blake2b}}
    edit_manifest(path, lambda table: table["parts"][0]["files"].update(own))
    problems = check_store(path)
    named = [problem for problem in problems if "positions: inf in row 0" in problem]
    assert [f"graph {number}, positions" in problem for number, problem in zip(range(10, 20), named)] == [True] * 10
    assert "15 more are not valid" in problems[-1] or any("15 more are not valid" in problem for problem in problems)
    refuses("graph 10, positions: inf", convert_store, path, tmp_path / "copy.bp")
    with pytest.raises(InputError, match=r"^graph 12, positions: inf .* \(and 22 more graphs; hydragnn data check"):
        check_graphs(open_store(path), np.arange(59, 11, -1), [])
    check_graphs(open_store(path), np.arange(40, 60), [])
