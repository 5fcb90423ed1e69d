"""Typed settings read from TOML; an unknown key names the nearest."""

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import pydantic

from hydragnn.base.errors import InputError, nearest, words_of
from hydragnn.base.files import kind_of_folder, parsed_file
from hydragnn.base.imports import REFERENCE, allow_named

T = TypeVar("T", bound="Settings")

Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, pydantic.Field(ge=0)]
Fraction = Annotated[float, pydantic.Field(gt=0, lt=1)]
"""Between 0 and 1, and neither."""
LARGEST, DEEPEST = 10**7, 100
"""Bytes of a TOML file, and levels of an assignment; what is larger is something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActsWith:
    """Condition under which a setting has an effect; otherwise it is refused."""

    words: str
    """The condition, after "acts only"."""
    remedy: str
    """Remedy that makes it hold, as an imperative."""
    holds: Callable[[Any], bool]
    """Return True where it does, for the settings that declare it."""

    def sentence(self, path: str) -> str:
        """Why the setting at ``path`` is refused."""
        return f"{path} acts only {self.words}; {self.remedy}, or leave {path.rpartition('.')[2]} out"


class Settings(pydantic.BaseModel):
    """Base of configuration models: frozen, without unknown keys.

    The docstring below a key is its text in the reference; fields have no ``description``, since parsing sources slows every start.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    acts_with: ClassVar[Mapping[str, ActsWith]] = {}
    """Settings that act only under a condition, besides those of base classes; ``train.stage_two`` is one of the section ``train``."""
    removed: ClassVar[Mapping[str, Any]] = {}
    """Keys of earlier versions, with the one value that is left out; ... for any. ``REMOVED`` refuses them in users' tables."""
    seldom: ClassVar[frozenset[str]] = frozenset()
    """Sections and keys that ``to_json`` leaves out where they are absent or the default."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_removed(cls, value: Any) -> Any:
        """Leave removed keys out; an error where one decided something."""
        if not cls.removed or not isinstance(value, dict):
            return value
        for key, only in cls.removed.items():
            if only is not ... and value.get(key, only) != only:
                raise ValueError(f"{key} = {value[key]!r} was of version 0.2.0, and is gone; use that version")
        return {key: item for key, item in value.items() if key not in cls.removed}

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _meant(cls, value: Any, info: Any) -> Any:
        """Refuse true for numbers, numbers over 64 bits, and NUL."""
        if isinstance(value, bool) and not _takes(cls.model_fields[info.field_name].annotation, bool):
            raise ValueError("Input should not be true or false")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ValueError("Input should be a number of less than 64 bits")
            if isinstance(item, str) and "\0" in item:
                raise ValueError("Input should have no NUL character")
        return value

    @classmethod
    def parse(cls: type[T], value: Any, source: str = "configuration") -> T:
        """Return the settings in parsed TOML or JSON; InputError otherwise."""
        try:
            return cls.model_validate(value)
        except pydantic.ValidationError as error:
            raise InputError(f"{source}: {_sentence(cls, error, value)}") from error
        except Exception as error:  # of a check in a user's class
            raise InputError(f"{source}: a check in a class of it failed: {words_of(error)}; repair it") from error

    @classmethod
    def class_for(cls, value: Any) -> "type[Settings]":
        """Return the class that a table is parsed with."""
        return cls

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without absent ``seldom`` sections; ``parse`` gives the object back."""
        table = self.model_dump(mode="json")
        return {key: value for key, value in table.items() if value is not None or key not in self.seldom}


def by_kind(base: type[T], class_of: Callable[[Mapping[str, Any]], type[T]]) -> pydantic.WrapValidator:
    """Return the parser of tables by the class of their kind."""

    def parse(value: Any, handler: Callable[[Any], T], info: Any) -> T:
        if isinstance(value, base) or not isinstance(value, Mapping):
            return handler(value)
        try:
            cls = class_of(value)
        except InputError as error:
            raise ValueError(str(error)) from error
        return cls.model_validate(dict(value), context=info.context)

    return pydantic.WrapValidator(parse)


