"""Architectures that cannot do what a campaign asks with its data are refused before anything starts."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rings import write_rings

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, graph_from_arrays
from hydragnn.hpo import CampaignSettings, campaign_settings, run_search
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.sampling.sampler import SAMPLERS, History, proposals
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.points import Point, point_key, space_of

RATE = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}
FIELDS = (
    Field(name="site", on="node", classes=2, dtype="int64"),
    Field(name="strength", on="graph", role="target"),
    Field(name="energy", on="graph", role="target"),
)


def kinds(*choices: str) -> dict[str, Any]:
    return {"model.kind": {"type": "categorical", "choices": list(choices)}, "train.learning_rate": RATE}


def write_paths(path: Path, dim: int, *, rich: bool = False) -> None:
    """A few chains of nodes without positions (dim 0), or in a space of ``dim`` dimensions, with forces where there is one.

    ``rich`` ones have species and kinds of edges, too.
    """
    more = [ATOMIC_NUMBERS_FIELD, Field(name="relation", on="edge", classes=2, dtype="int64")] if rich else []
    forces = [Field(name="forces", on="node", shape=(dim,), parity="vector", role="target")] if dim else []
    here = np.arange(3)
    with StoreWriter(path, [*FIELDS, *more, *forces], dim=dim, attributes={"close_nuclei": True}) as writer:
        for number in range(20):
            writer.write(
                graph_from_arrays(
                    np.random.default_rng(number).normal(size=(4, dim)),
                    np.concatenate([here, here + 1]),
                    np.concatenate([here + 1, here]),
                    fields=[*FIELDS, *more, *forces],
                    nodes={
                        "site": np.arange(4) % 2,
                        **({"forces": np.zeros((4, dim))} if dim else {}),
                        **({"atomic_numbers": np.array([1, 8, 1, 8])} if rich else {}),
                    },
                    edges={"relation": np.arange(6) % 2} if rich else {},
                    graphs={"strength": np.array([1.0 * number]), "energy": np.array([1.0])},
                )
            )


def asked(store: Path, heads: list[dict[str, Any]], space: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "data": {"store": str(store)},
        "heads": heads,
        "train": {"epochs": 4},
        "search": {"trials": 4, "space": space},
    } | more


STRENGTH = {"kind": "scalar", "field": "strength"}
FORCES = {"kind": "energy", "field": "energy", "forces": "forces"}

CANNOT: dict[str, tuple[int, list[dict[str, Any]], dict[str, Any], str]] = {
    "no relation": (3, [STRENGTH], kinds("schnet", "relational"), "'relational' .*categorical edge field 'relation'"),
    "no positions": (0, [STRENGTH], kinds("gin", "painn"), "'painn' .*needs positions"),
    "forces of what sees no lengths": (3, [FORCES], kinds("gin", "schnet"), "'gin' .*no forces or stress"),
    "a plane": (2, [FORCES], kinds("schnet", "mace"), "'mace' .*dimension"),
    "vectors of what gives none": (
        3,
        [{"kind": "vector", "field": "forces"}],
        kinds("painn", "schnet"),
        "'schnet' .*equivariant model",
    ),
    "no atomic numbers": (3, [{**FORCES, "references": True}], kinds("painn", "schnet"), "references"),
    "kinds of heads and models that do not go together": (
        3,
        [{"kind": "scalar", "field": "strength"}, {"kind": "scalar", "field": "energy"}],
        {
            **kinds("gin", "schnet"),
            "heads.1.kind": {"type": "categorical", "choices": ["scalar", "energy"]},
            "heads.1.forces": {"type": "categorical", "choices": ["forces"], "when": {"heads.1.kind": "energy"}},
        },
        "\"model.kind\" = 'gin' and \"heads.1.kind\" = 'energy' together take part in no valid run.*no forces",
    ),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_an_architecture_cannot_do_is_said_before_the_campaign_starts(case: str, tmp_path: Path) -> None:
    dim, heads, space, message = CANNOT[case]
    write_paths(tmp_path / "store.h5", dim)
    table = asked(tmp_path / "store.h5", heads, space)
    table["search"]["objective"] = f"valid/{heads[0]['field']}/mae"
    with pytest.raises(InputError, match=message):
        run_search(campaign_settings(table, tmp_path / "CAMPAIGN.toml"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_element_without_an_energy_of_its_own_is_said_before_the_campaign_starts(tmp_path: Path) -> None:
    write_paths(tmp_path / "store.h5", 3, rich=True)
    for given, message in (
        ({"H": -13.6}, "no energy for atomic number 8, which the store holds"),
        ({"H": 1.0, "O": 2.0}, ""),
    ):
        head = {"kind": "energy", "field": "energy", "references": given}
        table = asked(tmp_path / "store.h5", [head], kinds("painn", "schnet"))
        settings = campaign_settings(table, tmp_path / "CAMPAIGN.toml")
        with pytest.raises(InputError, match=message) if message else nullcontext():
            check_campaign(settings, space_of(settings.search.space))


def test_a_campaign_that_has_begun_with_such_an_architecture_goes_on(tmp_path: Path) -> None:
    """Trials of it fail, as they did for the program that began the campaign."""
    write_rings(tmp_path / "rings.h5", 8)
    table = asked(tmp_path / "rings.h5", [{"kind": "scalar", "field": "energy"}], kinds("schnet", "relational"))
    settings = campaign_settings(table, tmp_path / "CAMPAIGN.toml")
    check_campaign(settings, space_of(settings.search.space), begun=True)
    with pytest.raises(InputError, match="relational"):
        check_campaign(settings, space_of(settings.search.space))


INT = {"type": "int", "low": 8, "high": 24}
HOLES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "heads of a transformer": ({"kind": "equivariant_transformer", "heads": 3}, {"model.hidden_dim": INT | {"low": 9}}, [9, 12, 15, 18, 21, 24]),
    "heads of tokens": ({"kind": "field_tokens", "heads": 5}, {"model.hidden_dim": INT | {"low": 5, "high": 20}}, [5, 10, 15, 20]),
    "heads of global attention": (
        {"kind": "sage", "global_attention": {"kind": "linear", "heads": 6}}, {"model.hidden_dim": INT | {"low": 6}}, [6, 12, 18, 24],
    ),
    "few heads of many widths": ({"kind": "gatv2", "heads": 20}, {"model.hidden_dim": INT | {"low": 20, "high": 2000, "log": True}, "train.learning_rate": RATE}, list(range(20, 2001, 20))),
    "batches of nodes": ({"kind": "sage"}, {"batch.max_nodes": INT | {"low": 1, "high": 6}, "batch.max_graphs": {"type": "categorical", "choices": [0]}}, [4, 5, 6]),
}  # fmt: skip
"""Models with a space of which few values make a run, and these."""


@pytest.mark.parametrize("hole", HOLES)
def test_points_inside_a_range_that_make_no_run_are_never_proposed(hole: str, tmp_path: Path) -> None:
    model, space, valid = HOLES[hole]
    write_paths(tmp_path / "store.h5", dim=3, rich=True)
    path = next(iter(space))
    heads = [{"kind": "scalar", "field": "strength"}]
    for sampler in SAMPLERS:
        table = asked(tmp_path / "store.h5", heads, space, model=model)
        table["search"] |= {"sampler": sampler, "trials": 3}
        settings = campaign_settings(table, tmp_path / "CAMPAIGN.toml")
        points = proposed(settings, 9)
        assert len(points) >= min(3, len(valid)), sampler
        assert {point[path] for point in points} <= set(valid), sampler
        assert len(points) == min(9, len(valid)) or "train.learning_rate" in space, sampler


def proposed(settings: CampaignSettings, count: int) -> list[Point]:
    """The points of so many trials with results, or fewer where there are no more."""
    space, trials = space_of(settings.search.space), list[Trial]()
    for number in range(count):
        history = History(space=space, startup=4, trials=tuple(trials) if number > 4 else (), rungs=(1,))
        point = proposals(settings, history, number, 1, {point_key(trial.values) for trial in trials})
        if not point:
            break
        trials.append(Trial(number=number, status="paused", values=point[0], results=(float(number),)))
    return [trial.values for trial in trials]


def test_a_space_without_a_valid_point_is_refused_with_an_example(tmp_path: Path) -> None:
    write_paths(tmp_path / "store.h5", dim=3, rich=True)
    heads = [{"kind": "scalar", "field": "strength"}]
    for space, words in (
        ({"model.hidden_dim": INT | {"low": 9, "high": 11}}, r"model\.hidden_dim = \d+ does not divide into model.heads = 4"),
        ({"batch.max_nodes": INT | {"low": 1, "high": 3}, "train.learning_rate": RATE}, "has 4 nodes, more than the budget of"),
    ):  # fmt: skip
        table = asked(tmp_path / "store.h5", heads, space, model={"kind": "gatv2"})
        table["search"]["trials"] = 2
        with pytest.raises(InputError, match=words):
            run_search(campaign_settings(table, tmp_path / "CAMPAIGN.toml"), tmp_path / "campaign")
        assert not (tmp_path / "campaign").exists()
