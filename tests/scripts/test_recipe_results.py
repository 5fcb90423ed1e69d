"""What recipes reached becomes rows of a page; rows of recipes that were not run stay."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.record import Cost, RunRecord
from hydragnn.scripts.recipes import results as command
from hydragnn.scripts.recipes.__main__ import NAMES
from hydragnn.scripts.recipes.results import BEGIN, END, HEAD, merged, rows_of, table_in, with_table
from hydragnn.scripts.recipes.table import Figure, show_figures

RECORD = RunRecord(config={}, config_hash="", data_hash="", seed=0, cost=Cost(cpu_seconds=90.0))
FIGURES = (
    Figure(what="CV, all fields, one model", value=24.41, unit="%", goal=22.0, beside="means 51.8 %"),
    Figure(what="CV, all fields, 5 models averaged", value=21.9, unit="%", goal=22.0),
    Figure(what="coverage", value=91.0, unit="%", goal=87.0, at_least=True),
)
PAGE = f"""# Recipes

Words before.

{BEGIN}

| recipe | figure | promise | reached | beside it | CPU time |
|---|---|---|---|---|---|
| `fept` | by hand | 1 | 2 | a \\| b | 3 min |
| | also by hand | | 4 | | |
| `terfenol` | by hand | 5 | 6 | | |
| `darcy` | by hand | | 7 | | |

{END}

Words after.
"""


def written(folder: Path, name: str = "terfenol", epochs: int | None = None, complete: bool = True) -> dict[str, Any]:
    """The results of a recipe with two runs, as it writes them."""
    records = [RECORD, replace(RECORD, seed=1)]
    show_figures(name, FIGURES, records, folder / name, epochs=epochs, complete=complete, today=date(2026, 1, 2))
    return dict(read_json(folder / name / "results.json"))


def run(runs: Path, page: Path) -> list[str]:
    """The lines of the page after the command."""
    command.results(runs, page)
    return page.read_text().splitlines()


def test_models_of_one_measure_share_a_row_that_says_promise_cost_and_date(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path)) == [
        (
            "`terfenol`",
            "CV, all fields: one model / 5 models averaged",
            "22 %",
            "24.4 (not kept) / 21.9 %",
            "means 51.8 %",
            "3.0 min (2026-01-02, seeds 0 to 1)",
        ),
        ("", "coverage", "at least 87 %", "91 %", "", ""),
    ]


def test_a_promise_that_no_model_keeps_is_said_once(tmp_path: Path) -> None:
    results = written(tmp_path)
    figures = [{**figure, "reached": False} for figure in results["figures"]]
    assert [row[3] for row in rows_of({**results, "figures": figures})] == ["24.4 / 21.9 %, not kept", "91 %, not kept"]


def test_rows_of_recipes_that_were_not_run_stay_as_they_are(tmp_path: Path) -> None:
    written(tmp_path / "runs")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    lines, before = run(tmp_path / "runs", page), PAGE.splitlines()
    assert lines[:10] == before[:10] and lines[12:] == before[11:]
    assert lines[10].startswith("| `terfenol` | CV, all fields: one model") and lines[11].startswith("| | coverage |")
    assert run(tmp_path / "runs", page) == lines  # again, the same


def test_a_recipe_that_is_new_to_the_page_comes_last_and_a_page_is_made_where_there_is_none(tmp_path: Path) -> None:
    written(tmp_path / "runs", "qm9")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    rows = [line for line in run(tmp_path / "runs", page) if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["fept", "terfenol", "darcy", "qm9"]
    assert [line for line in run(tmp_path / "runs", tmp_path / "new.md") if line.startswith("| `qm9`")] == rows[-1:]


@pytest.mark.parametrize(("epochs", "complete", "why"), [(2, True, "--epochs 2"), (None, False, "not over yet")])
def test_what_was_trained_otherwise_or_is_not_over_changes_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epochs: int | None, complete: bool, why: str
) -> None:
    written(tmp_path / "runs", epochs=epochs, complete=complete)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run(tmp_path / "runs", page) == PAGE.splitlines()
    assert why in capsys.readouterr().out


def test_a_page_without_a_place_and_a_folder_without_results_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "runs")
    page = tmp_path / "page.md"
    page.write_text("# Something else\n")
    with pytest.raises(InputError, match=r"has no lines .*write them where"):
        command.results(tmp_path / "runs", page)
    with pytest.raises(InputError, match=r"holds no NAME/results\.json"):
        command.results(tmp_path, page)
    assert page.read_text() == "# Something else\n"


def test_the_table_in_the_documents_has_every_recipe_and_is_as_the_command_writes_it(root: Path) -> None:
    place = root / "docs" / "measurements" / "recipes.md"
    before, rows, after = table_in(place.read_text(), place)
    assert with_table(before, merged(rows, {}), after) == place.read_text()
    assert {row[0].strip("`") for row in rows if row[0]} == set(NAMES)
    assert all(len(row) == len(HEAD) for row in rows)