def idle_settings(settings: Settings) -> dict[str, str]:
    """Return the refusals of given settings that have no effect, by path."""
    return {} if is_complete(settings) else dict(_idle(settings, ""))


def refuse_idle(settings: Settings, source: str) -> None:
    """InputError for the first setting that was given and cannot act."""
    for sentence in idle_settings(settings).values():
        raise InputError(f"{source}: {sentence}")


def _idle(settings: Settings, prefix: str) -> Iterator[tuple[str, str]]:
    for kind in reversed(type(settings).__mro__):
        for key, condition in vars(kind).get("acts_with", {}).items():
            if is_given(settings, key) and not condition.holds(settings):
                yield prefix + key, condition.sentence(prefix + key)
    for name, value in settings:
        for key, part in enumerate(value) if isinstance(value, list) else [("", value)]:
            if isinstance(part, Settings):
                yield from _idle(part, f"{prefix}{name}.{key}." if isinstance(value, list) else f"{prefix}{name}.")


def is_given(settings: Settings, path: str) -> bool:
    """Return True where the user set the value at a path."""
    section, _, rest = path.partition(".")
    is_set = section in settings.model_fields_set
    return is_set and is_given(getattr(settings, section), rest) if rest else is_set


def is_complete(settings: Settings) -> bool:
    """Return True where every key is set, as only programs do."""
    parts = [part for _, value in settings for part in (value if isinstance(value, list) else [value])]
    whole = settings.model_fields_set >= type(settings).model_fields.keys() - settings.seldom
    return whole and all(is_complete(part) for part in parts if isinstance(part, Settings))


def _takes(annotation: Any, kind: type) -> bool:
    return annotation in (kind, Any) or any(_takes(part, kind) for part in get_args(annotation))


def first_problem(error: pydantic.ValidationError) -> str:
    """Return location and message of a validation error's first problem."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file or pipe of the user.

    It may name code. InputError as of ``parsed_file``.
    """
    if path.is_dir():
        raise InputError(f"{path} is {kind_of_folder(path) or 'a folder'}; give a TOML file")
    table = parsed_file(path, tomllib.loads, "TOML", LARGEST, pipes=True)
    allow_named(table)
    return table


def store_override(store: Path | str | None) -> list[str]:
    """Return the assignment that sets the store, if any."""
    return [] if store is None else [f"data.store={json.dumps(str(Path(store).resolve()))}"]


def with_overrides(
    table: dict[str, Any],
    assignments: Sequence[str],
    *,
    option: str = "--set",
    example: str = "model.hidden_dim=128",
    own: bool = True,
) -> dict[str, Any]:
    """Return a copy of a table with ``a.b=value`` assignments applied.

    Values are TOML; bare words are strings.
    Assignments are the user's own, so that they may name code; so may a table that is the user's ``own``. ``option`` and ``example`` are named where one is no assignment.

    >>> with_overrides({"model": {"kind": "schnet"}}, ["model.hidden_dim=128", "model.kind=painn"])
    {'model': {'kind': 'painn', 'hidden_dim': 128}}
    """
    result = plain_table(table)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path.strip():
            raise InputError(f"{option} {assignment}: expected key=value, for example {example}")
        value: Any = text.strip()
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:  # a bare word
            pass
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, nested without end
            raise InputError(f"the value {value[:60]}... is not valid TOML: {error}") from error
        allow_named(value)
        with_value(result, path.strip(), value)
    if own:
        for path, remedy in REMOVED.items():
            section, _, key = path.partition(".")
            tables = result.get(section)
            if any(isinstance(one, dict) and key in one for one in (tables if isinstance(tables, list) else [tables])):
                raise InputError(f"{path} is gone: {remedy}; remove the key")
        allow_named(result)
    return result


