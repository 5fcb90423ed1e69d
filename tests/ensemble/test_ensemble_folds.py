"""Ensembles by cross-validation: members that held a graph out calibrate with it, and nobody else."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from hydragnn.datasets import MemoryStore, StoreWriter, make_split, open_store
from hydragnn.ensemble import Ensemble, Evaluation, build_ensemble, predict_to_file
from hydragnn.ensemble.calibration import Calibration
from hydragnn.ensemble.classes import ClassEstimate
from hydragnn.ensemble.cross_validation import cross_interval, graph_scores
from hydragnn.ensemble.estimates import FoldLabels, Labelled
from hydragnn.ensemble.folds import held_out_estimate
from hydragnn.ensemble.held_out import calibrating_split
from hydragnn.ensemble.members import load_run
from hydragnn.ensemble.numbers import NumberEstimate
from hydragnn.errors import InputError
from hydragnn.files import checksum_of
from hydragnn.graphs import Field
from hydragnn.models import Categorical, Distribution, Point, Target
from hydragnn.scripts.report import write_report
from hydragnn.scripts.report.terminal import summary_table

Array = np.ndarray[Any, np.dtype[Any]]
ENERGY = Field(name="energy", on="graph", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(2,), unit="eV/Angstrom", parity="vector", role="target")
PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")


def target_of(field: Field) -> Target:
    return Target(field=field, loss="mse", weight=1.0)


# --- what CV+ promises, on linear models that overfit ---


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Graphs that fold members were trained on, fresh graphs of the same kind, and what all members say about both."""

    truth: Array
    """[graphs, items, width]"""
    words: Array
    """[members, graphs, items, width]"""
    folds: list[tuple[int, ...]]
    """The members of every fold."""
    fold_of_graph: Array
    train: int


def draw(seed: int, field: Field, *, each: int, folds: int = 5, train: int = 40, fresh: int = 1) -> Draw:
    """Members fitted by least squares on half of the numbers that their graphs have: near interpolation."""
    generator = np.random.default_rng(seed)
    items, graphs = (3 if field.on == "node" else 1), train + fresh
    inputs = generator.normal(size=(graphs, items, 16))
    noise = generator.normal(size=(graphs, 1, field.width)) + 0.5 * generator.normal(size=(graphs, items, field.width))
    truth = inputs @ generator.normal(size=(16, field.width)) + noise * np.exp(
        0.3 * generator.normal(size=(graphs, 1, 1))
    )
    fold_of_graph = np.arange(train) % folds
    words = []
    for fold in range(folds):
        seen = np.flatnonzero(fold_of_graph != fold)
        for _ in range(each):
            own = generator.choice(
                seen, size=len(seen) - len(seen) // 10, replace=False
            )  # another tenth chose an epoch
            x, y = inputs[own].reshape(-1, 16), truth[own].reshape(-1, field.width)
            words.append(inputs @ np.linalg.lstsq(x, y, rcond=None)[0])
    return Draw(
        truth=truth,
        words=np.stack(words),
        folds=[tuple(range(fold * each, (fold + 1) * each)) for fold in range(folds)],
        fold_of_graph=fold_of_graph,
        train=train,
    )


def labelled(one: Draw, graphs: Array, members: Sequence[int], field: Field) -> Labelled:
    """What these members say about these graphs."""
    items = one.truth.shape[1]
    return Labelled(
        part="held-out",
        labels=one.truth[graphs].reshape(-1, *field.shape),
        members=said(one, graphs, members, field),
        graph=np.repeat(graphs, items),
        nodes=np.full(len(graphs) * items, items),
    )


def said(one: Draw, graphs: Array, members: Sequence[int], field: Field) -> list[Distribution]:
    return [Point(mean=torch.from_numpy(one.words[m][graphs].reshape(-1, *field.shape))) for m in members]


