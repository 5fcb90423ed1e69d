"""The architecture of docs/adding-parts.md in a package of its own: searched, trained, saved, ensembled, and under the contracts."""

import os
import re
from pathlib import Path

import pytest

from hydragnn.base.files import read_json
from tests.charged_rings import RUN, write_rings
from tests.forked import Forked

CAMPAIGN = (
    RUN.replace('"schnet"', '"acme-means"').replace("num_layers = 1", "num_layers = 2")
    + """
[search]
trials = 4
[search.space."model.kind"]
type = "categorical"
choices = ["acme-means", "acme.networks:Means"]
[search.space."model.slope"]
type = "float"
low = 0.05
high = 0.3
"""
)

STRICT = ("-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Warnings are errors, but for modules that the server of processes has loaded already."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A folder of installed packages with the code of the documents and the entry point that they name."""
    folder = tmp_path_factory.mktemp("site")
    page = (root / "docs" / "adding-parts.md").read_text()
    code = dict(re.findall(r'^```python\n"""(\S+)"""\n(.*?)^```$', page, re.MULTILINE | re.DOTALL))
    (group,) = re.findall(r'^\[project\.entry-points\."(.*)"\]$', page, re.MULTILINE)
    (entry,) = re.findall(r'^(acme-means) = "(.*)"$', page, re.MULTILINE)
    texts = {
        "acme/__init__.py": "",
        **{name: code[name] for name in ("acme/networks.py", "tests/test_networks.py")},
        "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
        "acme-1.0.dist-info/entry_points.txt": f"[{group}]\n{' = '.join(entry)}\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workdir")
    write_rings(folder / "rings.h5", 20)
    (folder / "campaign.toml").write_text(CAMPAIGN)
    return folder


def run_there(site: Path | None, folder: Path, *words: str) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(site or "")}
    process = Forked(words, environment, folder)
    output, _ = process.communicate(timeout=300)
    return process.wait(), output


def test_it_is_searched_by_workers_ensembled_and_predicts_by_either_name(site: Path, workdir: Path) -> None:
    def hydragnn(*words: str) -> None:
        code, output = run_there(site, workdir, "-m", "hydragnn.scripts", *words)
        assert code == 0, output

    hydragnn("search", "campaign.toml", "--out", "campaign", "--workers", "2")
    records = [read_json(path) for path in sorted(workdir.glob("campaign/trials/*/record.json"))]
    assert [record["status"] for record in records] == ["finished"] * 4
    assert {record["config"]["model"]["kind"] for record in records} == {"acme-means", "acme.networks:Means"}
    assert all(0.05 <= record["config"]["model"]["slope"] <= 0.3 for record in records)
    hydragnn("ensemble", "campaign", "--out", "ensemble", "--top-k", "4")
    kinds = {read_json(path)["model"]["kind"] for path in workdir.glob("ensemble/members/*/model.json")}
    assert kinds == {"acme-means", "acme.networks:Means"}
    hydragnn("predict", "ensemble", "rings.h5", "--out", "said.csv")
    table = (workdir / "said.csv").read_text().splitlines()
    assert len([line for line in table if ",ok," in line]) == 20


def test_where_its_package_is_missing_the_message_says_what_to_install(workdir: Path, tmp_path: Path) -> None:
    search = ("-m", "hydragnn.scripts", "search")
    code, output = run_there(None, workdir, *search, "campaign.toml", "--out", str(tmp_path / "campaign"))
    assert code == 2 and "unknown kind of architecture 'acme-means'" in output  # nobody announces it
    named = CAMPAIGN.replace('"acme-means"', '"acme.networks:Means"', 1).replace('["acme-means", ', "[")
    (workdir / "named.toml").write_text(named)
    code, output = run_there(None, workdir, *search, "named.toml", "--out", str(tmp_path / "campaign"))
    assert "acme.networks cannot be imported" in output and "install its package" in output


def test_it_keeps_the_contracts_in_its_own_package(site: Path) -> None:
    code, output = run_there(site, site, "-m", "pytest", "-q", "-p", "no:cacheprovider", *STRICT, "tests")
    # skipped, as it does not say that ranks may share its graphs
    assert code == 0 and re.search(r"^4\d passed, 1 skipped in", output, re.MULTILINE), output
