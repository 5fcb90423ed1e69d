"""Windows of readings, each against arrays made by hand, and what is refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.datasets import make_split, open_store
from hydragnn.datasets.settings import TIME_SPAN, SplitSettings
from hydragnn.ensemble import rollout, spread_factors
from tests.datasets.conftest import built, refused
from tests.refusals import refuses

NODES = "sensor,level\na,1\nb,2\nc,3\n"
PIPES = "sender,receiver,length\na,b,10\nb,c,20\n"
# of a at 0, 20 and 50 minutes, of b at 10 and 40; not in order
LONG = """time,sensor,t
2026-01-01T00:20Z,a,3
2026-01-01T01:00+01:00,a,1
2026-01-01T00:10Z,b,20
2026-01-01T00:30Z,a,
2026-01-01T00:40Z,b,50
2026-01-01T00:50Z,a,6
"""
WIDE = """time,a,b
2026-01-01T00:00Z,1,
2026-01-01T00:10Z,,20
2026-01-01T00:20Z,3,
2026-01-01T00:40Z,,50
2026-01-01T00:50Z,6,nan
"""
WEATHER = "time,out\n" + "".join(f"2026-01-01T00:{step}0Z,{step}\n" for step in range(6))
LEVEL, LENGTH = {"name": "level", "on": "node"}, {"name": "length", "on": "edge"}
T = {"name": "t", "on": "node", "unit": "K", "scale": 2.0}
NEXT = T | {"name": "next", "key": "t", "role": "target"}
OUT = {"name": "out", "on": "graph"}
TABLE: dict[str, Any] = {
    "kind": "sensors", "files": ["t.csv", "weather.csv"], "sensors": "nodes.csv", "edges": "pipes.csv", "undirected": True,
    "window": 3, "ahead": 2, "known": ["out"], "fields": [LEVEL, LENGTH, T, NEXT, OUT],
}  # fmt: skip


def write(folder: Path, **files: str) -> None:
    for name, text in ({"nodes": NODES, "pipes": PIPES, "weather": WEATHER, "t": LONG} | files).items():
        (folder / f"{name}.csv").write_text(text)


@pytest.mark.parametrize("readings", [LONG, WIDE])
def test_a_window_with_gaps_has_the_arrays_made_by_hand(readings: str, tmp_path: Path) -> None:
    write(tmp_path, t=readings)
    graphs, nan = built(tmp_path, **TABLE), np.nan
    arrays = {
        # the last value; before the first one the mean of the others then: c has no sensor
        "t": [[2, 2, 6], [2, 40, 40], [2, 21, 23], [2, 6, 6], [40, 40, 40], [21, 23, 23]],
        "t_observed": [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]],
        "t_last": [[6, 6], [40, 40], [23, 23], [6, 6], [40, 40], [23, 23]],
        "next": [[nan, nan], [nan, 100], [nan, nan], [nan, 12], [100, nan], [nan, nan]],
        "out": [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]],
        "level": [1, 2, 3, 1, 2, 3],
        "length": [10, 10, 20, 20, 10, 10, 20, 20],
    }
    for name, values in arrays.items():
        np.testing.assert_array_equal(graphs[name], values, err_msg=name)
    assert list(graphs.names) == ["2026-01-01T00:20:00+00:00", "2026-01-01T00:30:00+00:00"]
    assert (graphs[TIME_SPAN] - graphs[TIME_SPAN][0, 0]).tolist() == [[0, 2400], [600, 3000]]
    assert graphs.fields["t_last"].unit == "K" and graphs.fields["t_observed"].unit == ""


@pytest.mark.parametrize("readings", [LONG, WIDE])
def test_a_number_that_is_missing_is_a_gap(readings: str, tmp_path: Path) -> None:
    write(tmp_path, t=readings)
    gaps = built(tmp_path, "gaps.h5", **TABLE)
    write(tmp_path, t=readings.replace(",\n", ",-999\n").replace(",,", ",-999,").replace("nan", "-999"))
    fields = [LEVEL, LENGTH, T | {"missing_value": -999}, NEXT | {"missing_value": -999}, OUT]
    marked = built(tmp_path, "marked.h5", **TABLE | {"fields": fields})
    for name in gaps.fields:
        torch.testing.assert_close(marked[name], gaps[name], rtol=0, atol=0, equal_nan=True)


def test_a_named_step_makes_means_and_no_target_leaves_the_newest_window(tmp_path: Path) -> None:
    write(tmp_path, t="time,a\n1.5,1\n9,3\n10,5\n21,7\n30,9\n")
    table = TABLE | {"files": ["t.csv"], "time_unit": "min", "step": 600, "known": [], "window": 2, "fields": [T]}
    graphs = built(tmp_path, **table)
    assert graphs["t"][::3].tolist() == [[6, 6], [6, 16]] and graphs["t_observed"][::3].tolist() == [[1, 0], [0, 1]]
    assert list(graphs.names) == ["1200 s", "1800 s"]


def test_a_parquet_file_is_a_table(tmp_path: Path) -> None:
    parquet, csv = (pytest.importorskip(f"pyarrow.{name}") for name in ("parquet", "csv"))
    write(tmp_path)
    parquet.write_table(csv.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    (one, other) = (built(tmp_path, **TABLE | {"files": [file, "weather.csv"]}) for file in ("t.csv", "t.parquet"))
    torch.testing.assert_close(one["t"], other["t"], rtol=0, atol=0)


def test_a_column_of_units_counts(tmp_path: Path) -> None:
    own = "\n".join(f"{line},{'K' if number else 'unit'}" for number, line in enumerate(LONG.splitlines()))
    table = TABLE | {"fields": [LEVEL, LENGTH, T | {"scale": 1.0}, OUT]}
    write(tmp_path)
    expected = built(tmp_path, **table)
    write(tmp_path, t=own)
    torch.testing.assert_close(built(tmp_path, **table)["t"], expected["t"], rtol=0, atol=0)
    write(tmp_path, t=own.replace("a,3,K", "a,3,degC"))
    refused(tmp_path, "t.csv: t is in K and degC; bring it to one unit", **table)
    write(tmp_path, t=own, later=own.replace(",K", ",degC").replace("2026", "2027"))
    plain = {"fields": [{"name": "t", "on": "node"}], "known": [], "files": ["t.csv", "later.csv"]}
    refused(tmp_path, "later.csv: t is in K and degC", **table | plain)
    write(tmp_path, t=own.replace(",K", ",degC"))
    refused(tmp_path, "t is in degC, not K", **table)


def series(steps: int, changed: int | None = None) -> str:
    """Return a wide table of two sensors, whose values change from a step on."""
    values = np.random.default_rng(0).normal(size=(steps, 2))
    if changed is not None:
        values[changed:] += 100
    return "time,a,b\n" + "".join(f"{step},{a},{b}\n" for step, (a, b) in enumerate(values))


HOURS: dict[str, Any] = TABLE | {"files": ["t.csv"], "time_unit": "h", "known": [], "fields": [LEVEL, LENGTH, T, NEXT]}


def test_parts_are_blocks_of_time_that_share_no_value(tmp_path: Path) -> None:
    write(tmp_path, t=series(60))
    built(tmp_path, "whole.h5", **HOURS)
    store = open_store(tmp_path / "whole.h5")
    split = make_split(store, SplitSettings(train=0.5, valid=0.2, calibration=0.15))
    # 56 windows of 5 steps; those that reach into the next part, 4 at every cut, are in none
    parts = [getattr(split, name).tolist() for name in ("train", "valid", "calibration", "test")]
    assert parts == [[*range(24)], [*range(28, 35)], [*range(39, 43)], [*range(47, 56)]]
    for one, other in pairwise(parts):
        assert store[[one[-1]]][TIME_SPAN][0, 1] < store[[other[0]]][TIME_SPAN][0, 0]
    write(tmp_path, t=series(60, changed=28))
    built(tmp_path, "changed.h5", **HOURS)
    changed = open_store(tmp_path / "changed.h5")
    train, after = store[split.train], changed[split.train]
    for name in train.fields:
        torch.testing.assert_close(train[name], after[name], rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(store[[24]]["next"], changed[[24]]["next"])  # the first that a change reaches
    built(tmp_path, "again.h5", **HOURS)
    assert open_store(tmp_path / "again.h5").fingerprint == changed.fingerprint != store.fingerprint
    refuses("the valid part of the random split is empty", make_split, store, SplitSettings(train=0.94, valid=0.05))


BAD: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no zone": ({"t": LONG.replace("20Z", "20")}, {}, "t.csv: '2026-01-01T00:20' in the column time is no time, such as"),
    "clock change": ({"t": "time,a\n2026-10-25 02:30,1\n"}, {"zone": "Europe/Berlin"}, "clocks change at 2026-10-25 02:30 in Europe/Berlin"),
    "no unit": ({"t": "time,a\n0,1\n"}, {}, "set zone for times without one, time_unit for numbers"),
    "German date": ({"t": "time,a\n31.01.2026,1\n"}, {"zone": "UTC"}, "'31.01.2026' in the column time is no time"),
    "twice": ({"t": LONG + "2026-01-01T00:50Z,a,6\n"}, {}, "t of a has two rows of 2026-01-01T00:50:00+00:00; keep one"),
    "stranger": ({"t": LONG + "2026-01-01T00:50Z,x,6\n"}, {}, "t.csv has readings of 'x', no node of"),
    "no name": ({"t": LONG + "2026-01-01T00:50Z,,6\n"}, {}, "t.csv has readings of '', no node of"),
    "a nameless node": ({"nodes": NODES + ",4\n"}, {}, "nodes.csv: a row has nothing in the column sensor; fill it in"),
    "strange column": ({"t": WIDE.replace("a,b", "a,x")}, {}, "t.csv, column x:"),
    "no constant step": ({"t": LONG.replace("00:50Z", "00:47Z")}, {}, "2026-01-01T00:47:00+00:00 is no whole number of steps of 600 s"),
    "wrong year": ({"t": LONG.replace("2026-01-01T00:50Z", "1926-01-01T00:50Z")}, {}, "are too few for steps of 600 s; repair one"),
    "text": ({"t": LONG.replace(",20\n", ",off\n")}, {}, "the column t holds 'off', which is no number"),
    "decimal comma": ({"t": LONG.replace(",20\n", ',"20,5"\n')}, {}, "the column t holds '20,5', which is no number"),
    "infinity": ({"t": LONG.replace(",20\n", ",inf\n")}, {}, "t.csv, column t: it holds texts or infinities"),
    "too short": ({}, {"window": 5}, "6 steps of 600 s, fewer than the 7 of a window and what is ahead"),
    "falling steps": ({}, {"ahead": [2, 1]}, "[2, 1] is no number of steps and no rising list of them"),
    "far ahead": ({}, {"ahead": 10**9}, "1000000000 is no number of steps and no rising list of them, from 1 on, up to 10000"),
    "one missing value": ({}, {"fields": [T | {"missing_value": -9}, NEXT, OUT]}, "field next reads t, as t does; give both one"),
    "no forecast": ({}, {"known": ["level"]}, "have no readings for an input level; add them, or its field"),
    "two meanings": ({"nodes": NODES.replace("level", "t")}, {"fields": [T, NEXT, OUT]}, "nodes.csv has t, too"),
    "a shape": ({}, {"fields": [LEVEL, LENGTH, T | {"shape": [3]}, NEXT, OUT]}, "window and ahead are its shape"),
    "two networks": ({"nodes": "graph,sensor,level\n1,a,1\n1,b,2\n2,c,3\n", "pipes": "graph,sender,receiver,length\n1,a,b,1\n2,c,c,1\n"}, {}, "several graphs"),
    "nothing read": ({}, {"files": ["t.csv"], "known": [], "fields": [LEVEL, LENGTH]}, "no field reads a value there"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_readings_that_mean_nothing_are_refused(case: tuple[dict[str, str], Any, str], tmp_path: Path) -> None:
    files, settings, words = case
    write(tmp_path, **files)
    refused(tmp_path, words, **TABLE | settings)


def test_windows_roll_out_on_their_own_predictions(tmp_path: Path) -> None:
    write(tmp_path, t=series(60))
    built(tmp_path, "store.h5", **HOURS | {"fields": [LEVEL, LENGTH, T, NEXT, {"name": "u", "on": "node", "key": "t"}]})
    store = open_store(tmp_path / "store.h5")
    table: dict[str, Any] = {"data": {"store": str(tmp_path / "store.h5")}, "model": {"kind": "pna", "num_layers": 1}}
    table["heads"] = [{"kind": "scalar", "field": "next", "correction_of": "t_last"}]
    for seed in range(2):
        hydragnn.train(table | {"train": {"epochs": 1, "seed": seed}}, tmp_path / f"run-{seed}")
    hydragnn.build_ensemble([tmp_path / f"run-{seed}" for seed in range(2)], tmp_path / "both")
    model, graphs = hydragnn.load(tmp_path / "both"), [store[[number]] for number in (40, 41, 42)]
    course = rollout(model, graphs[0], 3, later=graphs[1:])
    assert course.courses["t"].shape == (2, 3, 3, 1) and course.constant == (
        "u",
    )  # no forecast knows its later readings
    other = [one.with_fields({name: one[name] + 9 for name in ("u", "u_last", "u_observed")}) for one in graphs[1:]]
    assert torch.equal(rollout(model, graphs[0], 3, later=other).courses["t"], course.courses["t"])
    for number, member in enumerate(model.members):
        window, observed = graphs[0]["t"], graphs[0]["t_observed"]
        for step, graph in enumerate(graphs):
            flags = {"t": window, "t_observed": observed, "t_last": window[:, -1:].expand(-1, 2)}
            flags |= {"u_last": graphs[0]["u_last"], "u": graphs[0]["u"][:, [*range(step, 3), *[2] * step]]}
            flags["u_observed"] = torch.cat([graphs[0]["u_observed"][:, step:], torch.zeros(3, step)], dim=1)
            mean = member.model.predict(graph.with_fields(flags))["next"].mean[:, :1]
            torch.testing.assert_close(course.courses["t"][number, step], mean)
            window = torch.cat([window[:, 1:], mean.float()], dim=1)
            observed = torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3])  # c has no sensor
    truth = {"t": torch.stack([graph["next"][:, :1] for graph in graphs]).double()}
    error = course.mean("t") - truth["t"]
    expected = (error[:, :2].square().mean((1, 2)) / course.spread("t")[:, :2].square().mean((1, 2))).sqrt()
    torch.testing.assert_close(spread_factors([course], [truth])["t"], expected)
    wide = course.scaled(spread_factors([course] * 2, [truth] * 2, nominal=0.5)).spread("t")
    torch.testing.assert_close((error.abs() / wide)[:, :2, 0].mean(1), torch.ones(3).double())  # of two, half way
    for later, steps, words in (
        (graphs[1:], 4, "later has graphs of 2 steps; give those of 3"),
        ([], 3, "t is a window of readings; give later"),
        (graphs[:0:-1], 3, "t is a window of readings; give later"),
        ([graphs[1].with_texts({"file": ["b"]})] * 2, 3, "later: graphs of step 2 are not those of step 1"),
        ([store[[41, 42]]] * 2, 3, "later: graphs of step 2 are not those of step 1"),
    ):
        refuses(words, rollout, model, graphs[0].with_texts({"file": ["a"]}), steps, later=later)
    for courses, truths, nominal, words in (
        ([course], [{"next": truth["t"]}], None, r"the truth of t has shape \[0\]; give that of a course, \[3, 3, 1\]"),
        ([course], [{"t": truth["t"][:2]}], None, r"the truth of t has shape \[2, 3, 1\]"),
        ([course], [truth] * 2, None, "1 roll-outs, 2 truths"),
        ([], [], None, "0 roll-outs, 0 truths"),
        ([course], [truth], 90.0, "nominal 90.0; give a truth for each, and a share between 0 and 1"),
    ):
        refuses(words, spread_factors, courses, truths, nominal)
