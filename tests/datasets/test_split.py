"""Parts are disjoint, complete, repeatable, and keep together what must not leak."""

import re
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, Split, SplitSettings, make_split
from hydragnn.datasets.copies import copy_labels
from hydragnn.datasets.split import LABELS, copies_across, reduced_compositions, sentence_on_copies
from hydragnn.graphs import GraphBatch, graph_from_arrays
from tests.refusals import refuses


def check_complete(split: Split, graphs: int) -> None:
    together = np.concatenate([split.train, split.valid, split.calibration, split.test])
    assert sorted(together.tolist()) == list(range(graphs))


def parts_of(*counts: int) -> dict[str, int]:
    return dict(zip(("train", "valid", "calibration", "test"), counts))


KINDS = {
    "random": SplitSettings(),
    "composition": SplitSettings(kind="composition", train=0.6, valid=0.2),
    "group": SplitSettings(kind="group", field="label", train=0.6, valid=0.2),
}
APART = {kind: one.model_copy(update={"train": 0.2, "valid": 0.1}) for kind, one in KINDS.items()}
"""With these 42 of the 60 graphs are left, so that half of them calibrate without a word."""


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_every_graph_is_in_exactly_one_part_and_the_seed_decides(store: MemoryStore, settings: SplitSettings) -> None:
    first, again = make_split(store, settings), make_split(store, settings)
    check_complete(first, len(store))
    other = make_split(store, settings.model_copy(update={"seed": 7}))
    assert first.train.tolist() == again.train.tolist()
    assert first.train.tolist() != other.train.tolist()


