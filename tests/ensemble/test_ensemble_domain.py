"""The training domain: what is foreign is flagged by the detector that should see it, and what is not is not."""

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.io import read as read_frames
from ase.io import write

from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import Ensemble, build_ensemble, calculator
from hydragnn.ensemble.domain import (
    Domain,
    DomainScores,
    Doubts,
    GraphView,
    OpenReferences,
    Spread,
    domain_from_json,
    fitted_domain,
    scores_of,
)
from hydragnn.ensemble.domain.detector import Channel, Stored, length_scale
from hydragnn.ensemble.domain.rarity import FALSE_ALARMS, HIGHEST, QUANTILES, expected_alarms, fitted_rarity
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, concatenate, from_ase, graph_from_arrays
from hydragnn.graphs.topology import Topology
from tests.ensemble.conftest import Built, refused
from tests.ensemble.finished import arrays_of

CUTOFF = 4.0
PLAIN, EXACT = Channel(slack=0.01), Channel(slack=0.1, exact=True)
ATOMS, KNOWN = {"atomic_numbers": ATOMIC_NUMBERS_FIELD}, ["atomic_numbers"]


def crystal(random: np.random.Generator, symbol: str = "Cu", lattice: str = "fcc", a: float = 3.6) -> Atoms:
    atoms = bulk(symbol, lattice, a=a * random.uniform(0.98, 1.02), cubic=True) * 2
    atoms.positions += 0.06 * random.normal(size=atoms.positions.shape)
    return atoms


def graphs_of(frames: Sequence[Atoms]) -> list[GraphBatch]:
    return [from_ase(frame, CUTOFF, name="frame") for frame in frames]


@pytest.fixture(scope="module")
def crystals() -> MemoryStore:
    """300 copper and 300 nickel crystals in turn."""
    random, kinds = np.random.default_rng(0), (("Cu", "fcc", 3.6), ("Ni", "fcc", 3.5))
    return MemoryStore(graphs_of([crystal(random, *one) for _ in range(300) for one in kinds]))


def fitted(store: MemoryStore, doubts: Doubts = Doubts(), *detectors: Any) -> Domain:  # noqa: B008
    """Return the domain of the first crystals, calibrated on as many."""
    fields = [ATOMIC_NUMBERS_FIELD]
    return fitted_domain(store, np.arange(200), [(np.arange(200, 400), doubts)], fields, KNOWN, detectors)[0]


@pytest.fixture(scope="module")
def domain(crystals: MemoryStore) -> Domain:
    return fitted(crystals)


def output_of(domain: Domain, frame: Atoms | GraphBatch, **more: Any) -> DomainScores:
    graph = from_ase(frame, CUTOFF, name="frame") if isinstance(frame, Atoms) else frame
    return domain.scores(GraphView(batch=graph, scale=domain.scale, **more))


def scores(domain: Domain, frame: Atoms | GraphBatch) -> dict[str, float]:
    output = output_of(domain, frame)
    assert domain.rarity is not None
    assert bool(output.reasons[0]) == (output.p_values[0] <= domain.rarity.limit)
    return {name: float(values[0]) for name, values in output.scores.items()}


def test_graphs_like_those_of_training_are_rarely_flagged(domain: Domain, crystals: MemoryStore) -> None:
    actual = scores_of(domain, crystals, np.arange(400, 600), KNOWN, Doubts())
    # twice the mean of 4 of 200 is exceeded in 2 of 100 draws
    assert np.mean([bool(reason) for reason in actual.reasons]) <= 2 * FALSE_ALARMS


def test_what_training_never_showed_is_flagged_by_its_detector(domain: Domain) -> None:
    """An isolated atom, a dimer, a compressed crystal, another element."""
    for frame in (Atoms("Cu"), Atoms("Cu2", [[0, 0, 0], [0, 0, 1.9]]), bulk("Cu", "fcc", 3.6 * 0.8, cubic=True) * 2):
        assert scores(domain, frame)["contacts"] > 1
    assert scores(domain, bulk("Ag", "fcc", 3.6, cubic=True) * 2)["kinds"] > 1


def node_scores(domain: Domain, frame: Atoms | GraphBatch, **more: Any) -> np.ndarray:
    p_values = output_of(domain, frame, **more).node_p_values
    assert p_values is not None
    return p_values


