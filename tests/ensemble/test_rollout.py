"""Roll-outs feed every member its own predictions."""

from pathlib import Path

import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter
from hydragnn.ensemble import Ensemble, rollout, spread_factors
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.models import load_model
from tests.once import shared

FIELDS = [
    Field(name="warmth", on="node", unit="K"),
    Field(name="source", on="node", unit="K"),
    Field(name="next", on="node", unit="K", role="target"),
    Field(name="flow", on="node", unit="W", role="target"),
]


def ring(number: int) -> GraphBatch:
    """A ring whose nodes take part of the warmth of their neighbours."""
    random, size = torch.Generator().manual_seed(number), 5 + number % 3
    here, following = torch.arange(size), (torch.arange(size) + 1) % size
    warmth, source = torch.randn(2, size, generator=random)
    flow = warmth[following] + warmth[here - 1] - 2 * warmth
    nodes = {"warmth": warmth, "source": source, "next": warmth + 0.2 * flow + 0.1 * source, "flow": flow}
    angle = 2 * torch.pi * here / size
    positions = torch.stack([angle.cos(), angle.sin()], dim=1)
    ends = torch.cat([here, following]), torch.cat([following, here])
    return graph_from_arrays(positions, *ends, fields=FIELDS, nodes=nodes)


@shared
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on rings and their ensemble."""
    folder = tmp_path_factory.mktemp("rollouts")
    with StoreWriter(folder / "rings.h5", FIELDS, dim=2) as store:
        store.write(concatenate([ring(number) for number in range(40)]))
    for seed in range(2):
        table = {
            "data": {"store": str(folder / "rings.h5")},
            "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1},
            "heads": [
                {"kind": "scalar", "field": "next", "correction_of": "warmth"},
                {"kind": "scalar", "field": "flow"},
            ],
            "train": {"epochs": 2, "seed": seed},
        }
        hydragnn.train(table, folder / f"run-{seed}")
    hydragnn.build_ensemble([folder / "run-0", folder / "run-1"], folder / "both")
    return folder


def test_every_member_goes_on_from_its_own_predictions(place: Path) -> None:
    model, graph = hydragnn.load(place / "both"), ring(100)
    course = rollout(model, graph, 3)
    assert course.constant == ("source",) and course.steps == 3
    for number in range(2):
        member, batch = load_model(place / f"run-{number}/model"), graph
        for step in range(3):
            warmth = member.predict(batch)["next"].mean
            torch.testing.assert_close(course.courses["warmth"][number, step], warmth)
            batch = batch.with_fields({"warmth": warmth.float()})
    first, second = course.courses["warmth"]
    weights = course.weights["warmth"]
    mean, away = weights[0] * first + weights[1] * second, weights.square().sum()
    torch.testing.assert_close(course.mean("warmth"), mean)
    variance = weights[0] * (first - mean) ** 2 + weights[1] * (second - mean) ** 2
    torch.testing.assert_close(course.spread("warmth"), (variance * (1 + away) / (1 - away)).sqrt())


def test_factors_of_held_out_roll_outs_make_the_spread_as_large_as_errors(place: Path) -> None:
    model, graphs = hydragnn.load(place / "both"), [ring(number) for number in (100, 101)]
    courses = [rollout(model, graph, 3) for graph in graphs]
    truths = [
        {"warmth": course.mean("warmth") + 0.1 * torch.randn(3, len(graph["warmth"]))}
        for course, graph in zip(courses, graphs)
    ]
    factors = spread_factors(courses, truths)
    scaled = [course.scaled(factors) for course in courses]
    torch.testing.assert_close(spread_factors(scaled, truths)["warmth"], torch.ones(3, dtype=torch.float64))
    with pytest.raises(InputError, match="2 factors of warmth; give one per step of warmth: 3"):
        courses[0].scaled({"warmth": factors["warmth"][:2]})


def test_what_has_no_roll_out_is_refused(place: Path) -> None:
    model, graph = Ensemble.load(place / "run-0"), ring(100)
    for feedback, words in (
        ({"warmth": "flow"}, "flow is a node field of shape .* in W, and warmth a node field of shape .* in K"),
        ({"warmh": "next"}, "the model has no warmh there; did you mean warmth"),
        ({"warmth": "nex"}, "the model has no nex there; did you mean next"),
        ({}, "no prediction becomes an input; say which in feedback"),
    ):
        with pytest.raises(InputError, match=words):
            rollout(model, graph, 2, feedback=feedback)
    with pytest.raises(InputError, match="0 steps; roll out at least 1"):
        rollout(model, graph, 0)
    with pytest.raises(InputError, match="one model has no spread"):
        rollout(model, graph, 1).spread("warmth")
    lost = graph.with_fields({"source": torch.full_like(graph["source"], torch.nan)})
    with pytest.raises(InputError, match=r"member .*: warmth is no longer finite after 1 steps; take fewer steps"):
        rollout(model, lost, 2)
