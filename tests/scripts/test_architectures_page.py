"""The page that ``python -m tests.benchmarks.bench_architectures`` makes of a campaign over all architectures."""

import re
from pathlib import Path

import pytest

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError, Interrupted
from hydragnn.scripts import api
from tests.benchmarks.bench_architectures import TITLE, main


def test_one_command_searches_goes_on_and_writes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, resumed = tmp_path / "page.md", []
    short = ["--set", "train.epochs=1", "--set", "search.rungs=[]", "--set", "search.trials=2"]
    options = ["--folder", str(tmp_path / "work"), "--samples", "12", *short, "--out", str(page)]
    search = api.search

    def stopped_once(*arguments: object, resume: bool, **settings: object) -> None:
        resumed.append(resume)
        search(*arguments, resume=resume, **settings)  # type: ignore[arg-type]
        if len(resumed) == 1:
            raise Interrupted("a signal came")

    monkeypatch.setattr(api, "search", stopped_once)
    with pytest.raises(Interrupted):
        main(options)
    assert not page.exists()
    main(options)
    assert resumed == [False, True]
    text = page.read_text()
    assert text.startswith(TITLE) and "12 structures, of which" in text and "2 trials of at most 1 epochs" in text
    assert len(re.findall(r"^\| `\w+` \| 1 \| 1 \| 0 \| ", text, re.MULTILINE)) == 2
    assert "- `gin`: " in text and "2 trials" in text
    with pytest.raises(InputError, match="has 12 structures, not 13"):
        main([*options, "--samples", "13"])


def test_the_page_in_the_documents_is_of_this_command(root: Path) -> None:
    text = (root / "docs" / "measurements" / "architectures.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert text.startswith(TITLE) and rows and rows <= set(architectures())