@pytest.mark.parametrize(("change", "node"), [("element", 7), ("place", 100)])
def test_one_foreign_atom_is_found_and_has_the_least_score(domain: Domain, change: str, node: int) -> None:
    frame = crystal(np.random.default_rng(5)) * 2
    assert max(scores(domain, frame).values()) < 1.5 and node_scores(domain, frame).min() > 1e-3
    if change == "element":
        frame.symbols[node] = "Ag"
    else:
        frame.positions[node] += [0.9, 0.4, 0]
    p_values = node_scores(domain, frame)
    assert p_values[node] == p_values.min() < 0.005
    assert max(scores(domain, frame).values()) > 2


def test_of_usual_nodes_as_many_are_below_a_score_as_it_says(crystals: MemoryStore) -> None:
    random = np.random.default_rng(3)
    spread = Spread(targets={"forces": "std"}, per_node=(), of_graphs=(), of_nodes=("forces",))
    held_out, batch = crystals.read(np.arange(200, 400), KNOWN), crystals.read(np.arange(400, 600), KNOWN)
    draw, doubts = random.exponential, []
    for one in (held_out, batch):
        of_graphs = {"forces": draw(size=(len(one), 2))}
        doubts.append(Doubts(of_graphs=of_graphs, of_nodes={"forces": draw(size=one.num_nodes)}))
    p_values = node_scores(fitted(crystals, doubts[0], spread), batch, doubts=doubts[1])
    assert len(p_values) == batch.num_nodes
    for level in (0.02, 0.1, 0.3):
        assert 0.3 * level <= (p_values <= level).mean() <= 1.5 * level


def test_scores_of_nodes_weigh_graphs_alike_whatever_their_sizes() -> None:
    """Nodes of large graphs are more unusual, and are most of all nodes."""
    random = np.random.default_rng(0)
    sizes = random.choice([2, 40], size=150)
    graph = np.repeat(np.arange(150), sizes)
    values = random.exponential(size=len(graph))[:, None] * np.where(sizes[graph] > 2, 3.0, 1.0)[:, None]
    trained = graph < 100
    rarity = fitted_rarity(values[trained], [PLAIN], graph=graph[trained])
    assert len(rarity.held_out) == QUANTILES and (np.diff(rarity.held_out) >= 0).all()
    p_values, owners = rarity.p_values(rarity.standardised(values[~trained]), 100), graph[~trained] - 100
    share = np.bincount(owners, weights=p_values <= 0.2) / np.bincount(owners)
    assert share.mean() == pytest.approx(0.2, abs=0.05)


def test_scores_depend_neither_on_copies_side_by_side_nor_on_the_batch(domain: Domain) -> None:
    random = np.random.default_rng(7)
    frame = crystal(random)
    assert scores(domain, frame * 2) == pytest.approx(scores(domain, frame), abs=1e-6)
    graphs = graphs_of([crystal(random), Atoms("Cu"), crystal(random, "Ni"), Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])])
    together = output_of(domain, concatenate(graphs))
    for number, graph in enumerate(graphs):
        alone = output_of(domain, graph)
        assert alone.reasons[0] == together.reasons[number]
        for name, values in together.scores.items():
            assert values[number] == pytest.approx(alone.scores[name][0], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("nodes", [0, 1, 3], ids=["no nodes", "one node", "no edges"])
def test_graphs_without_nodes_or_edges_have_scores(domain: Domain, nodes: int) -> None:
    graph = from_ase(Atoms(f"Cu{max(nodes, 1)}", positions=np.eye(3)[: max(nodes, 1)] * 50), CUTOFF)
    if not nodes:
        graph = replace(
            graph,
            positions=graph.positions[:0],
            topology=Topology.square(graph.senders, graph.receivers, 0),
            node_offsets=torch.zeros(2, dtype=torch.int64),
            nodes={"atomic_numbers": graph["atomic_numbers"][:0]},
        )
    assert all(np.isfinite(value) for value in scores(domain, graph).values())


def test_a_domain_of_graphs_without_edges_or_fields_is_fitted_and_flags_edges() -> None:
    points = [graph_from_arrays(np.random.default_rng(i).normal(size=(4, 2)), [], []) for i in range(60)]
    domain, _ = fitted_domain(MemoryStore(points), np.arange(30), [(np.arange(30, 60), Doubts())], [], [], [])
    assert max(scores(domain, points[0]).values()) == 0
    assert length_scale(from_ase(Atoms("Cu2", [[0, 0, 0], [0, 0, 2.5]]), CUTOFF)) == pytest.approx(2.5)
    assert length_scale(from_ase(Atoms("Cu"), CUTOFF)) == 1.0
    joined = graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0])
    assert max(scores(domain, joined).values()) > 1


