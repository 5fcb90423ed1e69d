"""Code blocks in the README and in docs/ run as they are printed, and the site builds."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Container
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import typer
from ase.build import bulk

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.base.imports import allow_named
from hydragnn.config import parse_config
from hydragnn.datasets import StoreWriter, open_store, read_build_settings
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.hpo import campaign_records, campaign_settings, space_of
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.launching.sites import Step, read_allocation, site_of
from hydragnn.hpo.sampling import History
from hydragnn.hpo.sampling.sampler import sampler_class
from hydragnn.hpo.search_settings import search_settings
from hydragnn.parallel import ParallelSettings
from hydragnn.record import read_record
from hydragnn.scripts.cli import app
from hydragnn.scripts.demo import make_alloys
from hydragnn.scripts.key_help import OTHER_NAMES, sections
from tests.hydragnn.importing.public_runs import write_model

CHARGE = Field(name="charge", on="node")

BLOCK = re.compile(r"^```(\w+)( skip)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def _all_blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text())


def _blocks(page: Path, language: str) -> list[str]:
    return [text for name, skip, text in _all_blocks(page) if name == language and not skip]


def _named_blocks(page: Path) -> dict[str, str]:
    return dict(re.findall(r'^```python\n"""(\S+)"""\n(.*?)^```$', page.read_text(), re.MULTILINE | re.DOTALL))


def test_the_custom_dataset_of_the_readme_trains_and_predicts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _ = _blocks(root / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})  # the block is ours, not input
    own, trivial = map(float, capsys.readouterr().out.split())
    assert own < 0.7 * trivial
    assert (tmp_path / "chains-run" / "model" / "weights.safetensors").is_file()
    names: dict[str, Any] = {}
    for code in _blocks(root / "docs" / "python.md", "python"):
        exec(compile(code, "python.md", "exec"), names)  # goes on with the data and the run of the README
    printed = capsys.readouterr().out
    assert "chains.h5: 80 graphs" in printed and "DiskStore(chains.h5: 80 graphs" in printed
    page = root / "docs" / "own-code.md"
    named = _named_blocks(page)
    for code in _blocks(page, "python"):
        if not code.startswith('"""acme'):
            exec(compile(code, "own-code.md", "exec"), names)
    assert "trained outside" in capsys.readouterr().out
    for name, code in named.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    head = {"kind": "scalar", "field": "moment", "pool": "sum", "extensive": True}
    head |= {"loss": "acme.functions:pseudo_huber"}
    run = {**names["run"], "heads": [head], "train": {"epochs": 2}}
    search: dict[str, Any] = {"trials": 2, "space": {"model.hidden_dim": {"type": "int", "low": 4, "high": 8}}}
    cheap = {**run, "search": {**search, "objective": "acme.functions:cheap"}}
    seen: list[int] = []
    best = hydragnn.search(cheap, "cheap", callback=lambda status: seen.append(status.trials["finished"])).best
    record = read_record(tmp_path / "cheap" / "trials" / "0000")
    errors = record.curves["valid/moment/mae"]
    assert best is not None and best.value <= min(errors) * (1 + record.parameters / 1e6) and seen == [1, 2]
    hidden = {"kind": "acme.hidden:Hidden", "store": str(tmp_path / "chains.h5")}
    run["train"] |= {"callbacks": [hidden]}
    assert hydragnn.search({**run, "search": {**search, "objective": "hidden/mae"}}, "hidden").best is not None


def test_the_short_examples_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in _blocks(root / "docs" / "examples.md", "python"):
        exec(compile(code, "examples.md", "exec"), names)
        assert capsys.readouterr().out, code
    write_model(tmp_path / "logs" / "NAME")
    (code,) = _blocks(root / "docs" / "from-hydragnn.md", "python")
    exec(compile(code, "from-hydragnn.md", "exec"), {})
    assert capsys.readouterr().out and (tmp_path / "IMPORTED").is_dir()


