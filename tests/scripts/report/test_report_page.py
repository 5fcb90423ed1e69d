"""The HTML report: what it shows, that it stands alone, that it is well-formed."""

import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json, write_json
from hydragnn.datasets import open_store
from hydragnn.record import Failure, read_record, write_record
from hydragnn.scripts.report import canvas, summary, write_report
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.verdict import verdict
from hydragnn.scripts.showing import show

ALWAYS = {"verdict", "asked", "data", "errors", "reproduce"}
CHAPTERS = {
    "ensemble": ALWAYS | {"search", "time", "members", "where", "uncertainty", "domain", "worst"},
    "campaign": ALWAYS | {"search", "time"},
    "run": ALWAYS | {"training", "time"},
}


def tree(path: Path) -> ET.Element:
    """The page as strict XML: every tag closed, every entity known."""
    return ET.fromstring(path.read_text(encoding="utf-8").removeprefix("<!DOCTYPE html>"))


def words(path: Path) -> str:
    return " ".join(" ".join(tree(path).find("body").itertext()).split())


@pytest.mark.parametrize("kind", CHAPTERS)
def test_a_page_stands_alone_and_every_picture_says_how_to_read_it(pages: dict[str, Path], kind: str) -> None:
    text, page = pages[kind].read_text(encoding="utf-8"), tree(pages[kind])
    chapters = [section.attrib["id"] for section in page.iter("section")]
    assert set(chapters) == CHAPTERS[kind] and len(chapters) == len(CHAPTERS[kind])
    assert [link.attrib["href"] for link in page.find(".//nav").iter("a")] == [f"#{chapter}" for chapter in chapters]
    loaded = re.findall(r"(?:src|href|action|data)\s*=\s*[\"']([^\"']*)", text)
    loaded += re.findall(r"url\(\s*[\"']?([^)\"']*)", text)
    assert loaded and all(place.startswith(("#", "data:image/png;base64,")) for place in loaded)
    assert "<script" not in text and "@import" not in text and "<link" not in text
    ids = [element.attrib["id"] for element in page.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"href=\"#([^\"]+)\"", text)) | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    pictures = list(page.iter("svg"))
    assert pictures
    for picture in pictures:
        assert picture.attrib["role"] == "img" and picture.attrib["aria-label"] == picture.findtext("title")
    for figure in page.iter("figure"):
        assert figure.findtext("h3") and (figure.findtext("figcaption") or "").startswith("How to read it: ")


def test_colours_come_from_the_page_so_that_dark_mode_works(pages: dict[str, Path]) -> None:
    for picture in tree(pages["ensemble"]).iter("svg"):
        for element in picture.iter():
            fixed = re.findall(r"#[0-9a-f]{6}", element.attrib.get("style", ""))
            assert set(fixed) <= {"#3f87c9"}, fixed


