"""Sources and store engines of other packages are one class each, and forgetting a part of one is an error at import."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from hydragnn.datasets import Make, MemoryStore, StoreWriter, check_store, open_store, read_build_settings, store_info
from hydragnn.datasets.formats import engine
from hydragnn.datasets.formats.engine import StoreEngine
from hydragnn.datasets.sources import registry
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.sources.registry import rule_of, settings_of_rule
from tests.refusals import refuses

PLUGIN = """
from pathlib import Path

from hydragnn.datasets import OwnBuild
from hydragnn.datasets.formats.hdf5 import Hdf5Engine
from hydragnn.graphs import graph_from_arrays

class Dots(OwnBuild):
    def graphs(self):
        for number in range(int(Path(self.files[0]).read_text())):
            yield lambda: graph_from_arrays([[float(number), 0.0]], [], [])

class Toy(Hdf5Engine):
    suffixes = (".toy",)
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that announces a source and an engine."""
    (tmp_path / "toy_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "announced_classes", lambda group: {"dots": "toy_plugin:Dots"})
    monkeypatch.setattr(engine, "announced_classes", lambda group: {"toy": "toy_plugin:Toy"})


def test_an_announced_engine_keeps_stores_by_its_suffix(tmp_path: Path, store: MemoryStore) -> None:
    with StoreWriter(tmp_path / "a.toy", store.fields(), dim=3) as writer:
        writer.write(store.read(range(60)))
    assert check_store(tmp_path / "a.toy") == [] and store_info(tmp_path / "a.toy").backend == "toy"
    assert open_store(tmp_path / "a.toy").fingerprint == store.fingerprint
    refuses("no installed package has the store engine zarr", engine.engine_named, "zarr")


def test_an_announced_source_is_named_by_its_kind_also_by_files_of_strangers(tmp_path: Path) -> None:
    (tmp_path / "dots.txt").write_text("3")
    settings = read_build_settings({"kind": "dots", "files": ["dots.txt"]}, tmp_path / "BUILD.toml")
    assert [int(make().positions[0, 0]) for make in settings.makers()] == [0, 1, 2]
    again = settings_of_rule(rule_of(settings), tmp_path / "dots.txt", "a store")
    assert type(again) is type(settings)


def test_a_forgotten_part_is_an_error_at_import() -> None:
    with pytest.raises(TypeError, match="source Silent lacks makers"):

        class Silent(BuildSettings):
            kind: Literal["silent"] = "silent"

    with pytest.raises(TypeError, match="source Nameless has no kind"):

        class Nameless(BuildSettings):
            def makers(self) -> Iterator[Make]:
                return iter(())

    with pytest.raises(TypeError, match="store engine Bare lacks writer, reader"):

        class Bare(StoreEngine):
            suffixes = (".bare",)


def test_every_file_of_sources_is_a_kind() -> None:
    assert list(registry.sources()) == [
        "ase",
        "climate",
        "hydragnn",
        "mesh",
        "microstructure",
        "networkx",
        "npz",
        "pyg",
        "sensors",
        "smiles",
        "tables",
        "voxels",
    ]
