"""Points of the search space."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, nearest
from hydragnn.hpo.space.parameters import Choice, Choices, FloatRange, IntRange, Parameter

Point = dict[str, Any]
"""Values of the active parameters by configuration path."""

NUMBER = "run"  # the parameter that numbers given runs

ENUMERATED = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Parameters by configuration path, conditions before dependents."""

    parameters: dict[str, Parameter]

    def point(self, value_of: Callable[[str, Parameter], Any]) -> Point:
        """The point made by asking for every active parameter's value, in order."""
        values: Point = {}
        for path, parameter in self.parameters.items():
            if is_active(parameter, values):
                values[path] = value_of(path, parameter)
        return values


def space_of(parameters: Mapping[str, Parameter], source: str = "campaign") -> Space:
    """Return the space with its parameters in order; InputError for impossible conditions."""
    for path, parameter in parameters.items():
        for parent, condition in parameter.when.items():
            _check_condition(path, parent, condition, parameters, source)
    ordered: dict[str, Parameter] = {}
    while len(ordered) < len(parameters):
        ready = [path for path, p in parameters.items() if path not in ordered and all(w in ordered for w in p.when)]
        if not ready:
            rest = sorted(set(parameters) - set(ordered))
            raise InputError(f"{source}: search.space: the conditions of {', '.join(rest)} form a circle; remove one")
        ordered.update({path: parameters[path] for path in ready})
    return Space(parameters=ordered)


def is_active(parameter: Parameter, values: Point, *, unknown: bool = False) -> bool:
    """Return True where the conditions of a parameter hold.

    ``unknown``: whether one holds whose parameter has no value.

    >>> is_active(FloatRange(low=0, high=1, when={"model.kind": ["egnn"]}), {"model.kind": "schnet"})
    False
    """
    return all(
        any(is_equal(values[path], allowed) for allowed in allowed_values(condition)) if path in values else unknown
        for path, condition in parameter.when.items()
    )


def is_equal(value: Any, allowed: Any) -> bool:
    """Return True for equal values; numbers are compared with tolerance.

    >>> is_equal(0.1 + 2 * 0.1, 0.3)
    True
    """
    if isinstance(value, float) and isinstance(allowed, int | float):
        return math.isclose(value, allowed, rel_tol=1e-9, abs_tol=1e-12)
    return bool(value == allowed)


def allowed_values(condition: Any) -> list[Any]:
    """Return the values of a condition as a list."""
    return condition if isinstance(condition, list) else [condition]


def contains(parameter: Parameter, value: Any) -> bool:
    """Return True for a value in range and on the grid.

    >>> contains(IntRange(low=16, high=64, step=16), 40)
    False
    """
    if isinstance(parameter, Choices):
        return any(type(value) is type(choice) and value == choice for choice in parameter.choices)
    if isinstance(value, bool) or not isinstance(value, int | float) or not parameter.low <= value <= parameter.high:
        return False
    if isinstance(parameter, IntRange):
        return float(value).is_integer() and (int(value) - parameter.low) % parameter.step == 0
    if parameter.step is None:
        return True
    steps = (value - parameter.low) / parameter.step
    return abs(steps - round(steps)) < 1e-9


def is_point(space: Space, values: Point) -> bool:
    """Return True for values of exactly the active parameters."""
    active = {path for path, parameter in space.parameters.items() if is_active(parameter, values)}
    return active == set(values) and all(contains(space.parameters[path], value) for path, value in values.items())


def value_at(parameter: Parameter, fraction: float) -> Any:
    """Return the value at a fraction in [0, 1) of a range.

    >>> value_at(FloatRange(low=1e-4, high=1e-2, log=True), 0.5)
    0.001
    >>> [value_at(Choices(choices=["a", "b"]), fraction) for fraction in (0.0, 0.49, 0.5)]
    ['a', 'a', 'b']
    """
    if isinstance(parameter, Choices):
        return parameter.choices[int(fraction * len(parameter.choices))]
    low, high = float(parameter.low), float(parameter.high)
    if isinstance(parameter, FloatRange) and parameter.step is None:
        if parameter.log:
            return float(min(max(np.exp(np.log(low) + fraction * (np.log(high) - np.log(low))).round(15), low), high))
        return low + fraction * (high - low)
    if isinstance(parameter, IntRange) and parameter.log:
        edges = np.log(low - 0.5) + fraction * (np.log(high + 0.5) - np.log(low - 0.5))
        return int(min(max(np.rint(np.exp(edges)), low), high))
    step = parameter.step or 1
    steps = int(fraction * (int((high - low) / step + 1e-9) + 1))
    value = parameter.low + steps * step
    return int(value) if isinstance(parameter, IntRange) else float(value)


