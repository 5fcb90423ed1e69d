"""Store engines: classes that read and write one part of a store."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.imports import announced_classes, class_named
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.manifest import Layout, PartInfo

GROUP = "hydragnn.formats"
"""Entry-point group in which packages announce store engines, by the name that manifests keep."""

BUILT_IN = {"hdf5": "hdf5:Hdf5Engine", "adios2": "adios:AdiosEngine"}
"""Module and class of every engine of this folder, by the name that manifests keep."""


@runtime_checkable
class PartWriter(Protocol):
    """Writer of one part."""

    def write_block(self, arrays: dict[str, Array], rows_before: dict[str, int]) -> None:
        """Append rows to some arrays; ``rows_before`` counts each array's earlier rows."""

    def close(self) -> None:
        """Finish the part."""


@runtime_checkable
class PartReader(Protocol):
    """Reader of one part."""

    def check(self, layout: Mapping[str, Layout]) -> None:
        """Raise InputError for missing arrays or another shape, dtype or length."""

    @property
    def direct(self) -> bool:
        """True for rows copied out of memory, where short runs are cheap."""

    def fill(self, name: str, out: Array, start: int) -> None:
        """Fill ``out``, which is zero, with rows from ``start`` on."""

    def joined(
        self, name: str, dtype: np.dtype[Any], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> bytearray | None:
        """Return runs of rows end to end; None where ``fill`` must read."""

    def close(self) -> None:
        """Close the files."""


class StoreEngine(ABC):
    """Reader and writer of parts in one file format."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of stores; parts have the first one."""

    def __init_subclass__(cls) -> None:
        """Raise TypeError for an engine that lacks a suffix or a method."""
        lacking = [name for name in ("writer", "reader") if getattr(cls, name) is getattr(StoreEngine, name)]
        if lacking or not cls.suffixes:
            raise TypeError(f"store engine {cls.__name__} lacks {', '.join(lacking or ['suffixes'])}")

    @staticmethod
    @abstractmethod
    def writer(path: Path) -> PartWriter:
        """Return the writer of a new part; OSError if impossible."""

    @staticmethod
    @abstractmethod
    def reader(path: Path, info: PartInfo, columns: Mapping[str, int]) -> PartReader:
        """Return the reader of a part; InputError where it is unreadable.

        ``columns`` maps each array to the column of ``info.blocks`` that counts its rows.
        """


@cache
def engine_named(name: str) -> type[StoreEngine]:
    """Return the engine of a manifest; InputError where no package has it."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        engine: type[StoreEngine] = getattr(import_module(f"hydragnn.datasets.formats.{module}"), attribute)
        return engine
    announced = announced_classes(GROUP)
    if name not in announced:
        raise InputError(f"no installed package has the store engine {name}; install it or convert the store elsewhere")
    return class_named(
        announced[name],
        StoreEngine,
        where=f"store engine {name}",
        noun="store engine",
        parent="hydragnn.datasets.StoreEngine",
        registered=True,
    )


def engine_of(path: Path) -> str:
    """Return the engine's name for a suffix; InputError for another suffix."""
    for name in [*BUILT_IN, *announced_classes(GROUP)]:
        if path.suffix in engine_named(name).suffixes:
            return name
    raise InputError(f"{path}: the suffix decides the engine; call it {path.stem}.h5 (HDF5) or {path.stem}.bp (ADIOS2)")


def part_name(number: int, engine: str) -> str:
    """Return the name of a part, such as ``part-00000.h5``."""
    return f"part-{number:05d}{engine_named(engine).suffixes[0]}"