@pytest.mark.parametrize(
    ("spacing", "jitter", "reason"),
    [
        (1.0, 0.2, ""),
        (0.67, 0.2, "statistics: the mean distance of its nodes to their nearest .* standard deviations below"),
        (1.5, 0.2, "statistics: the mean distance of its nodes to their nearest .* standard deviations above"),
    ],
)
def test_meshes_of_another_resolution_are_flagged(spacing: float, jitter: float, reason: str) -> None:
    """Also where some edges of training are as short."""
    generator = np.random.default_rng(0)

    def chain(spacing: float, jitter: float, size: int = 40) -> GraphBatch:
        one, other = np.arange(size - 1), np.arange(1, size)
        moved = spacing * (np.arange(size) + generator.uniform(-jitter, jitter, size))
        places = np.stack([moved, np.zeros(size)], axis=1)
        return graph_from_arrays(places, np.concatenate([one, other]), np.concatenate([other, one]))

    chains = MemoryStore([chain(1.0, 0.2) for _ in range(200)])
    domain, _ = fitted_domain(chains, np.arange(100), [(np.arange(100, 200), Doubts())], [], [], [])
    flagged = output_of(domain, chain(spacing, jitter)).reasons[0]
    assert re.match(reason, flagged) if reason else not flagged


def test_another_lattice_with_the_same_nearest_distances_is_flagged_by_its_shells(domain: Domain) -> None:
    frame = crystal(np.random.default_rng(4), lattice="bcc", a=3.6 * (2 / 3) ** 0.5)
    assert re.match("statistics: the number of neighbours at [23]", output_of(domain, frame).reasons[0])


def test_another_lattice_is_flagged_between_the_bodies_of_training() -> None:
    """Bcc cells have the numbers of edges of slabs, and no surface."""
    random = np.random.default_rng(2)

    def body(number: int) -> Atoms:
        atoms = crystal(random)
        atoms.center(vacuum=5.0, axis=[(), 2, (0, 1, 2)][number % 3])
        return atoms

    bodies = MemoryStore(graphs_of([body(n) for n in range(240)]))
    domain, _ = fitted_domain(
        bodies, np.arange(120), [(np.arange(120, 240), Doubts())], [ATOMIC_NUMBERS_FIELD], KNOWN, []
    )
    frame = crystal(random, lattice="bcc", a=3.6 * (2 / 3) ** 0.5)
    assert output_of(domain, frame).reasons[0] and not output_of(domain, body(0)).reasons[0]
    assert output_of(domain, frame).distances[0, 2] > np.log(2) > output_of(domain, body(0)).distances[:, 2][0]


def test_a_vacancy_in_a_crystal_is_flagged_by_nodes_with_neighbours_on_one_side(domain: Domain) -> None:
    frame = crystal(np.random.default_rng(4)) * (2, 2, 1)
    beside = frame.get_distances(0, range(1, len(frame)), mic=True).argsort()[:12]
    assert not output_of(domain, frame).reasons[0]
    del frame[0]
    reason = output_of(domain, frame).reasons[0]
    node = re.match(r"statistics: neighbours of node (\d+) lie on one side", reason)
    assert node and int(node[1]) in beside


def test_the_spread_counts_per_node_where_the_target_grows_with_nodes(crystals: MemoryStore) -> None:
    spread = Spread(targets={"energy": "std", "gap": "entropy"}, per_node=("energy",), of_graphs=("energy", "gap"))
    doubts = {"energy": np.random.default_rng(0).uniform(1, 2, (200, 1)), "gap": np.full((200, 1), np.nan)}
    domain = fitted(crystals, Doubts(of_graphs=doubts), spread)
    frame = crystal(np.random.default_rng(8))

    def of(copies: int, doubt: float) -> float:
        own = {"energy": np.array([[doubt]]), "gap": np.array([[np.nan]])}
        return float(output_of(domain, frame * (copies, 1, 1), doubts=Doubts(of_graphs=own)).scores["spread"][0])

    assert of(1, 1.5) == pytest.approx(of(3, 4.5)) and of(1, 1.5) < 1 < of(1, 4.5)
    assert of(1, np.nan) == 0


