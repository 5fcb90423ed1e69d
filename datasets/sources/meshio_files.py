"""Files that meshio reads, and image data of VTK."""

import base64
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.limits import Unpacker
from hydragnn.graphs.batch import GraphBatch

PLANE = {"3": "CPS3", "4": "CPS4", "6": "CPE6"}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of meshio into InputError; what it unpacks has a limit."""
    from meshio.vtu import _vtu

    size = path.stat().st_size
    _vtu.zlib, _vtu.lzma = Unpacker(zlib.decompressobj, size), Unpacker(lzma.LZMADecompressor, size)
    _vtu._parse_raw_binary = _xml_of_raw
    try:
        with redirect_stdout(StringIO()):  # some of meshio's readers print
            yield
    except InputError:
        raise
    except (SystemExit, Exception) as error:  # meshio exits on unknown formats, and its readers raise what they raise
        reason = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "in no format of its suffix"
        raise InputError(f"{path} cannot be read by meshio ({reason}); check it") from error
    finally:
        _vtu.zlib, _vtu.lzma = zlib, lzma


def _xml_of_raw(path: Path | str) -> ElementTree.Element:
    """Return XML whose appended raw bytes are in base64.

    In place of meshio's function, which finds an array by its offset among those it has changed, and so takes another one.
    """
    head, mark, rest = Path(path).read_bytes().partition(b"<AppendedData")
    data = rest.partition(b"_")[2].rpartition(b"</AppendedData>")[0]
    root = ElementTree.fromstring(head + mark + b"/></VTKFile>")
    order = {"LittleEndian": "<", "BigEndian": ">"}[root.get("byte_order", "LittleEndian")]
    header, text = np.dtype(f"{order}u{4 if root.get('header_type', 'UInt32') == 'UInt32' else 8}"), "_"
    for array in [one for one in root.iter("DataArray") if one.get("format") == "appended"]:
        place = int(array.attrib["offset"])
        array.set("offset", str(len(text) - 1))
        (size,) = np.frombuffer(data, header, 1, place).tolist()
        parts = [header.itemsize + size]
        if root.get("compressor"):  # size is a number of blocks, whose sizes stand behind two more numbers
            parts = [header.itemsize * (3 + size), sum(np.frombuffer(data, header, 3 + size, place)[3:].tolist())]
        for part in parts:
            text += base64.b64encode(data[place : place + part]).decode()
            place += part
    root[-1].text = text
    root[-1].set("encoding", "base64")
    return root


def xml_of(path: Path) -> ElementTree.Element:
    """Return the root of an XML file; ValueError where it declares entities."""
    content = path.read_bytes()
    if b"<!ENTITY" in content.replace(b"\0", b""):
        raise ValueError("it declares entities")
    return ElementTree.fromstring(content)


def read_abaqus(path: Path) -> Any:
    """Return the mesh of an Abaqus input; InputError for several meshes."""
    from meshio.abaqus._abaqus import read_buffer

    text = re.sub(r"(?m)^\*\*.*\n", "", path.read_text(encoding="latin-1"))  # comments, at which meshio ends a block
    if re.search(r"(?im)^\*include", text) or len(re.findall(r"(?im)^\*node\s*(?:,|$)", text)) != 1:
        raise InputError(f"{path} has no nodes, or several blocks or files of them; write one mesh into one file")
    passed = r"(?im)^\*(?:elgen|elcopy)|^\*node\b.*\bsystem\s*=\s*[CS]|^\*instance\b(?=(?s:.*)^\*instance\b)"
    if odd := re.search(passed, text):  # meshio passes over them
        raise InputError(f"{path} has {odd[0]}, which is not read; list every element once, at Cartesian places")
    sets = re.findall(r"(?im)^\*(?:elset|nset|element)\b.*?\b([en]lset\s*=[^,\n]+)", text)
    if twice := {one for one in sets if sets.count(one) > 1}:  # meshio has the last part alone
        raise InputError(f"{path} writes {min(twice)} in several parts; write each set once")
    plane = r"(?im)^(\*element\b.*type\s*=\s*)CP[ES]([346])\w*"  # strain or stress; meshio knows one name for each form
    with reading(path):
        return read_buffer(StringIO(re.sub(plane, lambda one: one[1] + PLANE[one[2]], text)))


def grains_of_mesh(mesh: Any, owner: NDArray[Any], name: str) -> GraphBatch:
    """Return grains of a mesh by the grain of every cell."""
    from hydragnn.graphs.continuum import from_mesh
    from hydragnn.graphs.mesoscale import mesoscale_fields
    from hydragnn.graphs.validate import graph_from_arrays

    cells = from_mesh(mesh, cell_centred=True, tags=[], name=name)
    sizes, places = cells["volume"].numpy(), cells.positions.numpy()
    volumes = np.bincount(owner, weights=sizes)
    centroids = np.stack([np.bincount(owner, weights=x * sizes) for x in places.T], axis=1) / volumes[:, None]
    ends = owner[np.stack([cells.senders.numpy(), cells.receivers.numpy()])]
    between = ends[0] != ends[1]
    pairs, member = np.unique(ends[:, between], axis=1, return_inverse=True)
    areas = np.bincount(member.ravel(), weights=cells["area"].numpy()[between], minlength=pairs.shape[1])
    fields = mesoscale_fields(cells.dim, source="labels")[:2]
    nodes, edges = {"volume": volumes}, {"area": areas}
    return graph_from_arrays(centroids, *pairs, fields=fields, nodes=nodes, edges=edges, name=name)


def read_vti(path: Path, array: str | None = None) -> tuple[NDArray[Any], list[float]]:
    """Return labels of VTK's image data with the axes x, y, z, and lengths of voxels."""
    from meshio.vtu import _vtu

    with reading(path):
        try:
            root = xml_of(path)
        except ElementTree.ParseError:
            root = _vtu._parse_raw_binary(path)
        image, piece = root.find("ImageData"), root.find("ImageData/Piece")
        if image is None or piece is None:
            raise InputError(f"{path} has no image data of VTK; write them, or give another file")
        ends = np.array(image.attrib["WholeExtent"].split(), dtype=np.int64).reshape(3, 2)
        turned = np.array(image.get("Direction", "1 0 0 0 1 0 0 0 1").split(), dtype=np.float64) != np.eye(3).ravel()
        if piece.attrib["Extent"].split() != image.attrib["WholeExtent"].split() or turned.any():
            raise InputError(f"{path} has several pieces, or turned axes; write one piece along x, y and z")
        numbers = [one for one in piece.findall("CellData/DataArray") if "Int" in one.attrib["type"]]
        numbers = [one for one in numbers if one.get("NumberOfComponents", "1") == "1"]
        numbers = [one for one in numbers if array in (None, one.get("Name"))]
        if len(numbers) != 1:
            arrays = [f"{one.get('Name')} ({one.get('type')}, {part.tag})" for part in piece for one in part]
            what = f"{len(numbers)} arrays {array or ''}".strip()
            move = f"out of {', '.join(arrays)}; write that of grains so, and name it by array"
            raise InputError(f"{path} has {what} of whole numbers on cells, {move}")
        reader = object.__new__(_vtu.VtuReader)
        reader.compression, reader.byte_order = root.get("compressor"), root.get("byte_order")
        reader.header_type = root.get("header_type", "UInt32")
        reader.appended_data = root.findtext("AppendedData", "").strip()[1:]
        counts = np.maximum(np.diff(ends).ravel(), 1)
        labels = reader.read_data(numbers[0]).reshape(counts[::-1]).T
        lengths = np.array(image.get("Spacing", "1 1 1").split(), dtype=np.float64)[counts > 1].tolist()
    return labels.squeeze(), lengths