def _functions(reference: Any) -> dict[str, Any]:
    modules = [import_module(f"hydragnn.{room}".rstrip(".")) for room in reference.ROOMS]
    values = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in reference._public_names(module)
    }
    return {name: value for name, value in values.items() if inspect.isfunction(value)}


def test_every_function_of_the_reference_has_an_example(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "docs"))
    reference = import_module("reference")
    functions = _functions(reference)
    assert len(functions) > 130
    run = reference._calls("python")
    shown = {name: ">>>" in (inspect.getdoc(value) or "") for name, value in functions.items()}
    lacking = {name for name, doctest in shown.items() if not doctest and name.rpartition(".")[2] not in run}
    # shown, but run by the tests of exports: they need a compiler and another program
    assert lacking == {"hydragnn.ensemble.package_calculator", "hydragnn.ensemble.torch_sim_model"}
    assert all(reference._example(name.rpartition(".")[2], functions[name]) for name in lacking)


@pytest.fixture
def acme(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package that holds the parts of the page on parts of one's own."""
    for name, text in _named_blocks(root / "docs" / "adding-parts.md").items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme", raising=False)
    return tmp_path


def test_the_calculator_of_the_documents_gives_energies_and_forces(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_alloys(Path("alloys.h5"), samples=24)
    for seed in (0, 1):
        run = {
            "data": {"store": "alloys.h5"},
            "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1},
            "heads": [{"kind": "energy", "field": "energy", "references": True, "forces": "forces"}],
            "train": {"epochs": 1, "seed": seed},
        }
        hydragnn.train(run, out=f"run-{seed}")
    build_ensemble([Path("run-0"), Path("run-1")], Path("ensemble"))
    (export,) = _blocks(root / "docs" / "export.md", "python")
    with monkeypatch.context() as untyped:
        untyped.setattr(jaxtyping.config, "jaxtyping_disable", True)  # numbers of atoms are symbols here
        exec(compile(export, "page", "exec"), {})
    assert "potential.pt2: torch, energy, forces of 2 members" in capsys.readouterr().out
    _, readme = _blocks(root / "README.md", "python")
    first, stopping = _blocks(root / "docs" / "predict.md", "python")
    for code in (readme, first):
        atoms = bulk("Cu", cubic=True)
        exec(compile(code, "page", "exec"), {"atoms": atoms})
        assert atoms.calc.results["forces_std"].shape == (4, 3)
    atoms = bulk("Cu", "fcc", 2.0, cubic=True)
    exec(compile(stopping, "page", "exec"), {"atoms": atoms})
    assert "stopped after step" in capsys.readouterr().out


def test_the_model_of_the_documents_is_tuned(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = _blocks(root / "docs" / "fine-tuning.md", "python")
    exec(compile(code, "fine-tuning.md", "exec"), {})
    assert "{'Au': 'Cu'}" in capsys.readouterr().out


def test_the_source_of_the_documents_builds_a_store(root: Path, acme: Path) -> None:
    blocks = _all_blocks(root / "docs" / "adding-parts.md")
    (build,) = [text for _, _, text in blocks if "acme.lines:Lines" in text and "files =" in text]
    (acme / "BUILD.toml").write_text(build)
    (acme / "chains").mkdir()
    (acme / "chains" / "a.txt").write_text("1 2 3\n4 5\n")
    hydragnn.build_store(acme / "BUILD.toml", acme / "chains.h5")
    store = open_store(acme / "chains.h5")
    assert len(store) == 2
    assert store.read([0]).nodes["charge"].tolist() == [2.0, 4.0, 6.0]


def test_the_site_of_the_documents_starts_steps_of_its_allocation(acme: Path) -> None:
    allow_named("acme.sites:Lsf")
    environment = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 4"}
    allocation = read_allocation(environment, want="acme.sites:Lsf")
    assert (allocation.names, allocation.nodes[1].cores) == (("n1", "n2"), 4)
    step = Step(name="trial-0-1", nodes=allocation.names, program=("true",))
    assert site_of(allocation).command(step) == ["mpirun", "-hosts", "n1,n2", "-ppn", "1", "true"]
    with pytest.raises(InputError, match="LSB_JOBID is not set"):
        read_allocation({}, want="acme.sites:Lsf")
    assert JobSettings.parse({"site": "acme.sites:Lsf", "nodes": 1, "hours": 1.0}).site == "acme.sites:Lsf"


def test_the_head_of_the_documents_trains(acme: Path) -> None:
    with StoreWriter(acme / "rings.h5", [CHARGE, replace(CHARGE, name="shift", role="target")], dim=0) as store:
        for length in range(4, 24):
            charge = torch.arange(length) / length
            ring = list(range(length)), [*range(1, length), 0]
            nodes = {"charge": charge, "shift": charge - charge.mean()}
            store.write(graph_from_arrays(None, *ring, fields=store.fields, nodes=nodes))
    run = {
        "data": {"store": str(acme / "rings.h5")},
        "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
        "heads": [{"kind": "acme.heads:NeutralHead", "field": "shift"}],
        "train": {"epochs": 1},
    }
    assert "valid/shift/mae" in hydragnn.train(run, out=acme / "run").best


def test_the_sampler_of_the_documents_gives_points_of_the_space(acme: Path) -> None:
    width = {"model.hidden_dim": {"type": "int", "low": 8, "high": 64}}
    search = search_settings({"sampler": "acme.samplers:Neighbour", "space": width}, "page")
    allow_named({"sampler": search.sampler})
    point = sampler_class(search.sampler)().propose(History(space=space_of(search.space)), 0)
    assert 8 <= int(str(point["model.hidden_dim"])) <= 64


def test_two_ranks_search_the_layouts_of_the_page(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_alloys(tmp_path / "alloys.h5", samples=40)
    (text,) = [block for block in _blocks(root / "docs" / "search.md", "toml") if "space.parallel" in block]
    Path("LAYOUTS.toml").write_text(text)
    result = hydragnn.search("LAYOUTS.toml", out="layouts", workers=1)
    records = [record for _, record, _ in campaign_records(result.campaign)]
    layouts = [(record.config["parallel"]["shard"], record.config["parallel"]["graph"]) for record in records]
    assert result.trials["failed"] == 0 and len(set(layouts)) == 3
    assert all(record.cost.ranks == 2 for record in records)


def test_every_configuration_in_the_documents_is_valid(root: Path, tmp_path: Path) -> None:
    """Blocks marked ``skip`` show one section; those of packages and of other people's code are left out."""
    make_alloys(tmp_path / "alloys.h5", samples=8)
    rest = {"data": {"store": "alloys.h5"}, "heads": [{"kind": "energy", "field": "energy"}]}
    blocks = [(page, skip, text) for page in _pages(root) for name, skip, text in _all_blocks(page) if name == "toml"]
    for page, skip, text in blocks:
        table = tomllib.loads(text)
        if skip and "model" in table:
            parse_config({**rest, "model": {"kind": "painn", **table["model"]}}, source=str(page))
        elif skip and "train" in table:
            parse_config({**rest, "model": {"kind": "painn"}, **table}, source=str(page))
        elif skip and "search" in table:
            search_settings(table["search"], str(page))
        elif skip:
            assert "project" in table or "acme" in text, page
        elif list(table) == ["job"]:
            JobSettings.parse(table["job"], source=str(page))
        elif list(table) == ["parallel"]:
            ParallelSettings.parse(table["parallel"], source=str(page))
        elif "search" in table:  # a default space is that of its store
            campaign_settings(table, tmp_path / page.name if table["search"].get("space") == "default" else page)
        elif "model" in table:
            parse_config(table, source=str(page))
        else:
            read_build_settings(table, page)
    skips = [skip for _, skip, _ in blocks]
    assert skips.count("") >= 15 and skips.count(" skip") >= 4


def _commands(page: Path) -> list[list[str]]:
    """Return the words of every ``hydragnn`` command in indented blocks and code spans of a page."""
    text = re.sub(r"\\\n", " ", page.read_text())
    shown = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    shown += [span for span in re.findall(r"`([^`\n]+)`", text) if " --" in span]
    parts = [re.split(r"\bhydragnn (?=[a-z])", line, maxsplit=1) for line in shown]
    return [shlex.split(part[1], comments=True) for part in parts if len(part) > 1]


def test_every_command_in_the_documents_has_the_options_that_it_is_shown_with(root: Path) -> None:
    lines = [(page, words) for page in _pages(root) for words in _commands(page)]
    assert len(lines) >= 40
    for page, words in lines:
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while hasattr(command, "commands"):
            assert rest and rest[0] in command.commands, f"{page.name}: hydragnn {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options <= _options_of(command), f"{page.name}: hydragnn {' '.join(words)}"


def _options(*files: Path) -> set[str]:
    return {option for file in files for option in re.findall(r'"(--[a-z][a-z-]*)"', file.read_text())}


def _options_of_commands() -> set[str]:
    commands, options = [typer.main.get_command(app)], {"--help"}
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        options |= _options_of(command)
    return options


def _options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


OTHERS = re.compile(
    r"\b(srun|salloc|sbatch|scancel|scontrol|flux|mpiexec|torchrun|git|setup\.py|docker|MACE|tests\.\w+|tests/\w+)\b.*$|directives.*$"
)
"""Where options of other programs begin in a line."""
OF_OTHERS = {"--overlap", "--mem", "--stepmgr", "--shm-size", "--mpi", "--constraint"}
NAMED = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")


def unknown_options(text: str, options: Container[str]) -> set[str]:
    lines = [OTHERS.sub("", line) for line in re.sub(r"\\\n", " ", text).splitlines()]
    return {word for line in lines for word in NAMED.findall(line) if word not in options and word not in OF_OTHERS}


def test_every_option_named_on_a_page_or_in_a_sentence_of_the_code_is_one_of_a_command(root: Path) -> None:
    commands, seen = _options_of_commands(), 0
    odd = "`--held`, --resum, `--top-k 5`, `--topk 5`, `--energy_key`, 1--two -- here\n    srun --exact hydragnn"
    assert unknown_options(odd, commands) == {"--held", "--resum", "--topk", "--energy_key"}
    measured = _options(*(root / "tests" / "benchmarks").glob("*.py"))
    for page in [*_pages(root), root / "CONTRIBUTING.md", root / "ARCHITECTURE.md"]:
        text, own = page.read_text(), measured if page.parent.name == "measurements" else set()
        if page.name == "coming-from.md":  # on the left of its tables are the names of others
            text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)
        assert unknown_options(text, commands | own) == set(), page
    for file in _modules(root):
        own = commands | _options(file)
        for text in [text for text in _texts(file) if "--" in text]:
            assert unknown_options(text, own) == set(), f"{file}: {text}"
            seen += len(NAMED.findall(text))
    assert seen > 50


@cache
def _texts(file: Path) -> list[str]:
    constants = [one.value for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.Constant)]
    return [text for text in constants if isinstance(text, str) and " " in text]


def _modules(root: Path) -> list[Path]:
    """Return all modules but those with scripts and commands of schedulers."""
    rooms = ("graphs", "datasets", "hydragnn", "hpo", "ensemble", "scripts")
    files = [file for room in rooms for file in sorted((root / room).rglob("*.py"))]
    return [file for file in files if file.parent.name != "sites"]


@cache
def _known_keys() -> frozenset[str]:
    paths = {f"{one.path}.{name}" for one in sections() for name in one.names} | {one.path for one in sections()}
    return frozenset(paths | {"model.kind", *OTHER_NAMES})


@cache
def _key_pattern() -> re.Pattern[str]:
    roots = {path.partition(".")[0] for path in _known_keys()} - {"", "assume"}
    return re.compile(rf"(?<![\w./\"'-])((?:{'|'.join(roots)})(?:\.[a-z_0-9]+)+)(?![\w(.])")


def _unknown_keys(text: str) -> set[str]:
    shown = _key_pattern().findall(text)
    paths = {re.sub(r"^branches\.(?=data|split|heads)", "", re.sub(r"\.\d+", "", path)) for path in shown}
    return {path for path in paths - _known_keys() if not path.startswith("search.space.") and path[-1] != "_"}


NO_KEYS = {
    *("model.json", "model.pt2", "start.forgetting", "model.domain"),
    *("data.h5", "model.predict", "start.xyz", "model.toml", "search.toml", "batch.budget"),
}
"""Files, an entry of records, an attribute of Python, and a key that is gone."""


def test_every_key_named_on_a_page_or_in_a_sentence_of_the_code_exists(root: Path) -> None:
    odd = "train.epoch = 3, parallel.shard parallel.shards heads.0.forces_weight heads.force_weight branches.1.data.stores"
    assert _unknown_keys(f"{odd} job.stage_data search.space.low start.xyz") == {
        *("train.epoch", "parallel.shards", "heads.force_weight", "data.stores", "start.xyz")
    }
    spans = [span for page in _pages(root) for span in re.findall(r"`([^`\n]+)`", page.read_text())]
    texts = [text for file in _modules(root) for text in _texts(file)]
    assert len(spans) > 1000 and len(texts) > 1000
    assert {key for text in (*spans, *texts) for key in _unknown_keys(text)} <= NO_KEYS


def test_links_between_documents_lead_somewhere(root: Path) -> None:
    generated = re.compile(
        r"(\.\./)?(reference/)?(index|architectures|command-line|configuration|python|python/\w+)\.md"
    )
    for page in [*_pages(root), root / "ARCHITECTURE.md", root / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            exists = (page.parent / target).exists() or ("reference/" in target and generated.fullmatch(target))
            assert exists, f"{page.name} links to {target}"


def test_pages_are_plain(root: Path) -> None:
    """Sentences are short: at most 6 % have more than 35 words, and none in the README and ARCHITECTURE.md."""
    for page in [root / "ARCHITECTURE.md", *_pages(root)]:
        lengths = [len(re.findall(r"[\w'-]+", sentence)) for sentence in _sentences(page.read_text())]
        limit = 0.0 if page.parent == root else 0.06
        assert sum(length > 35 for length in lengths) <= limit * len(lengths), page
    assert len((root / "ARCHITECTURE.md").read_text().split()) <= 900


def _sentences(text: str) -> list[str]:
    """Return the sentences of a page without code, tables and headings."""
    text = re.sub(r"^(\||#|    ).*$", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*[-*\d.]+ ", text)
    return [s for p in paragraphs for s in re.split(r"(?<=[.!?])\s+(?=[A-Z\"(*X])", " ".join(p.split())) if s]


def test_the_reference_has_a_meaning_for_every_key(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "docs"))
    page = import_module("reference").configuration_page()
    rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) > 100
    assert {row[0].strip() for row in rows if not row[5].strip()} <= {"`kind`"}  # the heading has it
    assert {"Angstrom", "GB", "degrees"} <= {row[4].strip() for row in rows}


def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    process = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    text = (tmp_path / "site" / "reference" / "configuration" / "index.html").read_text()
    assert "learning_rate" in text and "max_neighbours" in text
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
    functions = (tmp_path / "site" / "reference" / "python" / "hydragnn" / "index.html").read_text()
    assert all("Example, from" in one for one in functions.split('<h2 id="')[1:])
    for html in (tmp_path / "site").rglob("*.html"):
        sources = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]+)", html.read_text())
        assert not sources, f"{html.name}: {sources}"
