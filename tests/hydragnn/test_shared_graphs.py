"""Crystals, grain maps and meshes shared by threads that stand for ranks: values, forces, stress and gradients of the whole graph."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.architectures.schnet import SchNet
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import make_graph, make_model, small_settings
from hydragnn.conformance.network import loss_and_gradients, on_parts
from hydragnn.distributed.graph_ranks import Cutter, metis, shared_prediction
from hydragnn.graphs import from_ase, from_voronoi
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.cutting import Partition, crossing, cut_nodes
from hydragnn.graphs.joining import concatenate
from hydragnn.layers import HaloExchange
from hydragnn.models import Distribution, GraphModel, check_cuttable
from hydragnn.models.heads.kinds import ScalarHeadSettings
from tests.graphs.test_cutting import grid
from tests.hydragnn.small import FIELDS, FORCES, small_model

EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""Double precision; sums over ranks are added in another order."""


def crystals() -> GraphBatch:
    """Two rattled crystals whose cells are smaller than the cutoff, so that atoms see their own images."""
    atoms = [bulk("NaCl", "rocksalt", a=5.6), bulk("Cu", cubic=True)]
    for number, one in enumerate(atoms):
        one.rattle(0.05, seed=number)
    return concatenate([from_ase(one, cutoff=4.0) for one in atoms])


def grains() -> GraphBatch:
    return from_voronoi(np.random.default_rng(0).random((30, 3)), box=[1.0, 1.0, 1.0])


def mesh() -> GraphBatch:
    return grid(9).to(dtype=torch.float64)


def model_of(kind: str, heads: list[Mapping[str, Any]], inputs: list[str], dim: int, cutoff: float) -> GraphModel:
    return small_model(kind, *heads, inputs=inputs, dim=dim, cutoff=cutoff, num_layers=3).double()


ENERGY = {**FORCES, "stress": "stress"}
OVER_NODES = [
    {"kind": "scalar", "field": "mean", "pool": "attention"},
    {"kind": "scalar", "field": "charge", "total": 0.0},
]
SCALES: dict[str, tuple[Callable[[], GraphBatch], Callable[[], GraphModel]]] = {
    "crystals": (crystals, lambda: model_of("painn", [ENERGY, *OVER_NODES], ["atomic_numbers"], 3, 4.0)),
    "grains": (grains, lambda: model_of("egnn", OVER_NODES, ["volume"], 3, 1.0)),
    "mesh": (mesh, lambda: model_of("schnet", OVER_NODES, [], 2, 2.0)),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("scale", SCALES)
def test_ranks_that_share_a_graph_have_values_and_gradients_of_the_whole(scale: str, size: int) -> None:
    batch, model = (make() for make in SCALES[scale])
    predictions, loss, gradients = loss_and_gradients(model, batch)
    cut = cut_nodes(batch, size)
    work = partial(loss_and_gradients, model)
    parts = on_parts(batch, cut, size, lambda part: (part, *work(part)))
    torch.testing.assert_close(torch.stack([one[2] for one in parts]).sum(), loss, **EXACT)
    for number, gradient in enumerate(gradients):
        torch.testing.assert_close(torch.stack([one[3][number] for one in parts]).sum(0), gradient, **EXACT)
    for name, whole in predictions.items():
        for part, own, _, _ in parts:
            assert part.halo is not None
            if FIELDS[name].on == "node":
                expected = whole.rows(part.halo.numbers[part.halo.owned])
            elif part.halo.peers.rank == 0:
                expected = whole
            else:
                continue
            torch.testing.assert_close(own[name].tensors(), expected.tensors(), **EXACT)


@pytest.mark.parametrize(("heads", "passes"), [([OVER_NODES[0]], 2), ([ENERGY], 4)], ids=["values", "forces"])
def test_no_more_than_the_rows_of_the_cut_travel_before_a_layer(heads: list[Mapping[str, Any]], passes: int) -> None:
    batch, model = crystals(), model_of("schnet", heads, ["atomic_numbers"], 3, 4.0)
    cut = torch.arange(batch.num_nodes) % 2
    rows = len(crossing(batch, cut)[1])

    def rows_sent(part: GraphBatch) -> int:
        loss_and_gradients(model, part)
        assert part.halo is not None
        numbers: list[int] = part.halo.peers.numbers  # type: ignore[attr-defined]
        return numbers[1]

    # three layers exchange twice, since the first one reads inputs; each pass through them does, and forces are sent home and back
    exchanges = 2 * passes + (2 if passes == 4 else 0)
    assert sum(on_parts(batch, cut, 2, rows_sent)) == exchanges * rows


def test_a_class_inherits_no_promise_that_its_graphs_may_be_shared() -> None:
    class Summing(SchNet): ...

    class SummingHead(ScalarHeadSettings): ...

    assert not architecture_of("schnet").limit(small_settings("schnet"), "graph")
    assert "cuttable = True" in Summing.limit(small_settings("schnet"), "graph")
    assert "cuttable = True" in SummingHead(field="charge").limit("graph")


@pytest.mark.parametrize("partition", [None, *([metis] if find_spec("pymetis") else [])])
def test_a_batch_is_predicted_over_the_ranks_and_whole_on_each(partition: Partition | None) -> None:
    batch, model = make_graph(0, 24), make_model("painn").eval()

    def predictions(part: GraphBatch) -> dict[str, Distribution]:
        assert part.halo is not None
        return shared_prediction(model, batch, Cutter(peers=part.halo.peers, partition=partition))[0]

    whole = {name: value.detach() for name, value in model(batch).items()}
    for of_rank in on_parts(batch, cut_nodes(batch, 2), 2, predictions):
        for name, value in whole.items():
            torch.testing.assert_close(of_rank[name].tensors(), value.tensors(), **EXACT)


def test_a_pass_of_exchanges_hangs_on_a_weight_that_learns() -> None:
    model = model_of("schnet", [ENERGY], ["atomic_numbers"], 3, 4.0)
    frozen = next(iter(model.parameters())).requires_grad_(False)
    assert model.anchor is not frozen
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    def forces(part: GraphBatch) -> Tensor:
        assert part.halo is not None and HaloExchange(part.halo, model.anchor).start.requires_grad
        with torch.no_grad():
            return model(part)["forces"].mean[part.halo.owned]

    batch = crystals()
    cut = cut_nodes(batch, 2)
    with torch.no_grad():
        whole = model(batch)["forces"].mean
    own = torch.cat(on_parts(batch, cut, 2, forces))
    torch.testing.assert_close(own, whole[torch.argsort(cut, stable=True)], **EXACT)


def test_attention_in_layers_that_are_computed_twice_is_refused() -> None:
    around = {"checkpoint_activations": True, "global_attention": {"kind": "linear", "heads": 2}}
    model = small_model("painn", {"kind": "scalar", "field": "charge"}, inputs=["atomic_numbers"], **around)
    with pytest.raises(InputError, match="checkpoint_activations computes twice"):
        check_cuttable(model.description)