REMOVED: Mapping[str, str] = {
    "train.compile": "plain steps are as fast; for dynamics, hydragnn export --to aoti makes a compiled potential",
    "train.tensorboard": 'callbacks = [{ kind = "tensorboard" }] writes its files',
    "batch.budget": "batch.max_graphs and others say how large a batch is; with batch.memory it is computed in parts that fit",
    "search.together": "trials no longer share a process; trials_per_device = N lets N trials share a GPU, each in its own",
    "model.schedule": "every layer reads all edges; layers that reach far pool ([model.pooling])",
    "model.level": "it named the levels of a schedule, which is gone, too",
    "coarsening.by": "contraction makes all levels; hydragnn.graphs.with_clusters is for levels of your own",
    "coarsening.side": "it was that of voxels; levels are made by contraction",
    **dict.fromkeys(
        (
            *("model.residual", "model.movement", "model.epsilon", "model.directions", "model.tanh_networks"),
            *("model.edge_network", "model.messages", "model.angle", "model.output_layers", "model.wide_heads"),
            *("model.own_edge", "model.node_filters"),
        ),
        "it was a form of the public HydraGNN, whose models hydragnn import brings as they are",
    ),
    "model.moving_coordinates": "errors were the same with nodes at rest, in less time",
    "heads.graph_scale": 'a head predicts sizes itself; loss = "relative" counts all graphs alike',
    "heads.stress_per_node": "errors of a stress are those of virials per atom, so that they teach something",
}
"""Keys of earlier versions, each with what to use instead."""


