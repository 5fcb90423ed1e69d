"""Files that never end, or that claim or unpack to more than anybody has, are refused before a library reads them."""

import base64
import bz2
import gzip
import lzma
import os
import socket
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from hydragnn.base import limits
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.limits import check_readable
from hydragnn.base.places import as_path, matching_files
from hydragnn.base.settings import read_toml, with_overrides
from hydragnn.datasets.sources.mesh import read_mesh
from hydragnn.datasets.sources.pyg import PygBuild
from hydragnn.datasets.sources.table_files import find_files, read_npz, read_table
from hydragnn.datasets.sources.voxels import read_image
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.graphs.structure_files import structures_of

ZEROS = bytes(2**22)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLOOR", 2**20)


ENDLESS = {"pipe": "a.vtu", "socket": "a.csv", "device": "/dev/zero", "pipe in a folder that is one file": "a.traj"}
DOORS: dict[str, Callable[[Path], Any]] = {
    "files of a build": lambda path: find_files([str(path)]),
    "tables": read_table,
    "arrays": read_npz,
    "structures": lambda path: list(structures_of(path)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_might_not_end_is_refused_at_every_door(tmp_path: Path, kind: str, door: str) -> None:
    path = tmp_path / ENDLESS[kind]
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "device":
        path.mkdir()
        os.mkfifo(path / "frame")
    with pytest.raises(InputError, match="is no regular file"):
        DOORS[door](path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", ZEROS)


def with_rows(path: Path, shape: tuple[int, ...], dtype: str = "<f8") -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def npz_with_rows(path: Path) -> None:
    with_rows(path.with_suffix(".npy"), (10**11,))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".npy"), "E.npy")


def empty_chunks(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("group/points", (10**11, 3), "f8", chunks=True)


TOO_MUCH: dict[str, Callable[[Path], Any]] = {
    "gzip": lambda path: path.write_bytes(gzip.compress(ZEROS)),
    "bz2": lambda path: path.write_bytes(bz2.compress(ZEROS)),
    "xz": lambda path: path.write_bytes(lzma.compress(ZEROS)),
    "zip": zipped,
    "rows of npy": lambda path: with_rows(path, (10**11,)),
    "rows without bytes": lambda path: with_rows(path, (10**11,), "|V0"),
    "a product over 64 bits": lambda path: with_rows(path, (2**32, 2**32, 2**32)),
    "rows of npz": npz_with_rows,
    "chunks of HDF5": empty_chunks,
}


@pytest.mark.parametrize("make", TOO_MUCH.values(), ids=TOO_MUCH)
def test_content_that_claims_more_than_its_file_is_refused(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "file")
    with pytest.raises(InputError, match=r"file(: E)?.* (would take|which takes) "):
        check_readable(tmp_path / "file")


def large_arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2**20), b=np.array(["x", "yy"]), c=np.zeros((0, 3)))


HONEST: dict[str, Callable[[Path], Any]] = {
    "noise in gzip": lambda path: path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(2**21))),
    "few zeros": lambda path: path.write_bytes(lzma.compress(bytes(2**20))),
    "large arrays": large_arrays,
    "a damaged archive": lambda path: path.write_bytes(b"PK\3\4" + bytes(30)),
    "a header of numpy that is cut off": lambda path: path.write_bytes(b"\x93NUMPY\1\0\x10\0{'descr': '<f8', "),
    "a header of numpy with other columns": lambda path: path.write_bytes(b"\x93NUMPY\1\0\x0a\0  {\n a\n b "),
    "a missing file": lambda path: None,
}


@pytest.mark.parametrize("make", HONEST.values(), ids=HONEST)
def test_honest_and_damaged_files_are_left_to_their_reader(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "file")
    check_readable(tmp_path / "file")


VTU = (
    '<?xml version="1.0"?><VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian" header_type="UInt32" '
    'compressor="{}"><UnstructuredGrid><Piece NumberOfPoints="1" NumberOfCells="0"><Points><DataArray type="Float64" '
    'NumberOfComponents="3" format="binary">{}{}</DataArray></Points><Cells/></Piece></UnstructuredGrid></VTKFile>'
)
XDMF = (
    '<Xdmf Version="3.0"><Domain><Grid Name="G"><Geometry GeometryType="XYZ"><DataItem DataType="Float" Dimensions="1 3" '
    'Format="{}" Precision="8">{}</DataItem></Geometry></Grid></Domain></Xdmf>'
)


