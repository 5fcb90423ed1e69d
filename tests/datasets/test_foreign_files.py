"""Stores from strangers: nothing outside the store is read, and nothing inside it runs."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, check_store, open_store
from hydragnn.datasets.formats.adios import AdiosPartReader
from hydragnn.datasets.manifest import PartInfo
from hydragnn.graphs import Field, graph_from_arrays
from tests.datasets.conftest import edit_manifest
from tests.refusals import refuses

FIELDS = (Field(name="size", on="node"),)
ARRAY = "positions"


def written(path: Path, *texts: dict[str, list[str]]) -> Path:
    with StoreWriter(path, FIELDS, dim=3) as writer:
        for own in texts:
            graph = graph_from_arrays(np.eye(3), [0, 1], [1, 2], fields=FIELDS, nodes={"size": np.ones(3)})
            writer.write(graph.with_texts(own))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "given.h5", {}, {}, {})


@pytest.fixture
def named_store(tmp_path: Path) -> Path:
    return written(tmp_path / "named.h5", *({"name": [f"graph-{number}"]} for number in range(3)))


def virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout(shape=(9, 3), dtype="f8")
    layout[:] = h5py.VirtualSource(str(secret), "numbers", shape=(9, 3))
    file.create_virtual_dataset(ARRAY, layout)


LINKS: list[Callable[[h5py.File, Path], object]] = [
    lambda file, secret: file.__setitem__(ARRAY, h5py.ExternalLink(str(secret), "numbers")),
    virtual,
    lambda file, secret: file.create_dataset(ARRAY, (9, 3), "f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)]),
    lambda file, secret: file.__setitem__(ARRAY, h5py.SoftLink("/elsewhere")),
]


@pytest.mark.parametrize("link", LINKS)
def test_a_store_does_not_read_other_files_of_whoever_opens_it(link: Any, store: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["numbers"] = np.full((9, 3), 42.0)
    (part,) = store.glob("part-*.h5")
    with h5py.File(part, "r+") as file:
        del file[ARRAY]
        link(file, secret)
    size = part.stat().st_size
    edit_manifest(store, lambda table: table["parts"][0]["files"][part.name].update(bytes=size))
    refuses(f"{ARRAY} is not an array of this file but a link to something else", open_store(store).read, [0])
    assert check_store(store)


def moved_out(store: Path, target: Path, link: Path | str, name: str = "part-00000.h5") -> None:
    (store / name).rename(target)
    (store / name).symlink_to(link)


def through_a_folder(store: Path, other: Path) -> None:
    (store / "away").symlink_to(other)
    moved_out(store, other / "part-00000.h5", "away/part-00000.h5")


OUT: dict[str, Callable[[Path, Path], None]] = {
    "an absolute link": lambda store, other: moved_out(store, other / "a.h5", other / "a.h5"),
    "a relative link": lambda store, other: moved_out(store, other / "a.h5", "../other/a.h5"),
    "a link through a folder": through_a_folder,
    "texts": lambda store, other: moved_out(store, other / "a.gz", other / "a.gz", "part-00000.h5.texts.gz"),
}


@pytest.mark.parametrize("move", OUT.values(), ids=OUT)
def test_a_part_that_is_a_link_out_of_its_store_is_refused(move: Any, named_store: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    move(named_store, tmp_path / "other")
    refuses("leads out of", open_store, named_store)
    assert "leads out of" in check_store(named_store)[0]


def test_links_inside_a_store_and_to_a_whole_store_are_followed(named_store: Path, tmp_path: Path) -> None:
    (named_store / "disk").mkdir()
    moved_out(named_store, named_store / "disk" / "part.h5", named_store / "disk" / "part.h5")
    (tmp_path / "link.h5").symlink_to(named_store)
    assert len(open_store(tmp_path / "link.h5").read([0, 2])) == 2


NO_TEXTS = {
    "nested without end": lambda: gzip.compress(b"[" * 10**6),
    "nested tables": lambda: gzip.compress(b'{"a":' * 10**6),
    "zeros": lambda: gzip.compress(bytes(2**29), 1),
    "cut off": lambda: gzip.compress(b'{"name": ["a"]}')[:-9],
    "no texts": lambda: gzip.compress(b'{"name": [1]}'),
}


@pytest.mark.parametrize("case", NO_TEXTS)
def test_texts_that_cannot_be_read_are_a_problem_of_the_store(case: str, named_store: Path) -> None:
    content = NO_TEXTS[case]()
    (named_store / "part-00000.h5.texts.gz").write_bytes(content)
    own = {"members": [len(content)], "blake2b": blake2b(content, digest_size=16).hexdigest()}
    edit_manifest(named_store, lambda table: table["parts"][0]["texts"].update(own))
    assert "cannot be read" in check_store(named_store)[0]


LIBRARY = """
#include <stdio.h>
static long any_call(void) { return 64; }
static void *methods[64], *object[512];
__attribute__((constructor)) static void loaded(void) {
    FILE *file = fopen(MARKER, "w");
    if (file) fclose(file);
    for (int k = 0; k < 64; k++) methods[k] = (void *)any_call;
    object[0] = methods;
}
void *OperatorCreate(void *settings) { return object; }
void OperatorDestroy(void *operator) {}
"""
WRITER = """
import sys, adios2, numpy
adios = adios2.Adios()
io = adios.declare_io("write")
io.set_engine("BP5")
plugin = adios.define_operator("packed", "plugin", {"PluginName": "any", "PluginLibrary": sys.argv[2]})
stream = adios2.Stream(io, sys.argv[1], "w")
stream.begin_step()
values = numpy.ones((9, 3))
variable = io.define_variable("positions", values, [9, 3], [0, 0], [9, 3])
variable.add_operation(plugin, {})
stream.engine.put(variable, values)
stream.end_step()
stream.close()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make a plugin with; install one")
def test_an_adios2_file_loads_no_library(tmp_path: Path) -> None:
    """ADIOS2 loads the plugin that a file names, by an absolute path or beside the file, before it unpacks a number."""
    marker, part = tmp_path / "loaded", tmp_path / "part.bp"
    (tmp_path / "plugin.c").write_text(LIBRARY)
    library = ["cc", "-shared", "-fPIC", f'-DMARKER="{marker}"', "-o", "plugin.so", "plugin.c"]
    subprocess.run(library, check=True, cwd=tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "ADIOS2_PLUGIN_PATH"}
    written = [sys.executable, "-c", WRITER, str(part), str(tmp_path / "plugin")]
    subprocess.run(written, check=True, env=environment)
    assert marker.exists()  # the library works
    marker.unlink()
    info = PartInfo(name="p", graphs=3, nodes=9, edges=6, blocks=[(3, 9, 6)], stored={}, masked=[], files={})
    with pytest.raises(InputError):
        AdiosPartReader(part, info, {"positions": 1}).fill("positions", np.zeros((9, 3)), 0)
    assert not marker.exists()
