"""What is printed, or shown in a notebook, holds strings of files that others made: none styles, hides or steers anything."""

import io
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from rich.table import Table
from typer.testing import CliRunner

from hydragnn.base.errors import InputError
from hydragnn.base.shown import LONGEST, ROWS, html_table
from hydragnn.base.terminal import PlainConsole, Printed, visible
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.scripts.cli import app, main
from hydragnn.scripts.report import canvas

EVIL = "<script>alert('x')</script>"
STEERING = "\x1b[2J\x1b]0;title\x07\r\x9b31m\u202etxt.exe"
WRITTEN_OUT = "\\x1b[2J\\x1b]0;title\\x07\\x0d\\x9b31m\\u202etxt.exe"


def store_with(folder: Path, text: str) -> Path:
    fields = [Field(name="charge", on="node", unit="[e/A]")]
    with StoreWriter(folder / "store.h5", fields, dim=3, attributes={"source": text}) as store:
        store.write(graph_from_arrays(torch.zeros(1, 3), [], [], fields=fields, nodes={"charge": torch.ones(1)}))
    return folder / "store.h5"


def test_what_steers_a_terminal_is_written_out_and_the_rest_stays() -> None:
    assert visible(STEERING) == WRITTEN_OUT
    assert visible("a\u2066\u200f\u061cb") == "a\\u2066\\u200f\\u061cb"
    assert visible("Å³\tμ\n[e/Å]") == "Å³\tμ\n[e/Å]"


def test_brackets_and_codes_are_printed_as_they_are_in_lines_and_tables() -> None:
    text = "[/bold] [red]e[/red] [e/A] :smile: \x1b[31m"
    table = Table(box=None, pad_edge=False)
    table.add_row(text)
    for thing in (text, table):
        paper = io.StringIO()
        PlainConsole(file=paper, width=100).print(thing)
        assert paper.getvalue().strip() == visible(text)


def test_a_store_of_a_stranger_is_described_without_its_markup(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "info", str(store_with(tmp_path, f"[/bold] {STEERING}"))])
    assert result.exit_code == 0, result.exception
    assert f"source: [/bold] {WRITTEN_OUT}" in result.output and "[e/A]" in result.output


def test_an_error_steers_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["hydragnn", "data", "info", f"no{STEERING}.h5"])
    with pytest.raises(SystemExit):
        main()
    assert "\x1b" not in capsys.readouterr().err


def test_a_unit_that_cannot_be_printed_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be printed"):
        Field(name="charge", on="node", unit=STEERING)


@pytest.mark.filterwarnings("ignore:Glyph")  # no font has them
def test_a_picture_holds_names_that_xml_cannot() -> None:
    def draw(axes: Axes) -> None:
        axes.set_title(STEERING)

    drawn = canvas.picture("name", "a title", draw)
    assert WRITTEN_OUT in drawn and "\x1b" not in drawn


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_a_stream_cannot_encode_is_written_out(errors: str) -> None:
    paper = io.BytesIO()
    stream = Printed(io.TextIOWrapper(paper, encoding="ascii", errors=errors))
    stream.write("eV/\u00c5")
    stream.flush()
    assert paper.getvalue() == b"eV/\\xc5"


def test_text_is_escaped_wherever_it_stands() -> None:
    deep = {"a": {"b": {"c": {EVIL: EVIL}}}}
    rows = {EVIL: EVIL, "list": [EVIL], "table": {EVIL: EVIL}, "deep": deep, "rows": [{EVIL: EVIL}]}
    html = html_table(EVIL, rows)
    assert "<script" not in html and "alert('" not in html and html.count("&lt;script&gt;") >= 9


def test_long_values_are_cut() -> None:
    many = {str(key): key for key in range(999)}
    html = html_table("", {"text": "x" * 10_000, "rows": [{"a": one} for one in range(1000)], **many})
    assert len(html) < 10_000 and "x" * (LONGEST + 1) not in html and f"and {1000 - ROWS} more" in html


def test_a_batch_with_a_hostile_name_shows_it_as_text() -> None:
    graph = graph_from_arrays(torch.zeros(2, 3), [0], [1]).with_texts({"name": [EVIL]})
    graph = graph.with_fields({"gap": torch.zeros(1)}, fields=[Field(name="gap", on="graph", unit=EVIL)])
    assert "<script" not in graph._repr_html_() and "2 nodes" in graph._repr_html_()
