"""Classes of other packages by entry point or ``package.module:Name``.

None is imported from folders of strangers' files, and only what the user allows.
"""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError, as_input_error, nearest

T = TypeVar("T")

REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*")

ROOMS = ("datasets", "ensemble", "graphs", "hpo", "scripts")
"""Rooms of this package that lie outside its folder in a checkout, where files of strangers may lie beside them."""


class NotAllowed(InputError):
    """Code that a file names, and that the user has not allowed."""


_allowed: set[str] = set()
"""Modules that this process may import by name, each with the modules inside it."""


def allow_code(modules: Iterable[str]) -> None:
    """Let files name classes of these modules; InputError for a bad name."""
    if not isinstance(modules, Iterable):
        raise InputError(
            f"allow_code = {modules!r:.60} names no modules; write for example allow_code=['package.module']"
        )
    for module in [modules] if isinstance(modules, str) else modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise InputError(f"--allow-code {module} names no module; write package or package.module")
        _allowed.add(module)


def allow_named(value: Any) -> None:
    """Let files name the modules in a table that the user wrote."""
    if isinstance(value, str):
        if match := REFERENCE.fullmatch(value):
            _allowed.add(match[1])
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            allow_named(one)


def allowed_code() -> list[str]:
    """Return the modules for ``allow_code`` in a child process."""
    return sorted(_allowed)


def is_allowed(module: str) -> bool:
    """Return True for modules of this package, imported ones and allowed ones."""
    parents = {module[: match.start()] for match in re.finditer(r"\.|$", module)}
    return is_own(module) or module in sys.modules or bool(parents & _allowed)


def is_own(module: str) -> bool:
    """Return True for a module of this package, not of its checkout.

    >>> is_own("hydragnn.scripts.recipes.fept"), is_own("hydragnn.base.imports"), is_own("hydragnn.setup"), is_own("downloads.model")
    (True, True, False, False)
    """
    package, _, rest = module.partition(".")
    room, folder = rest.partition(".")[0], Path(__file__).parents[1]
    return package == "hydragnn" and (room in ROOMS or (folder / room).is_dir() or (folder / f"{room}.py").is_file())