@pytest.mark.parametrize(
    ("of_graphs", "forces", "doubts"),
    [
        (("energy",), 1.4, 0.0),
        (("energy",), 15.0, np.log(10)),
        (("energy",), np.nan, 0.0),
        (("energy",), np.inf, 100.0),
        (("energy", "forces"), 15.0, 0.0),
    ],
    ids=["usual", "ten times", "unknown", "no bounds", "no nodes"],
)
def test_doubts_are_those_beyond_the_median_of_held_out_graphs(
    crystals: MemoryStore, of_graphs: tuple[str, ...], forces: float, doubts: float
) -> None:
    """Of targets on nodes alone, by their root mean square."""
    spread = Spread(targets={"energy": "std", "forces": "std"}, per_node=(), of_graphs=of_graphs)
    usual = np.full((200, 2), 1.0)
    usual[:, 1] = np.linspace(1, 2, 200)
    domain = fitted(crystals, Doubts(of_graphs={"energy": usual, "forces": usual}), spread)
    own = {"energy": np.array([[50.0, 50.0]]), "forces": np.array([[50.0, forces]])}
    frame = crystal(np.random.default_rng(8))
    output = output_of(domain, frame, doubts=Doubts(of_graphs=own))
    np.testing.assert_allclose(output.distances[:, 1], [doubts], atol=1e-3)


DRAW = {
    "normal": lambda random, size: random.normal(size=size),
    "heavy tails": lambda random, size: random.standard_t(3, size=size),
    "skewed": lambda random, size: random.lognormal(size=size),
}


@pytest.mark.parametrize("graphs, channels", [(1000, 1), (1000, 12), (150, 6), (60, 4), (12, 6)])
@pytest.mark.parametrize("tails", DRAW)
def test_as_many_usual_graphs_are_flagged_as_allowed_whatever_the_tails(graphs: int, channels: int, tails: str) -> None:
    """Over many draws of held-out graphs, of whose channels half are the same."""
    random, shares = np.random.default_rng(graphs + channels), []
    for _ in range(60):
        values = DRAW[tails](random, (graphs + 2000, channels))
        values[:, channels // 2 :] = values[:, :1]
        rarity = fitted_rarity(values[:graphs], [PLAIN] * channels)
        shares.append(rarity.outside(rarity.standardised(values[graphs:])).mean())
    error = np.std(shares) / 60**0.5
    allowed = max(FALSE_ALARMS, 1 / (graphs + 1))
    inflation = 1 + 8 / graphs  # medians and units are of the held-out graphs themselves
    assert allowed - 3 * error <= np.mean(shares) <= inflation * allowed + 3 * error


@pytest.mark.parametrize("graphs", [8, 20])
def test_the_expected_share_of_flagged_graphs_is_right_for_few_held_out_ones(graphs: int) -> None:
    random, shares, expected = np.random.default_rng(graphs), [], []
    for _ in range(40):
        values, channels = random.normal(size=(graphs + 200, 12)), [PLAIN] * 12
        rarity = fitted_rarity(values[:graphs], channels)
        shares.append(rarity.outside(rarity.standardised(values[graphs:])).mean())
        expected.append(expected_alarms(values[:graphs], channels, FALSE_ALARMS))
    assert np.mean(shares) > 1.5 / (graphs + 1)
    assert np.mean(expected) == pytest.approx(np.mean(shares), rel=0.3)
    assert expected_alarms(np.zeros((60, 12)), channels, FALSE_ALARMS) == FALSE_ALARMS


def test_p_values_are_shares_of_held_out_graphs_linear_between_them_and_fall_beyond_all() -> None:
    random = np.random.default_rng(0)
    values = random.exponential(size=(99, 1))
    rarity = fitted_rarity(values, [PLAIN])
    usual, unit = rarity.usual[0], rarity.unit[0]
    asked = np.sort(np.concatenate([values[:, 0], [values.max() * factor for factor in (1.1, 2, 10, 100)]]))
    p_values = rarity.p_values(rarity.standardised(asked[:, None]))
    counted = [(values >= one).sum() / 100 for one in asked[:-4] if one > usual + 0.01 * unit]
    np.testing.assert_allclose(p_values[:-4][-len(counted) :], counted)
    halfway = rarity.p_values(rarity.standardised((asked[-8:-5] + asked[-7:-4])[:, None] / 2))
    np.testing.assert_allclose(halfway, [0.035, 0.025, 0.015])
    assert (np.diff(p_values) <= 0).all() and (np.diff(p_values[-4:]) < 0).all() and (p_values[-4:] < 0.01).all()
    assert rarity.limit == FALSE_ALARMS and rarity.outside(rarity.standardised(asked[:, None])).sum() == 6


def test_few_held_out_graphs_flag_from_the_largest_of_them_on_and_channels_without_values_never_count() -> None:
    rarity = fitted_rarity(np.arange(20.0)[:, None], [PLAIN])
    assert rarity.limit == pytest.approx(1 / 21)
    assert rarity.outside(rarity.standardised(np.array([[18.9], [19.0], [19.1]]))).tolist() == [False, True, True]
    values = np.random.default_rng(0).normal(size=(60, 2)) * [1.0, np.nan]
    rarity = fitted_rarity(values, [PLAIN] * 2)
    assert rarity.standardised(np.array([[0.0, 1e6]]))[0, 1] < 1e-200


def test_what_training_never_showed_is_flagged_whatever_held_out_graphs_show() -> None:
    values = np.random.default_rng(0).normal(size=(50, 2))
    values[:, 0] = np.arange(50) % 2
    rarity = fitted_rarity(values, [EXACT, PLAIN])
    asked = rarity.standardised(np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, np.nan]]))
    assert rarity.outside(asked).tolist() == [True, False, False] and asked[0, 0] == HIGHEST
    values = np.column_stack([np.linspace(0, 1, 30), np.zeros(30)])
    values[-1, 0] = 1e6  # an outlier that calibrates, at the largest excess
    rarity = fitted_rarity(values, [PLAIN, EXACT])
    p_values = rarity.p_values(rarity.standardised(np.array([[0.5, 1.0], [0.5, 0.0]])))
    assert p_values[0] <= 1 / 31 < p_values[1]