def test_equal_compositions_stay_together_whatever_the_size_of_the_cell(graph: Callable[..., GraphBatch]) -> None:
    cells = MemoryStore([graph(nodes, 0, seed=1, species=(z,)) for z in (1, 6, 8, 26) for nodes in (1, 2, 4)])
    assert len(np.unique(reduced_compositions(cells), axis=0)) == 4
    split = make_split(cells, SplitSettings(kind="composition", train=0.5, valid=0.25))
    assert split.counts == parts_of(6, 3, 0, 3)
    assert all(set(part // 3 * 3) == set(part[::3]) for part in (split.train, split.valid, split.test))


def test_the_test_part_may_be_empty_only_where_nothing_remains_for_it(graph: Callable[..., GraphBatch]) -> None:
    sixty, store = MemoryStore([graph(seed=k) for k in range(60)]), MemoryStore([graph(seed=k) for k in range(4)])
    assert make_split(sixty, SplitSettings(train=0.7, valid=0.2)).counts == parts_of(42, 12, 0, 6)
    assert make_split(store, SplitSettings(train=0.5, valid=0.5)).counts == parts_of(2, 2, 0, 0)
    refuses("the test part of the random split is empty", make_split, store, SplitSettings(train=0.5, valid=0.49))


def by_label(kind: str, **more: float) -> SplitSettings:
    return SplitSettings(kind=kind, field="label", **more)


BAD = [
    (SplitSettings(train=0.98, valid=0.001), "valid part of the random split is empty"),
    (by_label("group", train=0.95, valid=0.01), "valid part of the group split is empty.*more groups"),
    (SplitSettings(kind="group", field="grain"), "the store has no field or text grain; valid: "),
    (SplitSettings(kind="group", field="forces"), "lives on nodes"),
    (by_label("given"), "one of 0 .train., 1 .validation., 2 .test., 3 .calibration."),
    (SplitSettings(calibration=0.001), "calibration part.*calibration = 0.001.; give it a larger"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_a_split_that_cannot_be_made_says_why(store: MemoryStore, settings: SplitSettings, message: str) -> None:
    refuses(message, make_split, store, settings)


@pytest.mark.parametrize("settings", [APART["random"], APART["group"]], ids=["random", "group"])
@pytest.mark.parametrize("calibration", [None, 0.0, 0.2], ids=["default", "none", "a fifth"])
def test_calibration_takes_test_graphs(store: MemoryStore, settings: SplitSettings, calibration: float | None) -> None:
    before = make_split(store, settings.model_copy(update={"calibration": 0.0}))
    split = make_split(store, settings.model_copy(update={"calibration": calibration}))
    check_complete(split, len(store))
    assert (split.train.tolist(), split.valid.tolist()) == (before.train.tolist(), before.valid.tolist())
    assert not len(before.calibration)
    expected = {None: 18 if settings.kind == "group" else 21, 0.0: 0, 0.2: 12}  # of 7 groups of 6 graphs, 3 are half
    assert split.counts["calibration"] == expected[calibration]


def test_groups_that_calibrate_are_whole(store: MemoryStore) -> None:
    calibration, labels = make_split(store, APART["group"]).calibration, store.column("label").values
    assert not {*labels[calibration]} & {*labels[np.setdiff1d(range(60), calibration)]}


@pytest.mark.parametrize(("graphs", "calibrating"), [(39, 0), (40, 20), (41, 20)])
def test_half_of_40_graphs_or_more_calibrate(graph: Callable[..., GraphBatch], graphs: int, calibrating: int) -> None:
    store = MemoryStore([graph(1, 0, seed=k) for k in range(graphs + 10)])
    settings = SplitSettings(train=5 / len(store), valid=5 / len(store))
    assert make_split(store, settings).counts == parts_of(5, 5, calibrating, graphs - calibrating)


def test_given_parts_are_taken_and_one_calibrates_where_it_is_named(graph: Callable[..., GraphBatch]) -> None:
    store, settings = MemoryStore([graph(seed=k, label=k % 4) for k in range(12)]), by_label("given")
    split = make_split(store, settings)
    parts = [part.tolist() for part in (split.train, split.valid, split.test, split.calibration)]
    assert parts == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    three = make_split(MemoryStore([graph(seed=k, label=k % 3) for k in range(9)]), settings)
    assert (three.test.tolist(), three.calibration.tolist()) == ([2, 5, 8], [])
    with pytest.raises(InputError, match=r"0 .train., 1 .validation., 2 .test. per graph"):
        make_split(store, settings.model_copy(update={"calibration": 0.0}))
    with pytest.raises(InputError, match=r"takes no fraction.*the number 3 in label"):
        make_split(store, settings.model_copy(update={"calibration": 0.2}))


def test_every_kind_of_split_has_its_rule() -> None:
    assert {*LABELS, "given"} == set(get_args(SplitSettings.model_fields["kind"].annotation))


def test_fractions_beyond_the_whole_are_refused() -> None:
    with pytest.raises(InputError, match=r"train . valid . calibration = 1.1 exceeds 1; lower one of them"):
        SplitSettings.parse({"train": 0.8, "valid": 0.1, "calibration": 0.2})


def test_a_missing_label_is_named(graph: Callable[..., GraphBatch]) -> None:
    bare = graph_from_arrays([[0.0, 0.0, 0.0]], [], [])
    refuses("graph 1 has no label", make_split, MemoryStore([graph(), bare]), by_label("group"))
    refuses("no field atomic_numbers", make_split, MemoryStore([bare]), SplitSettings(kind="composition"))


def with_copies(graph: Callable[..., GraphBatch]) -> MemoryStore:
    """Eighty graphs, of which twenty are distinct, named for what they are copies of."""
    names = [f"g{number % 20}" for number in range(80)]
    graphs = [graph(2 + number % 5, 4, seed=number % 20) for number in range(80)]
    return MemoryStore([one.with_texts({"name": [name]}) for one, name in zip(graphs, names)])


@pytest.mark.parametrize("group", ["duplicates", "name"])
def test_copies_and_equal_texts_stay_together(group: str, graph: Callable[..., GraphBatch]) -> None:
    store = with_copies(graph)
    split = make_split(store, SplitSettings.parse({"group": group, "train": 0.6, "valid": 0.2}))
    assert split.counts == parts_of(48, 16, 0, 16)
    labels = np.arange(80) % 20
    parts = [set(labels[part].tolist()) for part in (split.train, split.valid, split.test)]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert copies_across(store, split).count == 0


def test_copies_across_parts_are_counted_with_an_example(graph: Callable[..., GraphBatch]) -> None:
    store = with_copies(graph)
    assert len(np.unique(copy_labels(store))) == 20
    split = make_split(store, SplitSettings(train=0.5, valid=0.25))
    train, valid = (set((part % 20).tolist()) for part in (split.train, split.valid))
    expected = sum(one % 20 in train for one in split.valid) + sum(one % 20 in train | valid for one in split.test)
    copies = copies_across(store, split)
    assert (copies.count, copies.of) == (expected, 40)
    assert copies.copy % 20 == copies.original % 20
    assert re.fullmatch(
        rf"{expected} of 40 graphs outside the training part are copies of graphs in another part .*, such as graph 'g(\d+)' "
        rf"\(number {copies.copy}, (validation|test)\) of graph 'g\1' \(number {copies.original}, train\), .*split.group = \"duplicates\".*",
        sentence_on_copies(store, split, copies),
    )


def test_a_text_that_a_graph_lacks_is_named(graph: Callable[..., GraphBatch]) -> None:
    graphs = [graph(2, 1, seed=k).with_texts({"run": ["" if k == 2 else "a"], "name": [f"g{k}"]}) for k in range(4)]
    with pytest.raises(InputError, match="graph 'g2' has no text run; every graph needs one here"):
        make_split(MemoryStore(graphs), SplitSettings(kind="group", field="run"))
    with pytest.raises(InputError, match="no field or text rum; did you mean run"):
        make_split(MemoryStore(graphs), SplitSettings(kind="group", field="rum"))
    with pytest.raises(InputError, match=r"split.*: group stands for kind and field"):
        SplitSettings.parse({"group": "run", "kind": "random"}, "split")
