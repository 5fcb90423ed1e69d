"""The room of architectures: what lies in it is known everywhere, what a stranger names is not run."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

import hydragnn.architectures as room
from hydragnn.architectures import architecture_of, architectures
from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import CORNERS, INPUTS, SCALARS, make_model, small_settings
from hydragnn.datasets import Normalisation
from hydragnn.hpo.launching.sites import Site
from hydragnn.models import GraphModel, ModelSettings, build_model, load_model, parse_head, save_model

RING = '''
from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings
from hydragnn.layers import mlp


class RingSettings(ArchitectureSettings):
    """A network per node (nobody 2026)."""

    kind: str = "ring"
    beads: int = 3
    """Beads of the ring."""


class Layer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.network = mlp([channels, channels])

    def forward(self, states, graph):
        return {0: self.network(states[0])}


class Ring(Architecture):
    """Nodes by themselves."""

    kind = "ring"
    Settings = RingSettings

    def __init__(self, settings, spec):
        super().__init__(settings, spec)
        self.layers = nn.ModuleList(Layer(settings.hidden_dim) for _ in range(settings.num_layers))
'''


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "ring.py").write_text(RING)
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    architectures.cache_clear()
    yield
    architectures.cache_clear()
    sys.modules.pop("hydragnn.architectures.ring", None)


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_now", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_put_into_the_room_is_an_architecture_everywhere(ring: None, root: Path) -> None:
    assert "ring" in architectures()
    settings = TypeAdapter(ModelSettings).validate_python({"kind": "ring", "beads": 5, "hidden_dim": 8})
    assert settings.to_json()["beads"] == 5
    assert make_model("ring")(CORNERS["two graphs"]())["charge"].mean.shape == (12, 2)
    suites = vars(module_of(root / "tests" / "contracts" / "test_models.py")).items()
    suites = [one for name, one in suites if name.endswith("_ring")]
    assert [suite.architecture for suite in suites] == ["ring"]
    assert (
        "| `ring` | A network per node (nobody 2026) | who is whose neighbour | no | - | `beads` |"
        in module_of(root / "docs" / "reference.py").architecture_table()
    )
    with pytest.raises(InputError, match="did you mean ring"):
        architecture_of("rings")


def test_every_file_of_the_room_defines_one_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path)])
    architectures.cache_clear()
    with pytest.raises(TypeError, match=r"architectures\.empty defines none; a file of this room defines one"):
        architectures()
    sys.modules.pop("hydragnn.architectures.empty")


def test_no_other_file_of_the_source_names_an_architecture(root: Path) -> None:
    """All but the first ones moved in as one file each; nobody else needs to know them."""
    newcomers = set(architectures()) - {"schnet", "painn", "egnn", "pna", "relational", "mace", "field_tokens"}
    sources = [path for folder in ("hydragnn", "hpo", "ensemble", "datasets") for path in (root / folder).rglob("*.py")]
    named = {
        (path.stem, kind)
        for path in sources
        for kind in newcomers
        if not {"frozen", "importing"} & {*path.parts}  # which know the names of the public HydraGNN
        if f'"{kind}"' in (text := path.read_text().lower()) or f"architectures.{kind}" in text
    }
    assert named == {(kind, kind) for kind in newcomers}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("schnt", "did you mean schnet"),
        ("nowhere.at_all:Net", "cannot be imported .*PYTHONPATH"),
        ("hydragnn.base.errors:InputError", "no architecture InputError; derive it"),
        ("hydragnn.architectures.base:Architecture", "Architecture has no Settings"),
        ("a-b:Net", "means a-b:Net, which is no name"),
        ("antigravity:Net", "antigravity holds no architectures"),
        ("hydragnn.setup:Net", "names code of hydragnn.setup, which a file may not run"),
        ("hydragnn.downloads.model:Net", "names code of hydragnn.downloads.model"),
        ("pip.__main__:Net", "holds no architectures"),
    ],
)
def test_a_kind_that_cannot_be_used_is_refused(kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_allowed", set())
    imports.allow_code(["nowhere", "antigravity", "pip"])
    with pytest.raises(InputError, match=says):
        architecture_of(kind)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("source", ["1 / 0", "raise SystemExit(0)", "def f(:", "import lost_package"])
def test_a_module_that_fails_while_it_is_imported_is_named(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "_allowed", {"failing"})
    with pytest.raises(InputError, match=r"failing:Net.*: failing cannot be imported \(.*\); repair it"):
        architecture_of("failing:Net")


def test_a_name_that_two_packages_announce_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        announced = tmp_path / str(number) / f"own{number}-1.0.dist-info"
        announced.mkdir(parents=True)
        (announced / "METADATA").write_text(f"Metadata-Version: 2.1\nName: own{number}\nVersion: 1.0\n")
        (announced / "entry_points.txt").write_text(f"[hydragnn.architectures]\nown = own{number}:Net\n")
        monkeypatch.syspath_prepend(announced.parent)
    with pytest.raises(InputError, match="means own0:Net and own1:Net, which is no name of one thing"):
        architecture_of("own")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("evil:Model", "evil cannot be imported"), ("evil", "unknown kind of architecture 'evil'")],
)
def test_a_strangers_folder_runs_no_code_of_his(kind: str, words: str, tmp_path: Path) -> None:
    """A folder with the module that a run names, announced by a dist-info, and entered by the user."""
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nraise SystemExit(0)")
    announced = tmp_path / "evil-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text("[hydragnn.architectures]\nevil = evil:Model\n")
    model = f'[data]\nstore = "s.h5"\n[model]\nkind = "{kind}"\n[[heads]]\nkind = "scalar"\nfield = "energy"\n'
    (tmp_path / "run.toml").write_text(model)
    (tmp_path / "s.h5").mkdir()  # a store that is not there would be the first error
    (tmp_path / "s.h5" / "manifest.json").write_text("{}")
    command = [sys.executable, "-m", "hydragnn.scripts", "train", "run.toml", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and words in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_class_without_the_methods_of_its_parent_is_refused_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("acme_sites")
    module.Half = type("Half", (Site,), {"command": lambda self, step: []})
    monkeypatch.setitem(sys.modules, "acme_sites", module)
    with pytest.raises(InputError, match="acme_sites:Half lacks the methods allocation"):
        imports.class_named("acme_sites:Half", Site, where="search.launcher", noun="site", parent="Site")


@pytest.mark.parametrize(
    ("pythonpath", "search_path", "expected"),
    [
        pytest.param("", "bin library here", "bin library here", id="an installation names it"),
        pytest.param("", "here bin here", "bin here", id="the program puts it first"),
        pytest.param(":/site", "bin here /site library", "bin /site library", id="begins empty"),
        pytest.param("/site:", "bin /site here library", "bin /site library", id="ends empty"),
        pytest.param("/site::/more", "bin /site here /more library here", "bin /site /more library here", id="empty"),
        pytest.param(".:", "bin here library", "bin here library", id="named"),
    ],
)
def test_an_empty_entry_of_pythonpath_is_none(
    pythonpath: str, search_path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"here": str(tmp_path), "library": str(Path(os.__file__).parent)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", pythonpath)
    before, within = ([words.get(word, word) for word in text.split()] for text in (search_path, expected))
    monkeypatch.setattr(sys, "path", [*before])
    with imports.without_the_current_folder():
        assert sys.path == within
    assert sys.path == before


@pytest.mark.parametrize(
    ("kind", "settings", "inputs", "says"),
    [
        ("gin", {}, ["size", "area"], "gin does not see edge features, so area would have no say; leave it out of"),
    ],
)
def test_edge_features_that_cannot_be_read_are_refused(
    kind: str, settings: dict[str, Any], inputs: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        with_charges(small_settings(kind, **settings), [*INPUTS, *SCALARS], inputs, 3)


def with_charges(settings: Any, fields: Any, inputs: list[str], dim: int) -> GraphModel:
    head = parse_head({"kind": "scalar", "field": "charge"})
    return build_model(settings, [head], fields, inputs=inputs, dim=dim, seed=0)


@pytest.mark.parametrize("kind", architectures())
def test_attention_of_kind_none_and_pooling_of_no_levels_are_the_model_without(kind: str) -> None:
    """Also where it could not pool, or where the heads of attention would not divide its width."""
    left_out = {"global_attention": {"kind": "none", "heads": 3}, "pooling": {"levels": 0}}
    without, none = make_model(kind, seed=3), make_model(kind, seed=3, **left_out)
    assert none.description == without.description
    expected, actual = without.state_dict(), none.state_dict()
    assert list(actual) == list(expected) and all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_setting_of_a_users_architecture_may_be_any_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this package are sizes, and a damaged one that exceeds the weights is refused before memory is asked for."""
    (tmp_path / "own_rings.py").write_text(RING)
    monkeypatch.syspath_prepend(tmp_path)
    model = make_model("own_rings:Ring", dtype=torch.float32, beads=10**9)
    save_model(tmp_path / "model", model, Normalisation())
    assert load_model(tmp_path / "model").description.model.to_json()["beads"] == 10**9


READS = {
    "lengths": "graph.lengths.sum()",
    "directions": "graph.directions.sum()",
    "a radial basis": "graph.edge_inputs[0].sum()",
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("what", READS)
def test_edges_that_are_not_there_are_refused(
    what: str, declared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that declares nothing on graphs with positions; one that says it sees lengths on graphs without."""
    code = RING.replace("ArchitectureSettings", "GeometricSettings")
    code = code.replace("import Architecture,", "import radial_basis, Architecture,")
    code = code.replace("(states[0])}", f"(states[0]) * {READS[what]}}}")
    code += "        self.basis = radial_basis(settings, spec)\n"
    code += '    sees = frozenset({"lengths"})\n' if declared else ""
    module = f"own_{what.replace(' ', '_')}_{declared}"
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    graphs, dim = CORNERS["two graphs"](), 0 if declared else 3
    says = {
        False: rf'model {module}:Ring does not declare that it sees any; add "lengths" or "directions" to `sees` of its class',
        True: rf'these graphs have no positions; add "lengths" or "directions" to `requires` of the class of model {module}:Ring',
    }
    model = with_charges(small_settings(f"{module}:Ring"), SCALARS, [], dim)
    with pytest.raises(InputError, match=says[declared]):
        model.double()(graphs)