def covered(one: Draw, field: Field, members_of: Callable[[int], tuple[int, ...]]) -> float:
    """The share of the fresh graphs' numbers inside the intervals, where so calibrated."""
    weights = np.full(len(one.words), 1 / len(one.words))
    folds = []
    for fold in range(len(one.folds)):
        members = members_of(fold)
        graphs = np.flatnonzero(one.fold_of_graph == fold)
        folds.append(FoldLabels(members=members, rows=labelled(one, graphs, members, field)))
    fitted = NumberEstimate.cross_calibration(target_of(field), folds, weights, 0.9)
    assert fitted.guaranteed and fitted.graphs == one.train
    fresh = labelled(one, np.arange(one.train, len(one.truth)), range(len(one.words)), field)
    estimate = NumberEstimate.of(target_of(field), fresh.members, weights, fitted, fresh.nodes)
    assert (estimate.lower <= estimate.mean).all() and (estimate.mean <= estimate.upper).all()
    return float(((estimate.lower <= fresh.labels) & (fresh.labels <= estimate.upper)).mean())


DRAWS = 200


@pytest.mark.parametrize(
    ("field", "each"),
    [(ENERGY, 1), (ENERGY, 3), (FORCES, 3)],
    ids=["one member per fold", "three members per fold", "vectors of nodes"],
)
def test_cross_validated_intervals_hold_fresh_graphs(field: Field, each: int) -> None:
    hits = [
        covered(one, field, one.folds.__getitem__) for one in (draw(seed, field, each=each) for seed in range(DRAWS))
    ]
    # one fresh graph per draw: shares of its numbers vary less than one hit or miss, so the binomial bound holds for them, too
    assert np.mean(hits) >= binom.ppf(1e-4, DRAWS, 0.9) / DRAWS


def test_scores_of_members_that_have_seen_the_graphs_would_not_hold() -> None:
    """What the test above is worth: with one fold's graphs scored by another fold's members, intervals are far too narrow."""
    draws = [draw(seed, ENERGY, each=1) for seed in range(DRAWS)]
    hits = [covered(one, ENERGY, lambda fold, one=one: one.folds[(fold + 1) % 5]) for one in draws]
    assert np.mean(hits) < binom.ppf(1e-4, DRAWS, 0.9) / DRAWS


@pytest.mark.parametrize("each", [1, 2])
def test_cross_validated_sets_hold_the_classes_of_fresh_graphs(each: int) -> None:
    weights, hits, sizes = np.full(5 * each, 0.2 / each), [], []
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        middle = generator.normal(size=(41, 3))
        labels = (middle + generator.gumbel(size=(41, 3))).argmax(axis=1)
        words = middle + 0.8 * generator.normal(size=(5 * each, 41, 3))
        words[:, :40] += 3.0 * np.eye(3)[labels[:40]]  # what members have learnt by heart
        folds = []
        for fold in range(5):
            members, graphs = tuple(range(fold * each, (fold + 1) * each)), np.arange(fold, 40, 5)
            own = words[list(members)][:, graphs] - 3.0 * np.eye(3)[labels[graphs]]
            rows = Labelled(
                part="held-out",
                labels=labels[graphs].astype(np.float64),
                members=[Categorical(logits=torch.from_numpy(values)) for values in own],
                graph=graphs,
                nodes=np.ones(8, dtype=np.int64),
            )
            folds.append(FoldLabels(members=members, rows=rows))
        target = Target(field=PHASE, loss="cross_entropy", distribution=Categorical)
        fitted = ClassEstimate.cross_calibration(target, folds, weights, 0.9)
        fresh = [Categorical(logits=torch.from_numpy(values[40:])) for values in words]
        one = ClassEstimate.of(target, fresh, weights, fitted, np.ones(1, dtype=np.int64))
        hits.append(bool(one.set[0, labels[40]]))
        sizes.append(int(one.set.sum()))
    assert np.mean(hits) >= binom.ppf(1e-4, DRAWS, 0.9) / DRAWS
    assert np.mean(sizes) < 3  # not by holding everything


@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.5, 0.8, 0.9]))
def test_the_interval_is_that_of_the_paper(seed: int, folds: int, nominal: float) -> None:
    generator = np.random.default_rng(seed)
    scores = [np.sort(generator.exponential(size=generator.integers(1, 9))) for _ in range(folds)]
    means, stds = generator.normal(size=(folds, 4)), generator.exponential(size=(folds, 4)) + 0.1
    lower, upper = cross_interval(means, stds, [tuple(values) for values in scores], nominal)
    count = sum(map(len, scores))
    highest = min(math.ceil((count + 1) * nominal - 1e-9), count)
    for item in range(4):
        low = sorted(means[k, item] - r * stds[k, item] for k, values in enumerate(scores) for r in values)
        high = sorted(means[k, item] + r * stds[k, item] for k, values in enumerate(scores) for r in values)
        assert upper[item] == high[highest - 1] and lower[item] == low[count - highest]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 5))