def random_point(space: Space, generator: np.random.Generator, fixed: Point | None = None) -> Point:
    """Return a point drawn at random, except for the ``fixed`` values."""
    fixed = fixed or {}

    def value_of(path: str, parameter: Parameter) -> Any:
        fraction = float(generator.random())  # drawn in any case, so that given values do not shift the others
        return fixed[path] if path in fixed else value_at(parameter, fraction)

    return space.point(value_of)


def fractions_of(parameter: FloatRange | IntRange, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the positions of values in a range, on its scale.

    >>> fractions_of(FloatRange(low=1e-4, high=1e-2, log=True), np.array([1e-3])).round(12).tolist()
    [0.5]
    """
    ends = np.array([parameter.low, parameter.high], dtype=np.float64)
    (low, high), positions = (np.log(ends), np.log(values)) if parameter.log else (ends, values)
    return np.asarray((positions - low) / (high - low) if high > low else np.full_like(positions, 0.5))


def near_point(space: Space, point: Point, distance: float, generator: np.random.Generator) -> Point:
    """Return a point with some values drawn anew, near the old.

    ``distance``: from 0, where one value moves a little, to 1, where most are drawn from everywhere.
    """
    moved = generator.choice(list(point))

    def value_of(path: str, parameter: Parameter) -> Any:
        draw, step, fraction = generator.random(), generator.normal(), float(generator.random())
        if path in point and path != moved and draw >= distance:
            return point[path]
        if path in point and not isinstance(parameter, Choices):
            old = float(fractions_of(parameter, np.array(point[path], dtype=np.float64)))
            fraction = min(max(old + (0.1 + distance) * step, 0.0), 1.0 - 1e-9)
        return value_at(parameter, fraction)

    return space.point(value_of)


def all_points(space: Space) -> list[Point] | None:
    """Return all points of a small discrete space, else None."""
    grids = [_grid(parameter) for parameter in space.parameters.values()]
    if any(grid is None for grid in grids) or np.prod([float(len(grid or [])) for grid in grids]) > ENUMERATED:
        return None

    def point_of(values: tuple[Any, ...]) -> Point:
        by_path = dict(zip(space.parameters, values))
        return space.point(lambda path, _: by_path[path])

    points = map(point_of, product(*(grid or [] for grid in grids)))
    return list({point_key(point): point for point in points}.values())


def point_key(values: Point) -> str:
    """Equal for equal points."""
    return json.dumps(values, sort_keys=True)


def _check_condition(path: str, parent: str, condition: Any, parameters: Mapping[str, Parameter], source: str) -> None:
    where = f'{source}: search.space."{path}".when'
    if parent not in parameters:
        raise InputError(f"{where}: {parent} is not in the space; {nearest(parent, list(parameters))}")
    for value in allowed_values(condition):
        if not contains(parameters[parent], value):
            raise InputError(f"{where}: {parent} never is {value!r}; correct the value or the parameter {parent}")


def check_conditions(space: Space, source: str) -> None:
    """Raise InputError for a ``when`` on a continuous range."""
    for path, parameter in space.parameters.items():
        for parent in parameter.when:
            of = space.parameters[parent]
            if isinstance(of, FloatRange) and of.step is None and of.low < of.high:
                raise InputError(
                    f'{source}: search.space."{path}".when never holds: {parent} is a continuous range, of which no single value is '
                    f"drawn; give {parent} a step or choices, or leave the when out"
                )


def ends_of(parameter: Parameter) -> list[Choice]:
    """Return all values of a choice, or the ends of a range."""
    if isinstance(parameter, Choices):
        return list(parameter.choices)
    return [parameter.low] if parameter.low == parameter.high else [parameter.low, parameter.high]


def _grid(parameter: Parameter) -> list[Any] | None:
    """Return all values of a discrete parameter, else None."""
    if isinstance(parameter, Choices):
        return list(parameter.choices)
    if isinstance(parameter, FloatRange) and parameter.low == parameter.high:
        return [parameter.low]
    if parameter.step is None:
        return None
    count = int((parameter.high - parameter.low) / parameter.step + 1e-9) + 1
    return None if count > ENUMERATED else [parameter.low + k * parameter.step for k in range(count)]
