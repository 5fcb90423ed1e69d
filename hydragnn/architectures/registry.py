"""Which architectures there are: every file of this room, installed packages' entry points, and classes by name."""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType, ModuleType

from hydragnn.architectures.base import Architecture, ArchitectureSettings
from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import class_named, without_the_current_folder

GROUP = "hydragnn.architectures"
"""Entry-point group in which packages announce architectures; the name of an entry is its kind."""

_NOT_ARCHITECTURES = ("base", "moving", "registry", "table")


@cache
def architectures() -> Mapping[str, type[Architecture]]:
    """The architectures of this room by kind, one file each."""
    candidates = [_defined_in(_module(name)) for name in _names()]
    return MappingProxyType({architecture.kind: architecture for architecture in candidates})


def _names() -> list[str]:
    """The files of this room that define one each."""
    import hydragnn.architectures as room

    return sorted(info.name for info in pkgutil.iter_modules(room.__path__) if info.name not in _NOT_ARCHITECTURES)


def _module(name: str) -> ModuleType:
    return import_module(f"hydragnn.architectures.{name}")


@cache
def _in_this_room(kind: str) -> type[Architecture] | None:
    """The architecture of that kind of this room; its file is looked for by the kind first, since settings of all take a fifth of a second."""
    if kind in _names():
        found = _defined_in(_module(kind))
        if found.kind == kind:
            return found
    return architectures().get(kind)


def _defined_in(module: ModuleType) -> type[Architecture]:
    """The one architecture that a module defines; TypeError where there is another number of them."""
    candidates = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Architecture) and value.__module__ == module.__name__
    ]
    if len(candidates) != 1:
        names = ", ".join(architecture.__name__ for architecture in candidates) or "none"
        raise TypeError(f"{module.__name__} defines {names}; a file of this room defines one Architecture")
    return candidates[0]


def architecture_of(kind: str) -> type[Architecture]:
    """The architecture of that kind: of this room, announced by an installed package, or ``package.module:Name``.

    InputError names the nearest kind, or says why a class cannot be used.
    """
    own = _in_this_room(kind)
    if own is not None:
        return own
    return _load(kind, kind) if ":" in kind else _entry_points(kind)


def _announced() -> dict[str, str]:
    """Return the classes that installed packages announce, by kind."""
    with without_the_current_folder():
        return {entry.name: entry.value for entry in entry_points(group=GROUP)}


@cache
def _entry_points(kind: str) -> type[Architecture]:
    """The architecture that an installed package announces as ``kind``; InputError names the nearest where none does."""
    announced = _announced()
    if kind in announced:
        return _load(announced[kind], kind)
    known = [*architectures(), *announced]
    raise InputError(
        f"unknown kind of model {kind!r}; {nearest(kind, known)} (a class of your own is named package.module:Name)"
    )


@cache
def _load(reference: str, kind: str) -> type[Architecture]:
    """The class ``package.module:Name`` with its Settings; InputError where it is no architecture."""
    where = f"model.kind = {kind!r}"
    architecture = class_named(
        reference,
        Architecture,
        where=where,
        noun="architecture",
        parent="hydragnn.architectures.Architecture",
        registered=reference in _announced().values(),
    )
    if not issubclass(getattr(architecture, "Settings", type), ArchitectureSettings):
        raise InputError(f"{where}: {architecture.__name__} has no Settings; derive them from ArchitectureSettings")
    return architecture