def test_the_same_folder_gives_the_same_bytes(samples: Any, tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    one, two = (write_report(samples.run, tmp_path / name, now=now) for name in ("one.html", "two.html"))
    assert one.read_bytes() == two.read_bytes()


def test_an_ensemble_finds_the_campaign_beside_it(samples: Any, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "ensemble"
    shutil.copytree(samples.ensemble, alone)
    assert collect(alone).campaign is None
    actual = collect(samples.ensemble).campaign
    assert actual is not None and actual.history.trials[0].folder == samples.campaign / "trials" / "0000"


NOTHING: dict[str, Any] = {"epochs": 0, "curves": {}, "best": {}, "trivial": {}}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("change", "message", "shown"),
    [
        ({}, "<script>alert(1)</script> & more", "<script>alert(1)</script> & more"),
        ({"status": "failed", **NOTHING}, "x", "not yet enough"),
    ],
    ids=["markup is text", "no epoch finished"],
)
def test_a_run_that_failed_has_a_report_with_its_reason(
    samples: Any, tmp_path: Path, change: dict[str, Any], message: str, shown: str
) -> None:
    record = replace(read_record(samples.run), failure=Failure(kind="defect", message=message), **change)
    write_record(record, tmp_path / "run")
    page = write_report(tmp_path / "run")
    assert page == tmp_path / "run" / "report.html"
    assert "<script" not in page.read_text(encoding="utf-8")
    assert shown in words(page)


@pytest.mark.usefixtures("undrawn")
def test_a_store_that_moved_costs_the_data_chapter_but_not_the_report(samples: Any, tmp_path: Path) -> None:
    record = read_record(samples.run)
    gone = {**record.config, "data": {**record.config["data"], "store": str(tmp_path / "gone.h5")}}
    write_record(replace(record, config=gone), tmp_path / "run")
    page = write_report(tmp_path / "run")
    assert "The data cannot be shown" in words(page) and "gone.h5" in words(page)
    there = Path(record.config["data"]["store"])
    write_record(replace(record, config=gone, data_hash=open_store(there).fingerprint), tmp_path / "run")
    assert "The data cannot be shown" not in words(write_report(tmp_path / "run", store=there))
    write_record(replace(record, config=gone, data_hash="of other graphs"), tmp_path / "run")
    with pytest.raises(InputError, match="is not what was trained on"):
        write_report(tmp_path / "run", store=there)


@pytest.mark.usefixtures("undrawn")
def test_a_campaign_that_has_just_begun_shows_what_was_asked_and_its_data(samples: Any, tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    folder.mkdir()
    shutil.copy(samples.campaign / "campaign.json", folder)
    text = words(write_report(folder))
    assert 'sampler: not chosen yet: "auto" is gp where 64' in text
    assert "None has a result yet" in text and "240 graphs" in text and "not yet enough" in text


NOT_DETECTED: dict[str, Any] = {"detectors": ["a"], "flagged": {"test": 0}}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        *((name, None, name) for name in ("ensemble.json", "evaluation.json", "evaluation.npz")),
        ("ensemble.json", {"version": 5, "members": [{"name": "0", "weight": 1.0}]}, "ensemble.json is damaged"),
        ("evaluation.json", {"nominal": 0.9}, "damaged evaluation"),
        ("evaluation.json", {"nominal": 1.5, "parts": {}}, "a share of 1.5"),
        ("evaluation.json", {"nominal": 0.9, "parts": {}, "domain": NOT_DETECTED}, "do not fit"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(
    samples: Any, tmp_path: Path, name: str, content: dict[str, Any] | None, problem: str
) -> None:
    folder = tmp_path / "ensemble"
    shutil.copytree(samples.ensemble, folder)
    if content is None:
        (folder / name).write_bytes((folder / name).read_bytes()[:40])
    else:
        write_json(folder / name, content)
    with pytest.raises(InputError, match=problem):
        write_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("kind", ["ensemble", "campaign", "run"])
def test_copies_in_two_parts_are_noted_wherever_errors_are_shown(samples: Any, kind: str, tmp_path: Path) -> None:
    note = "12 of 12 graphs outside the training part are copies"
    folder = tmp_path / kind
    shutil.copytree(getattr(samples, kind), folder)
    for path in folder.rglob("record.json"):
        write_record(replace(read_record(path.parent), notes=[note]), path.parent)
    assert verdict(collect(folder)).cautions.count(f"Note: {note}.") == 1
    assert kind != "ensemble" or f"Note: {note}." in summary(folder).lines


def test_data_of_another_kind_is_told_apart_from_the_verdict(samples: Any) -> None:
    facts = collect(samples.ensemble)
    parts = {**facts.evaluation.parts, "hot": facts.evaluation.parts["test"]}
    actual = verdict(replace(facts, evaluation=replace(facts.evaluation, parts=parts)))
    assert actual.part == "test" and any("On hot, which is other data" in caution for caution in actual.cautions)


def test_the_terminal_shows_these_numbers(samples: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = read_json(samples.ensemble / "evaluation.json")["parts"]["test"]["energy"]
    result = summary(samples.ensemble)
    rows: Any = result.table
    assert [row["field"] for row in rows] == ["energy (eV)", "forces (eV/Å)", "charge (e)"]
    mae, simple = scores["ensemble"]["mae"], scores["baselines"]["ridge"]["mae"]
    cells = [float(rows[0][name].split()[0]) for name in ("best simple", "ensemble", "ratio", "covered")]
    assert cells[:3] == pytest.approx([simple, mae, mae / scores["trivial"]["mae"]], rel=0.01)
    assert cells[3] == pytest.approx(100 * scores["ensemble"]["coverage"], abs=0.1)
    show(result, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:4])) <= 80 and lines[4].startswith("ensemble: mean absolute errors on the test part")
    folder = tmp_path / "ensemble"
    shutil.copytree(samples.ensemble, folder)
    (folder / "evaluation.json").unlink()
    with pytest.raises(InputError, match="never evaluated"):
        summary(folder)


@pytest.mark.parametrize("unit", ["$", "$/kg and $", "$x^{", r"\$", "$$"])
def test_units_with_dollars_are_shown_as_they_are(unit: str) -> None:
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1])
        axes.set_xlabel(f"price in {unit}")
        canvas.log_scale(axes, "y", 0.1, 10.0)

    svg = canvas.picture("prices", "Prices", draw)
    assert f"price in {unit}" in "".join(ET.fromstring(svg[svg.index("<svg") :]).itertext())
