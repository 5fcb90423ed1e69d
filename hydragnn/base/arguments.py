"""Types of the arguments of the Python api."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from hydragnn.base.errors import InputError
from hydragnn.base.places import as_path

P = ParamSpec("P")
T = TypeVar("T")

KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("truth value, such as True", lambda value: type(value).__name__ in ("bool", "bool_")),
    int: ("whole number, such as 3", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    float: ("number, such as 0.5", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    str: ("text, such as 'name'", lambda value: isinstance(value, str)),
    Sequence[str]: (
        "list of texts, such as ['name']",
        lambda value: isinstance(value, list | tuple) and all(isinstance(one, str) for one in value),
    ),
}
"""Noun for a value of a type, with an example, and a check of values."""


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that checks the types of its arguments.

    InputError where one is not of the type that is named. Numbers of numpy become those of Python.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def with_checks(*positional: P.args, **named: P.kwargs) -> T:
        bound = signature.bind(*positional, **named)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _value_of_type(name, value, signature.parameters[name].annotation)
        return function(*bound.args, **bound.kwargs)

    return with_checks


def _value_of_type(name: str, value: Any, annotation: Any) -> Any:
    """Return a value of a simple type; others are left to the function itself."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    several = get_origin(annotation) in (Union, UnionType)
    kinds = set(get_args(annotation)) if several else {annotation}
    if value is None and NoneType in kinds:
        return value
    if kinds == {Path, str} or kinds == {Path, str, NoneType}:
        as_path(value)
        return value
    if value is None and several:
        raise InputError(f"{name} = None is no value; leave {name} out, or give one")
    if not kinds <= {*KINDS, NoneType}:
        return value
    (kind,) = kinds - {NoneType}
    what, holds = KINDS[kind]
    if not holds(value):
        noun, _, example = what.partition(",")
        raise InputError(f"{name} = {value!r:.60} ({type(value).__name__}) is no {noun}; give one,{example}")
    return kind(value) if isinstance(value, Real) else value