def names_in(package: str, file: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: names that it imports for type checkers."""

    @cache
    def homes() -> dict[str, str]:
        nodes = ast.walk(ast.parse(Path(file).read_text()))
        return {name.name: one.module or "" for one in nodes if isinstance(one, ast.ImportFrom) for name in one.names}

    def value_of(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    return value_of


def class_of_kind(
    kind: str, own: Mapping[str, type[T] | str], base: type[T], *, group: str, where: str, noun: str, parent: str
) -> type[T]:
    """Return the class of a kind: own, registered, or ``package.module:Name``.

    Own classes that are imported on first use stand by such names, too.
    """
    others = {name: one for name, one in own.items() if isinstance(one, str)}
    if kind in own and kind not in others:
        return own[kind]  # type: ignore[return-value]
    others |= {} if kind in own else announced_classes(group)
    if kind not in others and ":" not in kind:
        raise InputError(
            f"unknown kind of {noun} {kind!r}; {nearest(kind, [*own, *others])} (a class of your own is named package.module:Name)"
        )
    reference = others.get(kind, kind)
    words = {"where": f"{where} = {kind!r}", "noun": noun, "parent": parent}
    return class_named(reference, base, **words, registered=reference in others.values())


def class_named(
    reference: str, base: type[T], *, where: str, noun: str, parent: str, registered: bool = False
) -> type[T]:
    """Return the class ``package.module:Name``, never one of the current folder.

    A file that came from a stranger may name any class. So a module is imported only where it ``is_allowed``, or where an entry point of
    an installed package ``registered`` the class. Modules are not looked for where strangers' files may lie, and
    neither Python's own modules, some of which act when imported, nor programs (``__main__``) are imported. InputError
    begins with ``where``, and says ``noun`` for what the class should be, and ``parent`` for what it should derive from.
    """
    value = _imported(reference, where=where, noun=noun, registered=registered)
    module_name, _, name = reference.partition(":")
    if not (isinstance(value, type) and issubclass(value, base)):
        raise InputError(f"{where}: {module_name} has no {noun} {name}; derive it from {parent}")
    if lacks := getattr(value, "__abstractmethods__", ()):
        raise InputError(
            f"{where}: {reference} lacks the methods {', '.join(sorted(lacks))}; {parent} says what they return"
        )
    return value


def classes_of(module: ModuleType, base: type[T]) -> list[type[T]]:
    """Return the subclasses that a module defines itself."""
    own = (value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__)
    return [value for value in own if issubclass(value, base)]


def function_of_kind(
    kind: str, own: Mapping[str, Callable[..., Any]], *, group: str, where: str, noun: str
) -> Callable[..., Any]:
    """Return the function of a kind: own, registered, or ``package.module:name``."""
    if kind in own:
        return own[kind]
    others = announced_classes(group)
    if kind not in others and not REFERENCE.fullmatch(kind):
        hint = nearest(kind, [*own, *others])
        raise InputError(
            f"{where}: unknown {noun} {kind!r}; {hint} (a function of your own is named package.module:name)"
        )
    return function_named(others.get(kind, kind), where=where, noun=noun, registered=kind in others)


def function_named(reference: str, *, where: str, noun: str, registered: bool = False) -> Callable[..., Any]:
    """Return a function that is allowed or registered; InputError otherwise.

    Modules that are imported already are not enough, since their functions may do anything.
    """
    module = reference.partition(":")[0]
    if not registered and not any(f"{module}.".startswith(f"{one}.") for one in _allowed):
        raise InputError(f"{where} runs code of {module}; where you trust it, add --allow-code {module}")
    value = _imported(reference, where=where, noun=noun, registered=registered)
    if not callable(value):
        raise InputError(f"{where}: {reference} is no function; name one that returns a {noun}")
    return value


def check_references(references: Sequence[str]) -> None:
    """Raise InputError for names of functions whose modules are not allowed."""
    if isinstance(references, str):
        raise InputError(f"{references!r:.60} is a text; write a list of names such as ['package.module:name']")
    for one in references:
        function_named(one, where=one, noun="calculator")


def _imported(reference: str, *, where: str, noun: str, registered: bool = False) -> Any:
    """Return a value of an allowed module; None without it."""
    module_name, _, name = reference.partition(":")
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in [*parts, name]):
        raise InputError(f"{where} means {reference}, which is no name of one thing; write package.module:Name")
    if parts[0] in sys.stdlib_module_names or "__main__" in parts:
        raise InputError(
            f"{where}: {module_name} holds no {noun}{'e' * noun.endswith('s')}s; name a module of a package of yours"
        )
    if not (registered or is_allowed(module_name)):
        raise NotAllowed(
            f"{where} names code of {module_name}, which a file may not run by itself; where you trust it, add "
            f'--allow-code {module_name} (in Python: allow_code=["{module_name}"])'
        )
    move = (
        "repair it, install its package, or put its folder on PYTHONPATH (the current folder is left out, because strangers' "
        "files may lie there)"
    )
    with as_input_error(f"{where}: {module_name} cannot be imported", move), without_the_current_folder():
        module = import_module(module_name)
    return getattr(module, name, None)


def announced_classes(group: str) -> dict[str, str]:
    """Return the classes in an entry-point group by name; " and " joins those of one name."""
    values = dict[str, set[str]]()
    with without_the_current_folder():
        for entry in entry_points(group=group):
            values.setdefault(entry.name, set()).add(entry.value)
    return {name: " and ".join(sorted(several)) for name, several in values.items()}


@contextmanager
def without_the_current_folder() -> Iterator[None]:
    """Import as ``python -P``, without the current folder.

    An empty entry of PYTHONPATH, as ``$UNSET:/site`` has one, names no folder.
    """
    search_path = list(sys.path)
    folder, entries = str(Path.cwd()), environment().get("PYTHONPATH", "").split(os.pathsep)
    doubtful = 0 if sys.flags.safe_path else 1  # what Python itself puts first
    library, named = str(Path(os.__file__).parent), {str(Path(entry).resolve()) for entry in entries if entry}
    if "" in entries and library in search_path and folder not in named:
        doubtful = search_path.index(library)
    sys.path[:] = [entry for number, entry in enumerate(search_path) if number >= doubtful or entry not in ("", folder)]
    try:
        yield
    finally:
        sys.path[:] = search_path