@pytest.mark.parametrize(("name", "module"), {"vtkZLibDataCompressor": zlib, "vtkLZMADataCompressor": lzma}.items())
def test_blocks_of_a_mesh_unpack_to_a_limit(tmp_path: Path, name: str, module: Any) -> None:
    data = module.compress(ZEROS)
    header = np.array([1, len(ZEROS), len(ZEROS), len(data)], "<u4").tobytes()
    path = tmp_path / "a.vtu"
    path.write_text(VTU.format(name, *(base64.b64encode(part).decode() for part in (header, data))))
    with pytest.raises(InputError, match="unpacks to more than"):
        read_mesh(path)


@pytest.mark.parametrize("kind", ["HDF", "Binary"])
def test_files_named_in_xdmf_have_the_same_limits(tmp_path: Path, kind: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "a.xdmf").write_text(XDMF.format(kind, f"{pipe}:/p" if kind == "HDF" else str(pipe)))
    with pytest.raises(InputError, match="is no regular file"):
        read_mesh(tmp_path / "a.xdmf")


def test_an_image_that_claims_more_pixels_than_its_file_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("I;16", (4000, 4000)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="would take"):
        read_image(tmp_path / "a.png")


def test_tensors_that_repeat_one_number_without_end_are_refused(tmp_path: Path) -> None:
    data = torch_geometric("data").Data(x=torch.zeros(1, 1).expand(10**9, 1), edge_index=torch.zeros(2, 0).long())
    torch.save([data], tmp_path / "a.pt")
    with pytest.raises(InputError, match="would take"):
        PygBuild(files=["a.pt"]).load(tmp_path / "a.pt")


@pytest.mark.parametrize("text", ["1000000000000\nx\nH 0 0 0\n", "1\nx\nH 0 0 0\n7000000000\nx\nH 0 0 0\n"])
def test_structures_that_count_more_atoms_than_they_have_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xyz").write_text(text)
    with pytest.raises(ValueError, match="ends before its"):
        list(structures_of(tmp_path / "a.xyz"))


NAMES = {"one long name": "a" * 10_000, "many folders": "a/" * 5_000, "NUL": "a\0b", "long pattern": "a" * 300 + "*"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("door", [as_path, matching_files])
def test_names_that_no_file_can_have_are_refused(name: str, door: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match=r"none that a file can have|is no path"):
        door(name)


DEEP = {
    "50,000 levels": ".".join("a" * 50_000) + "=1",
    "200 levels": "model." * 200 + "kind=1",
    "lists": "a=" + "[" * 50_000,
    "tables": "a=" + "{a=" * 50_000,
    "digits": "a=" + "9" * 50_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_assignments_nested_without_end_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"levels are more|is not valid TOML"):
        with_overrides({}, [text])


def test_a_description_of_a_terabyte_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match="more than"):
        read_json(tmp_path / "manifest.json")


TEXTS = {
    "a.toml": '[model]\nname = "Pölz"\n',
    "a.json": '{"name": "Pölz"}',
    "a.csv": "file,name\n1,Pölz\n",
    "a.xyz": "1\nPölz\nH 0 0 0\n",
    "a.gml": 'graph [ name "Poelz"\n node [ id 0 x 1.0 ] ]\n',
    "a.vasp": "Pölz\n1.0\n1 0 0\n0 1 0\n0 0 1\nH\n1\nDirect\n0 0 0\n",
}
READERS: dict[str, Callable[[Path], object]] = {
    ".toml": read_toml,
    ".json": read_json,
    ".csv": lambda path: read_table(path, texts=["name"]),
    ".xyz": lambda path: list(structures_of(path)),
    ".vasp": lambda path: list(structures_of(path)),
    ".gml": lambda path: find_files([str(path)]),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_with_a_mark_or_in_two_bytes_is_read_or_refused(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TEXTS[name].encode(encoding))
    read = READERS[path.suffix]
    if encoding == "utf-8" or (encoding == "utf-8-sig" and path.suffix in (".toml", ".json", ".csv")):
        assert "P" in repr(read(path)) or read(path)
    else:
        with pytest.raises(InputError, match=r"is text in UTF-.*save it as plain UTF-8"):
            read(path)


@pytest.mark.parametrize(
    "content", [b"", b"a", b"3\n", b"\x01\0\0\0", b"II*\0\x08\0\0\0", b"\0\0\0\0", b"\xff\xd8\xff\xe0"]
)
def test_short_and_binary_files_are_not_taken_for_text_in_two_bytes(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    check_readable(tmp_path / "file")
