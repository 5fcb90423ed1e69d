"""Classes of other packages by name, ``package.module:Name``: never from where a stranger's files may lie."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from hydragnn.errors import InputError

T = TypeVar("T")


def names_in(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names lie in these modules of it, each of which is imported where one of them is first asked for."""
    homes = {name: module for module, names in modules.items() for name in names}

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return value_of


def class_named(reference: str, base: type[T], *, where: str, noun: str, parent: str) -> type[T]:
    """The class ``package.module:Name`` of an installed package or one on PYTHONPATH; never of the current folder.

    A file that came from a stranger may name any class. So modules are not looked for where strangers' files may lie, and
    neither Python's own modules, some of which act when imported, nor programs (``__main__``) are imported. InputError
    begins with ``where``, and says ``noun`` for what the class should be, and ``parent`` for what it should derive from.
    """
    module_name, _, name = reference.partition(":")
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in [*parts, name]):
        raise InputError(f"{where} names no class; write package.module:Name")
    if parts[0] in sys.stdlib_module_names or "__main__" in parts:
        raise InputError(f"{where}: {module_name} holds no {noun}s; name a module of a package of yours")
    try:
        with without_the_current_folder():
            module = import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"{where}: {module_name} cannot be imported ({error}); install its package, or put its folder on "
            "PYTHONPATH (the current folder is left out, because strangers' files may lie there)"
        ) from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{where}: {module_name} has no {noun} {name}; derive it from {parent}")
    return found


@contextmanager
def without_the_current_folder() -> Iterator[None]:
    """Import as ``python -P`` does: the current folder counts only where PYTHONPATH or an installation names it."""
    search_path = list(sys.path)
    added = [] if sys.flags.safe_path else ["", str(Path.cwd())]  # what Python itself puts first
    sys.path[:] = search_path[1:] if search_path[:1] and search_path[0] in added else search_path
    try:
        yield
    finally:
        sys.path[:] = search_path
