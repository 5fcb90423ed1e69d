"""Values in notebooks: everything is text, whatever a file calls itself."""

import torch

from hydragnn.base.shown import LONGEST, ROWS, html_table
from hydragnn.graphs import Field, graph_from_arrays

EVIL = "<script>alert('x')</script>"


def test_text_is_escaped_wherever_it_stands() -> None:
    rows = {
        EVIL: EVIL,
        "list": [EVIL],
        "table": {EVIL: EVIL},
        "deep": {"a": {"b": {"c": {EVIL: EVIL}}}},
        "rows": [{EVIL: EVIL}],
    }
    html = html_table(EVIL, rows)
    assert "<script" not in html and "alert('" not in html and html.count("&lt;script&gt;") >= 9


def test_long_values_are_cut() -> None:
    html = html_table(
        "", {"text": "x" * 10_000, "rows": [{"a": one} for one in range(1000)], **{str(k): k for k in range(999)}}
    )
    assert len(html) < 10_000 and "x" * (LONGEST + 1) not in html and f"and {1000 - ROWS} more" in html


def test_a_batch_with_a_hostile_name_shows_it_as_text() -> None:
    graph = graph_from_arrays(torch.zeros(2, 3), [0], [1]).with_texts({"name": [EVIL]})
    graph = graph.with_fields({"gap": torch.zeros(1)}, fields=[Field(name="gap", on="graph", unit=EVIL)])
    assert "<script" not in graph._repr_html_() and "2 nodes" in graph._repr_html_()
