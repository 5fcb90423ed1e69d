"""Which architectures there are: every file of this room, installed packages' entry points, and classes by name."""

import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType

from hydragnn.architectures.base import Architecture
from hydragnn.errors import InputError, nearest

GROUP = "hydragnn.architectures"
"""Entry-point group in which packages announce architectures; the name of an entry is its kind."""

_NOT_ARCHITECTURES = ("base", "registry")


@cache
def architectures() -> Mapping[str, type[Architecture]]:
    """The architectures of this room by kind, one file each."""
    import hydragnn.architectures as room

    names = sorted(info.name for info in pkgutil.iter_modules(room.__path__) if info.name not in _NOT_ARCHITECTURES)
    found = [_defined_in(import_module(f"{room.__name__}.{name}")) for name in names]
    return MappingProxyType({architecture.kind: architecture for architecture in found})


def _defined_in(module: ModuleType) -> type[Architecture]:
    """The one architecture that a module defines."""
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Architecture) and value.__module__ == module.__name__
    )
    return found


def architecture_of(kind: str) -> type[Architecture]:
    """The architecture of that kind: of this room, announced by an installed package, or ``package.module:Name``.

    InputError names the nearest kind, or says why a class cannot be used.
    """
    if kind in architectures():
        return architectures()[kind]
    if ":" in kind:
        return _loaded(kind, kind)
    announced = {entry.name: entry for entry in entry_points(group=GROUP)}
    if kind in announced:
        return _loaded(announced[kind].value, kind)
    known = [*architectures(), *announced]
    raise InputError(
        f"unknown kind of model {kind!r}; {nearest(kind, known)}, or name a class of yours as package.module:Name"
    )


@cache
def _loaded(reference: str, kind: str) -> type[Architecture]:
    """The class ``package.module:Name`` of an installed package or one on PYTHONPATH; never of the current folder.

    A model that came from a stranger may name any class, so modules are not looked for where strangers' files may lie.
    """
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise InputError(f"model.kind = {kind!r} names no class; write package.module:Name")
    here = str(Path.cwd())
    kept = list(sys.path)
    sys.path[:] = [entry for number, entry in enumerate(kept) if entry and (number or entry != here)]
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"model.kind = {kind!r}: {module_name} cannot be imported ({error}); install its package, or put its folder on PYTHONPATH"
        ) from error
    finally:
        sys.path[:] = kept
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Architecture)):
        raise InputError(
            f"model.kind = {kind!r}: {module_name} has no architecture {name}; derive it from hydragnn.architectures.Architecture"
        )
    return found
