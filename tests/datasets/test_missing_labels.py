"""A label that some graphs lack: every error on the way says which thing to leave out, and doing so works."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, validate
from hydragnn.graphs.field import Location
from tests.refusals import refuses


@pytest.mark.parametrize(("on", "rows"), [("graph", 1), ("node", 2), ("edge", 2)])
def test_sentences_about_a_missing_label_say_both_things_to_leave_out(on: Location, rows: int, tmp_path: Path) -> None:
    label, items = Field(name="label", on=on, role="target"), {"graph": "graphs", "node": "nodes", "edge": "edges"}[on]

    def make(fields: list[Field], values: dict[str, list[float]]) -> GraphBatch:
        return graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0], fields=fields, **{items: values})

    both = f"where it has no label, leave the value out .*, in Python neither fields nor {items} have it"
    say = r"where labels of label are missing, say so: optional = true in a BUILD.toml, optional=\['label'\] in Python"
    refuses(f"nan in row 0 .*; remove the graph, or {say}", make, [label], {"label": [math.nan] * rows})
    refuses(rf"pass {items}=.'label': \.\.\.., or {both}", make, [label], {})
    refuses(rf"declare it in fields \(.*\), or leave it out of {items}, too", make, [], {"label": [0.0] * rows})
    labelled = make([label], {"label": [1.0] * rows})
    with pytest.raises(InputError, match=f"graph 0, field label: nan .*; remove the graph, or {say}"):
        validate(labelled.with_fields({"label": labelled["label"] * math.nan}))
    refuses("add it, or take label out of the batch's fields, too", validate, replace(labelled, **{items: {}}))
    with StoreWriter(tmp_path / "some.h5", [label], dim=2) as writer:  # what the sentences advise
        writer.write(make([], {}))
        writer.write(labelled)
    assert open_store(tmp_path / "some.h5").read([0, 1]).present("label").tolist() == [False, True]
