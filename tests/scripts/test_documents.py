"""Code blocks in the README and in docs/ run as they are printed."""

import re
import tomllib
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(\w+)( skip)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    return [text for name, skip, text in BLOCK.findall(page.read_text()) if name == language and not skip]


def test_the_custom_dataset_of_the_readme_trains_and_predicts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = _blocks(root / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})  # the block is ours, not input
    assert "valid/moment/mae" in capsys.readouterr().out
    assert (tmp_path / "chains-run" / "model" / "weights.safetensors").is_file()
    (code,) = _blocks(root / "docs" / "python.md", "python")
    exec(compile(code, "python.md", "exec"), {})  # goes on with the data and the run of the README
    assert "chains.h5: 80 graphs" in capsys.readouterr().out


def test_every_configuration_in_the_documents_is_valid(root: Path, tmp_path: Path) -> None:
    from hydragnn.config import parse_config
    from hydragnn.datasets.sources.registry import read_build_settings
    from hydragnn.hpo import campaign_settings
    from hydragnn.hpo.job import JobSettings
    from hydragnn.scripts.demo import make_alloys

    make_alloys(tmp_path / "alloys.h5", samples=8)
    seen = 0
    for page in _pages(root):
        for text in _blocks(page, "toml"):
            table = tomllib.loads(text)
            if list(table) == ["job"]:
                JobSettings.parse(table["job"], source=str(page))
            elif "search" in table:
                place = tmp_path / page.name if table["search"]["space"] == "default" else page  # beside its store
                campaign_settings(table, place)
            elif "model" in table:
                parse_config(table, source=str(page))
            else:
                read_build_settings(table, page)
            seen += 1
    assert seen >= 5


def test_links_between_documents_lead_somewhere(root: Path) -> None:
    for page in [*_pages(root), root / "ARCHITECTURE.md", root / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
