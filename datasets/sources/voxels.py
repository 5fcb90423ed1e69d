"""Images whose voxels have the number of their grain."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, as_input_error, as_missing
from hydragnn.base.limits import check_claim
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.meshio_files import read_vti
from hydragnn.datasets.sources.table_files import Table, read_table, stack_rows, table_column
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location

TIFF = (".tif", ".tiff")
SUFFIXES = (".npy", *TIFF, ".png", ".vti")

INCH, PRINTED = 2, (72, 96, 100, 144, 150, 200, 300, 400, 600, 1200)
"""Unit of pixels per inch, and how many of them belong to printers and screens."""
UNITS = re.compile(r"(µ|μ|\\u00B5|u|n|m|c)?m$|microns?$|inch$")
NUMBER = r"\d*\.?\d+(?:[eE][+-]?\d+)?"


class VoxelsBuild(BuildSettings):
    """Images of grains (``.npy``, ``.tif``, ``.png``, ``.vti``) as their graphs.

    Nodes are grains, edges shared faces. Every grain has its ``volume`` and its centroid as position, every edge the shared ``area``.
    """

    joins: ClassVar[frozenset[Location]] = frozenset(("node",))
    beside: ClassVar[tuple[str, ...]] = ("grains", "labels")

    kind: Literal["voxels"] = "voxels"

    spacing: float | list[float] | None = None
    """Edge length of a voxel, or one per axis of the array (of a TIFF: pages, rows, columns; of a .vti: x, y, z); absent: as these state it, else 1."""

    periodic: bool | list[bool] = False
    """True where the image repeats, or the axes that do: grains then go on at the other side."""

    background: int | None = None
    """Number of voxels that belong to no grain, such as pores; absent: all are grains."""

    array: str | None = None
    """Array of a .vti with the numbers of grains; absent: its only array of whole numbers on cells."""

    grains: str | None = None
    """Table with the node fields: a row per grain, columns ``file`` (for several images), ``grain`` (its number in the image) and values."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each image; InputError names the file."""
        numbers = ["grain", *(key for field in self.fields if field.on == "node" for key in field.keys)]
        optional = [key for field in self.fields if field.missing for key in field.keys]
        table = {} if self.grains is None else read_table(Path(self.grains), numbers, optional, ["file"])
        files = self.named_files()
        if table and len(files) > 1:
            table_column(table, "file", self.grains or "")
        for path, name in files:
            yield partial(self.graph_with_texts, {}, name, partial(self._graph, path, name, table))

    def _graph(self, path: Path, name: str, table: Table) -> GraphBatch:
        from hydragnn.graphs.mesoscale import from_labels

        image, stated, unit = read_image(path, self.spacing is None, self.array)
        if wrong := [field.name for field in self.fields if field.on != "node" or not table]:
            raise InputError(
                f"{name}: no value for the field {wrong[0]}; name a table: grains for nodes, labels for graphs"
            )
        rows = _rows(table, image[image != self.background], name, self.grains or "") if self.fields else None
        columns = {
            field.name: [table_column(table, key, self.grains or "") for key in field.keys] for field in self.fields
        }
        return from_labels(
            image,
            stated if self.spacing is None else self.spacing,
            self.periodic,
            background=self.background,
            fields=[field.field for field in self.fields],
            nodes={field.name: stack_rows([one[rows] for one in columns[field.name]], field) for field in self.fields},
            optional=self.optional,
            unit=unit,
            name=name,
        )


def _rows(table: Table, voxels: NDArray[Any], name: str, source: str) -> NDArray[np.int64]:
    """Return the row of each grain, ascending by its number."""
    numbers, labels = table_column(table, "grain", source), np.unique(voxels)
    files = table["file"].tolist() if "file" in table else [name] * len(numbers)
    own = np.flatnonzero([f"/{file}".endswith((f"/{name}", f"/{Path(name).with_suffix('')}")) for file in files])
    order: NDArray[np.int64] = own[np.argsort(numbers[own], kind="stable")]
    if not np.array_equal(numbers[order], labels):
        odd = np.setxor1d(numbers[order], labels)
        what = f"grain {odd[0]} is in one of them alone" if len(odd) else "a grain is there twice"
        raise InputError(f"{source} and {name} have other grains: {what}; give each grain of the image one row")
    return order