def test_a_domain_comes_back_from_its_file(domain: Domain, tmp_path: Path) -> None:
    (tmp_path / "domain.safetensors").write_bytes(domain.file_content)
    output = json.loads(json.dumps(domain.to_json()))
    again = domain_from_json(output, tmp_path, ATOMS)
    assert again.to_json() == domain.to_json() and again.file_content == domain.file_content
    frame = crystal(np.random.default_rng(9))
    assert isinstance(again, Domain) and scores(again, frame) == scores(domain, frame)


@pytest.mark.parametrize(
    ("change", "added", "words"),
    [
        ({}, b"?", "differs from what was saved"),
        ({}, None, "copy the whole folder"),
        *(({"detectors": wrong}, b"", "damaged") for wrong in ([{"name": "oracle"}], [{}], 5)),
        *(({key: wrong}, b"", "damaged") for key, wrong in (("sha256", ""), ("false_alarms", "few"), ("scale", None))),
        ({"version": 1, "usual": [], "limit": []}, b"", "damaged"),
    ],
)
def test_a_damaged_domain_is_refused(
    domain: Domain, tmp_path: Path, change: dict[str, object], added: bytes | None, words: str
) -> None:
    if added is not None:
        (tmp_path / "domain.safetensors").write_bytes(domain.file_content + added)
    refused(words, domain_from_json, {**domain.to_json(), **change}, tmp_path, ATOMS)


def test_all_formats_and_the_calculator_have_the_score(ensemble: Path, frames: list[Atoms], tmp_path: Path) -> None:
    tight = frames[0].copy()
    tight.positions *= 0.6
    asked = [frames[0], tight, Atoms("Cu2", [[0, 0, 0], [0, 0, 0]])]
    write(tmp_path / "asked.xyz", asked)
    loaded = Ensemble.load(ensemble)
    expected = loaded.predict(asked)
    assert expected.domain_score[1] < 0.1 and "nearest neighbours is" in expected.domain[1]
    assert np.isnan(expected.domain_score[2]) and expected.domain[2] == ""
    assert set(expected.domain_scores) == {"kinds", "contacts", "statistics", "spread", "latent"}
    for suffix in (".h5", ".csv", ".xyz"):
        predict_to_file(ensemble, tmp_path / "asked.xyz", tmp_path / f"out{suffix}")
    of_nodes = expected.node_domain_score
    assert (of_nodes > 0).all() and of_nodes[5:].min() < of_nodes[:4].min()
    arrays, out = arrays_of(tmp_path / "out.h5"), read_frames(tmp_path / "out.xyz", index=":")
    graphs, nodes = (
        [line.split(",") for line in path.read_text().splitlines()]
        for path in (tmp_path / "out.csv", tmp_path / "out.nodes.csv")
    )
    assert graphs[0][:6] == ["graph", "name", "status", "domain", "domain_score", "nodes"]
    assert nodes[0][:3] == ["graph", "node", "node_domain_score"]
    np.testing.assert_allclose(arrays["domain_score"], expected.domain_score, rtol=1e-6)
    np.testing.assert_allclose(arrays["node_domain_score"], of_nodes, rtol=1e-6)
    np.testing.assert_allclose([float(row[2]) for row in nodes[1:]], of_nodes, rtol=1e-6)
    assert out[1].info["domain_score"] == pytest.approx(expected.domain_score[1], rel=1e-6)
    assert "domain_score" not in out[2].info and not len(out[2])
    written = np.concatenate([frame.arrays["node_domain_score"] for frame in out[:2]])
    np.testing.assert_allclose(written, of_nodes, atol=1e-8)
    tight.calc = calculator(ensemble)
    tight.get_potential_energy()
    assert tight.calc.results["domain_score"] == pytest.approx(expected.domain_score[1], rel=1e-6)
    own = np.repeat(np.arange(3), expected.nodes_per_graph) == 1
    np.testing.assert_allclose(tight.calc.results["node_domain_score"], of_nodes[own], rtol=1e-6)