def test_one_score_per_graph_is_never_too_small(seed: int, graphs: int, items: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.exponential(size=graphs * items)
    graph = generator.permutation(np.repeat(np.arange(graphs), items))
    kept = graph_scores(scores, graph, total=graphs)
    assert len(kept) == graphs and list(kept) == sorted(kept)
    for number, value in enumerate(kept):
        share = (number + 1) / graphs  # of all items, since graphs have equally many
        assert (scores <= value).mean() >= share - 1e-12 > (scores < value).mean() - 1e-9 - 1 / (graphs * items)
    if items == 1:
        np.testing.assert_array_equal(kept, np.sort(scores))


def test_of_many_graphs_few_scores_are_kept_and_none_is_rounded_down() -> None:
    scores = np.random.default_rng(0).exponential(size=25_000)
    kept = np.array(graph_scores(scores, np.arange(25_000), total=50_000))
    assert len(kept) == 500
    np.testing.assert_array_equal(kept, np.sort(scores)[49::50])


def test_without_enough_graphs_nothing_is_guaranteed_and_the_sentence_says_so() -> None:
    one = draw(0, ENERGY, each=1, folds=2, train=8)
    folds = [
        FoldLabels(members=(k,), rows=labelled(one, np.flatnonzero(one.fold_of_graph == k), (k,), ENERGY))
        for k in (0, 1)
    ]
    fitted = NumberEstimate.cross_calibration(target_of(ENERGY), folds, np.full(2, 0.5), 0.9)
    assert not fitted.guaranteed and fitted.sentence.endswith("had not seen them: too few to guarantee 90 %")


# --- ensembles in folders ---

FOLDS = 4


@pytest.fixture(scope="session")
def folded(store: MemoryStore) -> MemoryStore:
    """The clusters with a part for every member: its fold of four is tested, some of the others choose its epoch.

    The last eight graphs are the test part of all.
    """
    fields = [Field(name=f"part_{k}", on="graph", classes=4, dtype="int64", role="auxiliary") for k in range(FOLDS)]
    graphs = []
    for number in range(len(store)):
        parts = [2 if number >= 72 or number % FOLDS == k else int(number // FOLDS % 5 == k) for k in range(FOLDS)]
        values = {field.name: torch.tensor([part]) for field, part in zip(fields, parts)}
        graphs.append(store.read(np.array([number])).with_fields(values, fields=fields))
    return MemoryStore(graphs, store.attributes)


@pytest.fixture(scope="session")
def fold_runs(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], folded: MemoryStore) -> list[Path]:
    """The runs as if each had been trained without its fold: who trained on what is said by their files alone."""
    root, folders = tmp_path_factory.mktemp("folds"), []
    path = root / "folded.h5"
    with StoreWriter(path, folded.fields(), dim=3, attributes=folded.attributes) as writer:
        writer.write(folded.read(np.arange(len(folded))))
    for fold in range(FOLDS):
        folders.append(root / f"fold-{fold}")
        shutil.copytree(runs[fold % len(runs)], folders[-1])
        change_json(
            folders[-1] / "config.json",
            lambda v, fold=fold: v.update(
                split={"kind": "given", "field": f"part_{fold}"}, data={**v["data"], "store": str(path)}
            ),
        )
        change_json(folders[-1] / "record.json", lambda v: v.update(data_hash=open_store(path).fingerprint))
    return folders


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    sealed = value.pop("checksum", None)
    change(value)
    path.write_text(json.dumps({**value, "checksum": checksum_of(value)} if sealed else value))


@pytest.fixture(scope="session")
def cross_validated(tmp_path_factory: pytest.TempPathFactory, fold_runs: list[Path]) -> tuple[Path, Evaluation]:
    out = tmp_path_factory.mktemp("cross") / "ensemble"
    return out, build_ensemble(fold_runs, out)


def test_no_member_says_anything_about_a_graph_that_it_has_seen(
    cross_validated: tuple[Path, Evaluation], fold_runs: list[Path]
) -> None:
    members = [load_run(run, weight=0.25) for run in fold_runs]
    store = open_store(members[0].config.data.store)
    splits = [make_split(store, member.config.split) for member in members]
    _, folds = calibrating_split(members, store)
    assert sorted(np.concatenate([fold.graphs for fold in folds]).tolist()) == list(range(72))
    for fold in folds:
        for position, split in enumerate(splits):
            seen = np.intersect1d(fold.graphs, np.union1d(split.train, split.valid))
            assert len(seen) == (0 if position in fold.members else len(fold.graphs))
    with np.load(cross_validated[0] / "evaluation.npz") as arrays:
        graph, words = arrays["held-out/energy/graph"], arrays["held-out/energy/members"]
        mean, truth = arrays["held-out/energy/mean"], arrays["held-out/energy/target"]
    for position, split in enumerate(splits):
        seen = np.isin(graph, np.union1d(split.train, split.valid))
        np.testing.assert_array_equal(np.isnan(words[position]), seen)
    np.testing.assert_allclose(mean, np.nanmean(words, axis=0), rtol=1e-12)
    calibration = Ensemble.load(cross_validated[0]).manifest.calibration["energy"]
    assert isinstance(calibration, Calibration) and calibration.method == "absolute"
    for fold in calibration.folds:
        own = np.isin(graph, splits[fold.members[0]].test)
        alone = [Point(mean=torch.from_numpy(words[fold.members[0], own]))]
        nodes = store.sizes().nodes[graph[own]]
        one = NumberEstimate.of(target_of(ENERGY), alone, np.ones(1), calibration.without_folds(), nodes)
        np.testing.assert_allclose(fold.scores[0], np.sort(np.abs(one.mean - truth[own]) / one.std), rtol=1e-9)


def test_a_member_changes_what_is_said_of_its_own_fold_and_no_others(
    cross_validated: tuple[Path, Evaluation], fold_runs: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(fold_runs[1], tmp_path / "fold-1")
    shutil.copytree(fold_runs[2] / "model", tmp_path / "fold-1" / "model", dirs_exist_ok=True)  # another model entirely
    build_ensemble([fold_runs[0], tmp_path / "fold-1", *fold_runs[2:]], tmp_path / "out")
    with (
        np.load(cross_validated[0] / "evaluation.npz") as before,
        np.load(tmp_path / "out" / "evaluation.npz") as after,
    ):
        graph = before["held-out/energy/graph"]
        changed = before["held-out/energy/mean"] != after["held-out/energy/mean"]
    np.testing.assert_array_equal(changed, graph % FOLDS == 1)


def test_the_ensemble_says_how_it_was_calibrated_and_predicts(
    cross_validated: tuple[Path, Evaluation], frames: list[Atoms], fold_runs: list[Path], tmp_path: Path
) -> None:
    out, evaluation = cross_validated
    ensemble = Ensemble.load(out)
    assert set(evaluation.parts) == {"held-out", "test"} and ensemble.manifest.data["parts"]["held-out"] == 72
    for name, calibration in ensemble.manifest.calibration.items():
        assert (calibration.part, calibration.graphs, len(calibration.folds)) == ("held-out", 72, FOLDS)
        assert "CV+ over 4 folds: 90 % is usual; " in calibration.sentence
        for part in ("held-out", "test"):
            scores = evaluation.parts[part][name]
            assert len(scores.members) == FOLDS and scores.trivial["rmse"] is not None
            assert bool(scores.best_member) == (part == "test")
    assert str(evaluation)
    predictions = ensemble.predict(frames[:9])
    for name in ("energy", "forces"):
        one = predictions[name]
        assert isinstance(one, NumberEstimate)
        assert (one.lower <= one.mean).all() and (one.mean <= one.upper).all() and (one.std > 0).all()
        np.testing.assert_allclose(one.mean, one.members.mean(axis=0), atol=1e-9)
    width = predictions["energy"]["upper"] - predictions["energy"]["lower"]
    assert len(set(width.round(9))) > 1, "folds disagree more about some graphs than about others"
    source = load_run(fold_runs[0]).config.data.store
    assert predict_to_file(out, source, tmp_path / "out.npz").failed == 0
    whole = ensemble.predict(open_store(source))
    with np.load(tmp_path / "out.npz") as arrays:
        for quantity in ("mean", "std", "lower", "upper"):
            np.testing.assert_array_equal(arrays[f"fields/energy/{quantity}"], whole["energy"][quantity])


def test_no_label_meets_an_interval_that_it_made() -> None:
    """Wrong labels of a fold widen the intervals of the other folds, and leave its own as they are."""
    one, weights = draw(0, FORCES, each=2), np.full(10, 0.1)
    folds = [
        FoldLabels(members=members, rows=labelled(one, np.flatnonzero(one.fold_of_graph == k), members, FORCES))
        for k, members in enumerate(one.folds)
    ]
    wrong = replace(folds[2], rows=replace(folds[2].rows, labels=10 * folds[2].rows.labels + 5))
    before, after = (
        held_out_estimate(target_of(FORCES), every, weights, 0.9) for every in (folds, [*folds[:2], wrong, *folds[3:]])
    )
    assert isinstance(before, NumberEstimate) and isinstance(after, NumberEstimate)
    own = np.repeat(np.arange(5), len(before.mean) // 5) == 2
    for quantity in ("mean", "std", "lower", "upper"):
        np.testing.assert_array_equal(before[quantity][own], after[quantity][own])
    assert ((after.upper - after.lower)[~own] > (before.upper - before.lower)[~own]).all()


def test_the_report_says_that_members_cross_validate(
    cross_validated: tuple[Path, Evaluation], tmp_path: Path, fold_runs: list[Path]
) -> None:
    page = write_report(cross_validated[0], tmp_path / "report.html").read_text()
    assert "CV+ over 4 folds" in page and "They cross-validate" in page
    assert summary_table(cross_validated[0]).title == "ensemble: mean absolute errors on the test part"


def test_building_twice_gives_the_same_bits(
    cross_validated: tuple[Path, Evaluation], fold_runs: list[Path], tmp_path: Path
) -> None:
    build_ensemble(fold_runs, tmp_path / "ensemble")
    folders = (cross_validated[0], tmp_path / "ensemble")
    first, second = (json.loads((folder / "ensemble.json").read_text()) for folder in folders)
    for manifest in (first, second):
        del manifest["data"]["store"], manifest["checksum"]  # the store's place counts from the folder
    assert first == second
    tensors = [(folder / "domain.safetensors").read_bytes() for folder in folders]
    assert tensors[0] == tensors[1]


@pytest.mark.parametrize(
    "fold",
    [
        {"members": [4]},
        {"members": [-1]},
        {"members": []},
        {"members": [0, 0]},
        {"scores": []},
        {"scores": [[]]},
        {"scores": [[-1.0]]},
        {"scores": [[float("nan")]]},
        {"scores": [["x"]]},
        {"scores": [[1.0], [1.0]]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_fold_that_says_something_else_is_refused(
    cross_validated: tuple[Path, Evaluation], tmp_path: Path, fold: dict[str, Any]
) -> None:
    shutil.copytree(cross_validated[0], tmp_path / "received")
    change_json(
        tmp_path / "received" / "ensemble.json", lambda value: value["calibration"]["energy"]["folds"][0].update(fold)
    )
    with pytest.raises(InputError, match="damaged"):
        Ensemble.load(tmp_path / "received")


def test_folds_of_members_without_weight_are_refused(cross_validated: tuple[Path, Evaluation], tmp_path: Path) -> None:
    shutil.copytree(cross_validated[0], tmp_path / "received")
    change_json(tmp_path / "received" / "ensemble.json", lambda value: value["members"][2].update(weight=0.0))
    with pytest.raises(InputError, match="is for other members"):
        Ensemble.load(tmp_path / "received")


def test_a_member_without_weight_has_no_say(fold_runs: list[Path], tmp_path: Path) -> None:
    build_ensemble(fold_runs, tmp_path / "out", weights=[0.5, 0.25, 0.25, 0.0])
    calibration = Ensemble.load(tmp_path / "out").manifest.calibration["energy"]
    assert {fold.members for fold in calibration.folds} == {(0,), (1,), (2,)}


def test_ensembles_of_version_3_load(ensemble: Path, tmp_path: Path, frames: list[Atoms]) -> None:
    shutil.copytree(ensemble, tmp_path / "old")

    def older(value: dict[str, Any]) -> None:
        value["version"] = 3
        for calibration in value["calibration"].values():
            del calibration["folds"]

    change_json(tmp_path / "old" / "ensemble.json", older)
    before, after = (Ensemble.load(folder).predict(frames[:4]) for folder in (ensemble, tmp_path / "old"))
    np.testing.assert_array_equal(before["energy"]["upper"], after["energy"]["upper"])
