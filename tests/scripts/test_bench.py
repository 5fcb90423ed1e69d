"""The table of ``hydragnn bench``: every section is in it, on every machine, and says what is asked."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.scripts.bench import table
from hydragnn.scripts.bench.showing import show_table
from hydragnn.scripts.bench.table import SECTIONS, Effort, bench_table
from hydragnn.scripts.cli import app

TINY = Effort(
    turns=1,
    nodes=20,
    ranks=(2, 20),
    steps=1,
    measured_graphs=2,
    edges=100,
    pairs=1,
    batch=1,
    compiled=(),
    members=2,
    trained=("schnet",),
    dynamics=1,
    graphs=50,
)


@pytest.fixture(autouse=True)
def same_threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_section_has_rows_with_a_figure_and_some_say_what_is_asked(tmp_path: Path) -> None:
    show_table(TINY, "", tmp_path / "table.json")
    rows = read_json(tmp_path / "table.json")["rows"]
    words = ("gather_multiply_sum", "segment_statistics", "balance, measured costs", "share of a rank", "memory")
    for part in (*words, "stacked", "calculator", "second trial"):
        found = [row for row in rows if part in row["what"]]
        assert found, part
        assert all(row["measured"] > 0 and row["device"] for row in found)
    assert sum(bool(row["asked"]) for row in rows) > 10


def test_a_step_that_cannot_be_compiled_says_so_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise table.NotCompiled("there is no compiler")

    monkeypatch.setattr(table, "compiled_model", refused)
    (row,) = table.compiled(Effort(batch=1, compiled=("schnet",)), lambda _: None)
    assert row.measured is None
    assert "there is no compiler" in row.unit


def test_only_takes_the_name_of_a_section() -> None:
    with pytest.raises(InputError, match="there is no section opps to measure; --only takes one of ops, planning"):
        next(bench_table(TINY, "opps"))
    shown = CliRunner().invoke(app, ["bench", "all", "--help"]).output
    assert all(name in shown for name in SECTIONS)