def read_image(
    path: Path, sized: bool = True, array: str | None = None
) -> tuple[NDArray[Any], list[float] | float, str]:
    """Return voxels of a file, lengths (1 unless ``sized``) and unit."""
    suffix, lengths, unit = path.suffix.lower(), 1.0, ""
    if suffix not in SUFFIXES:  # others, such as JPEG, change numbers to save space
        raise InputError(f"{path} is no image of grains; give {', '.join(SUFFIXES)}")
    if suffix == ".vti":
        return *read_vti(path, array), ""
    if array is not None:
        raise InputError(f"{path}: array is for .vti; leave it out")
    with as_input_error(f"{path} cannot be read as an image", "give .npy, .tif or .png"):
        if suffix in TIFF:
            image, lengths, unit = _pages(path, sized)
        elif suffix == ".npy":
            image = np.load(path, allow_pickle=False)
        else:
            from PIL import Image

            with Image.open(path) as file:
                check_claim(path, file.width * file.height)
                image = np.asarray(file)
    if image is None or image.dtype == np.bool_ or (suffix == ".png" and image.ndim > 2):
        raise InputError(f"{path} holds colours or a mask; give labels: one whole number per voxel, that of its grain")
    return np.asarray(image), lengths, unit


def _pages(path: Path, sized: bool) -> tuple[NDArray[Any] | None, Any, str]:
    """Return a TIFF's pages, None for colours; lengths; unit."""
    with as_missing("tifffile", "images", f"reading {path}"):
        from tifffile import TiffFile
    with TiffFile(path) as file:
        axes = file.series[0].axes
        if other := [name for letter, name in (("T", "time"), ("C", "channels")) if letter in axes]:
            raise InputError(f"{path} has an axis of {other[0]}; write each image as a file of its own")
        check_claim(path, sum(one.nbytes for one in file.series))
        stacks = [np.asarray(one.asarray()) for one in file.series]  # several where pages were written one by one
        image = stacks[0] if len(stacks) == 1 else np.stack(stacks)
        sizes = _sizes(path, file, image.ndim) if sized and "S" not in axes else (1.0, "")
    return (None if "S" in axes else image), *sizes


def _sizes(path: Path, file: Any, axes: int) -> tuple[list[float] | float, str]:
    """Return a voxel's lengths and their unit as a TIFF states them, else 1."""
    page, own = file.pages[0], {**(file.imagej_metadata or {}), **(file.shaped_metadata or ({},))[0]}
    text, pixels, unit = page.description, page.resolution, page.resolutionunit
    is_ome = "PhysicalSize" in text
    forms = (rf"=.({NUMBER})\b", "Unit=.([^'\"]+)")
    sizes, units = (dict(re.findall(rf"PhysicalSize([XYZ]){form}", text)) for form in forms)
    if not is_ome:
        sizes = {"Z": own.get("spacing", 0), **{axis: one and 1 / one for axis, one in zip("XY", pixels)}}
        if unit == INCH and pixels[0] == pixels[1] in PRINTED and "spacing" not in own:
            return 1.0, ""
    lengths = [float(sizes.get(axis, 0)) for axis in "ZYX"[-axes:]]
    if {*lengths} <= {0.0, 1.0} and not (all(lengths) and ("unit" in own or is_ome)):
        return 1.0, ""
    if not all(0 < length < np.inf for length in lengths) or len({units.get(axis) for axis in "ZYX"[-axes:]}) > 1:
        raise InputError(f"{path} states lengths of voxels, but not of all axes in one unit; give spacing")
    of_tags = str(own.get("unit", {INCH: "inch", INCH + 1: "cm"}.get(int(unit), "")))
    of_file = units.get("X", "um") if is_ome else of_tags
    return lengths, re.sub(r"^(µ|μ|\\u00B5|u)m$|^microns?$", "um", of_file) if UNITS.match(of_file) else ""