def test_the_evaluation_says_what_share_of_every_part_is_flagged(ensemble: Path) -> None:
    output = json.loads((ensemble / "evaluation.json").read_text())["domain"]
    assert output["false_alarms"] >= FALSE_ALARMS and set(output["flagged"]) == {"valid", "test"}
    few = output["false_alarms"] > FALSE_ALARMS
    assert ("expected" in output) == few and (not few or output["expected"] >= output["false_alarms"])
    with np.load(ensemble / "evaluation.npz") as arrays:
        for part in ("valid", "test"):
            rows, p_values = arrays[f"{part}/domain/scores"], arrays[f"{part}/domain/p_values"]
            assert rows.shape[1] == len(output["detectors"])
            assert output["flagged"][part] == pytest.approx((p_values <= output["false_alarms"]).mean())
            assert output["flagged"][part] <= sum(output["flagged_by_detector"][part].values())


def test_a_note_states_the_share_without_intervals_where_held_out_graphs_are_few(
    runs: list[Path], store: MemoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = build_ensemble(runs[:1], tmp_path / "ensemble", store=store)
    held_out, expected = evaluation.domain["held_out"], evaluation.domain["expected"]
    assert held_out < 49 and 1 / (held_out + 1) <= expected < 1
    words = f"{held_out} held-out graphs are too few for 2 % false alarms: about {expected * 100:.0f} % of graphs"
    assert words in capsys.readouterr().err
    assert replace(evaluation, domain={}).caveat == ""


def test_an_ensemble_of_one_member_has_a_domain(one_member: Built) -> None:
    dense = bulk("Au", "fcc", 3.0, cubic=True) * 2
    output = Ensemble.load(one_member[0]).predict([Atoms("Cu"), dense])
    assert output.domain[0] and "spread" not in output.domain_scores
    assert output.domain_scores["latent"][1] > 1  # states of one member suffice


def test_known_classes_of_very_many_are_read_without_laying_them_out() -> None:
    field = Field(name="clusters", on="node", role="auxiliary", classes=2**40, dtype="int64")
    for values, fits in (([0, 7], True), ([7, 0], False), ([0.5], False), ([-1], False), ([2**40], False), ([], False)):
        stored = Stored(tensors={"known": np.array(values, dtype=np.float64)}, fields={"clusters": field})
        with nullcontext() if fits else pytest.raises(ValueError, match="does not hold classes of clusters"):
            assert stored.kinds("known", "clusters").tolist() == values


def test_compositions_that_references_do_not_cover_are_flagged_whatever_their_score(crystals: MemoryStore) -> None:
    always_nicu = np.array([[1.0, -1.0]]) / np.sqrt(2)
    open_ones = OpenReferences(elements=np.array([28, 29]), directions=always_nicu)
    places = np.random.default_rng(0).normal(size=(6, 3))
    graphs = graphs_of([Atoms(some, places[: len(Atoms(some))]) for some in ("NiCu", "CuNiCuNiCuNi", "NiCu2", "Ni2")])
    view = GraphView(batch=concatenate(graphs), scale=1.0)
    np.testing.assert_array_equal(open_ones.values(view)[:, 0], [0, 0, 1, 1])
    domain = fitted(crystals, Doubts(), open_ones)
    stored = Stored(tensors=open_ones.tensors(), fields=ATOMS)
    np.testing.assert_array_equal(OpenReferences.load({}, stored).directions, open_ones.directions)
    output = domain.scores(view)
    assert all("reference energy" in reason for reason in output.reasons[2:])
    assert domain.rarity is not None and (output.p_values[2:] < 1 / (len(domain.rarity.held_out) + 1)).all()