def plain_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a table in plain JSON; InputError otherwise.

    >>> plain_table({"data": {"store": Path("a.h5")}, "heads": ({"field": "energy"},)})
    {'data': {'store': 'a.h5'}, 'heads': [{'field': 'energy'}]}
    """

    def plain(value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if hasattr(value, "tolist"):  # of numpy or torch
            return value.tolist()
        if isinstance(value, Settings):
            return value.to_json()
        if callable(value) and hasattr(value, "__qualname__"):
            reference = f"{value.__module__}:{value.__qualname__}"
            if REFERENCE.fullmatch(reference) and value.__module__ != "__main__":
                return reference
            problem = f"the configuration holds {value!r:.80}, which other processes cannot import"
            raise InputError(f"{problem}; put it into a module, and import it from there")
        problem = f"the configuration holds {value!r:.80}, a {type(value).__name__}"
        raise InputError(f"{problem}; give numbers, texts, paths, lists and tables")

    try:
        result: dict[str, Any] = json.loads(json.dumps(table, default=plain))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the configuration is no table of plain values ({error}); name its keys by texts") from error
    return result


def with_value(table: dict[str, Any], path: str, value: Any) -> None:
    """Set a path (dots, list positions as numbers) in a table.

    >>> table = {"heads": [{"weight": 1.0}]}
    >>> with_value(table, "heads.0.weight", 5.0); table
    {'heads': [{'weight': 5.0}]}
    """
    *parents, last = path.split(".")
    if len(parents) > DEEPEST:
        raise InputError(f"{path[:60]}...: {len(parents)} levels are more than any configuration has; check the path")
    place: Any = table
    for key in parents:
        if isinstance(place, list):
            place = _item(place, key, path)
        else:
            place = place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise InputError(f"{path}: {key} is a value, not a section; check the path")
    if isinstance(place, list):
        _item(place, last, path)
        place[int(last)] = value
    else:
        place[last] = value


def _item(items: list[Any], key: str, path: str) -> Any:
    if not key.isdigit() or int(key) >= len(items):
        raise InputError(f"{path}: {key} is not a position in a list of {len(items)}; use 0 to {len(items) - 1}")
    return items[int(key)]


_WORDS = dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "Input should be a table of keys")
_WORDS |= {"path_type": "Input should be a path"}


def _sentence(cls: type[Settings], error: pydantic.ValidationError, value: Any) -> str:
    """The first problem of a validation error as one sentence."""
    # an unknown key comes first: a misspelled key is also a missing one, and the spelling is the better hint
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    first, location = problems[0], problems[0]["loc"]
    paths = [".".join(str(part) for part in _without_tags(cls, problem["loc"], value)) for problem in problems]
    path = paths[0]
    if first["type"] == "extra_forbidden":
        return f"unknown key {path}; {_meant_key(cls, location, value)}"
    if first["type"] == "missing":
        key = str(location[-1])  # of an own class, no key that is known here
        return f"missing key {path if path.split('.')[-1] == key else f'{path}.{key}'}; add it"
    # several problems of one value are the alternatives of a union
    some = [problem for problem, other in zip(problems, paths) if other == path]
    messages = [_WORDS.get(one["type"], one["msg"].removeprefix("Value error, ")) for one in some]
    message = ", or ".join([messages[0], *(one.removeprefix("Input should be ") for one in messages[1:])])
    more = len({other for other in paths if other != path and not other.startswith(f"{path}.")})
    value_given = "" if first["type"] == "value_error" else f" (given: {first['input']!r:.80})"
    return f"{path + ': ' if path else ''}{message}{value_given}" + (f"; and {more} more problem(s)" if more else "")


def _meant_key(cls: type[Settings], location: tuple[int | str, ...], value: Any) -> str:
    """Return the remedy for an unknown key; other sections may have it."""
    key, valid = str(location[-1]), _keys_at(cls, location[:-1], value)
    if not valid:
        return "remove it"
    others = [section for section in _keys_at(cls, (), value) if section != location[0]]
    tables = [section for section in others if not isinstance(_inside(value, section), list)]
    paths = [f"{section}.{key}" for section in tables if key in _keys_at(cls, (section,), value)]
    return f"did you mean {' or '.join(paths)}?" if paths and len(location) > 1 else nearest(key, valid)


def _without_tags(cls: type[Settings], location: tuple[int | str, ...], value: Any) -> list[int | str]:
    """Return a location without tags that pydantic inserts for unions."""
    keys: list[int | str] = []
    inside = value
    for position, part in enumerate(location):
        is_given = isinstance(inside, dict) and part in inside
        if isinstance(part, int) or is_given or part in _keys_at(cls, location[:position], value):
            keys.append(part)
        inside = _inside(inside, part)
    return keys


def _keys_at(cls: Any, location: tuple[int | str, ...], value: Any) -> list[str]:
    """Return the valid keys of the settings at a location."""
    candidates: list[Any] = [cls]
    for part in location:
        following: list[Any] = []
        value = _inside(value, part)
        for candidate in candidates:
            if isinstance(part, str) and part in getattr(candidate, "model_fields", {}):
                classes = settings_in(candidate.model_fields[part].annotation)
                following += [settings.class_for(value) for settings in classes]
            elif isinstance(part, str) and (
                (kind := getattr(candidate, "model_fields", {}).get("kind")) is None or kind.default in (part, None)
            ):
                following.append(candidate)  # pydantic inserts tags and classes of a union into the location
            elif isinstance(part, int):
                following.append(candidate.class_for(value) if hasattr(candidate, "class_for") else candidate)
        candidates = following
    return sorted({key for candidate in candidates for key in candidate.model_fields})


def _inside(value: Any, part: int | str) -> Any:
    """Return the value at a key or position; itself at a tag."""
    if isinstance(value, dict) and part in value:
        return value[part]
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return value


def settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes that occur in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [cls for argument in get_args(annotation) for cls in settings_in(argument)]


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return all plain values of a nested table by dotted path.

    >>> leaves({"heads": [{"weight": 1.0}], "seed": 0})
    [('heads.0.weight', 1.0), ('seed', 0)]
    """
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in leaves(item, f"{path}.{number}")]
    return [(path, value)]
