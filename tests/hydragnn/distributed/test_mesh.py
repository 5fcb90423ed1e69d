"""Ranks in a mesh: who shares what, and layouts that do not fit."""

from collections.abc import Sequence

import pytest

from hydragnn.base.errors import InputError
from hydragnn.distributed.mesh import Mesh, check_layout
from hydragnn.distributed.ranks import Ranks
from hydragnn.parallel import AXES, Axis, ParallelSettings

SIZES = (2, 3, 1, 2, 2)


def mesh_of(rank: int) -> Mesh:
    return Mesh(ranks=Ranks(rank=rank, size=24), sizes=SIZES)


@pytest.mark.parametrize("axes", [("tensor",), ("graph", "tensor"), ("replicate", "shard", "graph"), AXES])
def test_ranks_along_axes_are_groups_that_hold_every_rank_once(axes: Sequence[Axis]) -> None:
    groups = {tuple(mesh_of(rank).members(*axes)) for rank in range(24)}
    assert sorted(rank for group in groups for rank in group) == list(range(24))
    assert {len(group) for group in groups} == {mesh_of(0).size(*axes)}


def test_ranks_that_share_graphs_channels_or_layers_read_one_share() -> None:
    shares = {tuple(mesh_of(n).members("pipeline", "graph", "tensor")): mesh_of(n).data_rank for n in range(24)}
    assert sorted(shares.values()) == list(range(6)) == list(range(mesh_of(0).data_size))


def test_ranks_that_share_channels_are_neighbours() -> None:
    assert mesh_of(6).members("tensor") == [6, 7]


@pytest.mark.parametrize(
    ("settings", "ranks", "per_node", "words"),
    [
        ({"shard": 3}, 4, 4, "shard = 3 takes 3 ranks, which do not divide the 4"),
        ({"replicate": 3}, 2, 2, "takes 3 ranks, and this run has 2"),
        ({"tensor": 4}, 8, 2, "between nodes"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(settings: dict[str, int], ranks: int, per_node: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_layout(ParallelSettings.parse(settings), ranks, per_node)
    check_layout(ParallelSettings.parse(dict.fromkeys([*settings][:1], 2)), 2, 2)  # and this one fits


def test_chunks_without_stages_are_one_sentence_and_one_chunk_is_in_no_file() -> None:
    with pytest.raises(InputError, match="chunks = 2 divides the layers of stages, and there is one stage"):
        ParallelSettings.parse({"chunks": 2})
    assert "chunks" not in ParallelSettings.parse({"pipeline": 2, "chunks": 1}).to_json()
    assert ParallelSettings.parse({"pipeline": 2, "chunks": 3}).to_json()["chunks"] == 3
