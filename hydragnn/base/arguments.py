"""Types of the arguments of the Python api."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from hydragnn.base.errors import InputError
from hydragnn.base.imports import allow_code
from hydragnn.base.places import as_path, check_workers

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


CHECKS: dict[str, Callable[[Any], None]] = {"allow_code": allow_code, "workers": check_workers}


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that checks the types of its arguments.

    InputError where one is not of the type, or outside of the range, that is named. Numbers of numpy become those of Python.
    Modules in ``allow_code`` are allowed, and ``workers`` are workers. Modes of torch around the call change no result.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def with_checks(*positional: P.args, **named: P.kwargs) -> T:
        bound = signature.bind(*positional, **named)
        for name, value in bound.arguments.items():
            annotation = signature.parameters[name].annotation
            bound.arguments[name] = _value_of_type(name, value, annotation)
            _check_range(name, value, annotation)
            if name in CHECKS:
                CHECKS[name](value)
        with usual_modes():
            return function(*bound.args, **bound.kwargs)

    plain = [one.replace(annotation=_without_notes(one.annotation)) for one in signature.parameters.values()]
    with_checks.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]  # as help() shows it
    return with_checks


@contextmanager
def usual_modes() -> Iterator[None]:
    """Leave modes of torch that callers set, and undo those set inside.

    >>> import torch
    >>> with torch.inference_mode(), usual_modes(): torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    (False, True)
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    dtype = torch.get_default_dtype()
    with ExitStack() as modes:
        modes.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # a context costs time per operation
            modes.enter_context(torch.device("cpu"))
        yield


def _without_notes(annotation: Any) -> Any:
    """Return the type of an annotated argument."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _check_range(name: str, value: Any, annotation: Any) -> None:
    """Raise InputError for a number outside of the range of its option."""
    for option in get_args(annotation)[1:] if isinstance(value, Real) and get_origin(annotation) is Annotated else ():
        low, high = getattr(option, "min", None), getattr(option, "max", None)
        if not math.isfinite(value):
            raise InputError(f"{name} = {value} is no finite number; give one")
        if low is not None and value < low:
            raise InputError(f"{name} = {value} is out of range; give at least {low}")
        if high is not None and value > high:
            raise InputError(f"{name} = {value} is out of range; give at most {high}")


def _value_of_type(name: str, value: Any, annotation: Any) -> Any:
    """Return a value of a simple type; others pass as they are."""
    annotation = _without_notes(annotation)
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
