"""Meanings of configuration keys, from the docstrings below them."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.settings import Settings, settings_in

EVERY_KIND = "[model], every kind"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySection:
    """Keys of one section of a configuration."""

    title: str
    path: str
    """Words before a key, such as ``train``; empty for the keys of BUILD.toml."""
    settings: type[Settings]
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """Facts about a key of a configuration."""

    key: str
    type: str
    default: str
    range: str
    unit: str
    meaning: str
    sections: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the meaning below a line of facts."""
        default = f"default {self.default}" if self.default != "required" else "required"
        words = ", ".join(filter(None, (self.type, default, self.range, self.unit))).replace("`", "")
        return f"{self.key} ({words}) in {', '.join(self.sections)}\n  {self.meaning}"


def sections() -> Iterator[KeySection]:
    """Yield the sections of all configurations, in the order of the reference."""
    from hydragnn.architectures import architecture_of, architectures
    from hydragnn.config import BranchSettings, RunConfig
    from hydragnn.datasets.sources.registry import sources
    from hydragnn.hpo import SearchSettings
    from hydragnn.hpo.job import JobSettings
    from hydragnn.hpo.simulation.assumptions import Assumptions
    from hydragnn.models.heads.base import head_kinds

    def section(title: str, path: str, settings: type[Settings], leave_out: frozenset[str] = frozenset()) -> KeySection:
        names = tuple(name for name in settings.model_fields if name not in leave_out)
        return KeySection(title=title, path=path, settings=settings, names=names)

    for name, field in RunConfig.model_fields.items():
        if name not in ("model", "heads"):
            yield section(f"[{name}]", name, settings_in(field.annotation)[0])
    kinds = {kind: architecture_of(kind).Settings for kind in architectures()}
    shared = frozenset.intersection(*(frozenset(settings.model_fields) for settings in kinds.values()))
    first = next(iter(kinds.values()))
    yield section(EVERY_KIND, "model", first, frozenset(first.model_fields) - shared | {"kind"})
    for kind, settings in kinds.items():
        yield section(f'[model] kind = "{kind}"', "model", settings, shared)
    for name, field in first.model_fields.items():
        for nested in settings_in(field.annotation):
            yield section(f"[model.{name}]", f"model.{name}", nested)
    for kind, head in sorted(head_kinds().items()):
        yield section(f'[[heads]] kind = "{kind}"', "heads", head)
    yield section("[[branches]]", "branches", BranchSettings, frozenset({"data", "split", "heads"}))
    yield section("[search]", "search", SearchSettings)
    for goal in settings_in(SearchSettings.model_fields["objective"].annotation):
        yield section("search.objective, each of several", "search.objective", goal)
    for parameter in settings_in(SearchSettings.model_fields["space"].annotation):
        title = f'[search.space."KEY"] type = "{parameter.model_fields["type"].default}"'
        yield section(title, "search.space", parameter, frozenset({"type"}))
    yield section("[job]", "job", JobSettings)
    tables: dict[tuple[str, type[Settings]], None] = {}
    for kind, build in sources().items():
        yield section(f'BUILD.toml, kind = "{kind}"', "", build)
        for name, field in build.model_fields.items():
            tables |= dict.fromkeys((name, one) for one in settings_in(field.annotation))
    for name, nested in tables:
        yield section(f"BUILD.toml, {name}", name, nested)
    yield section("Assumptions of hydragnn simulate", "assume", Assumptions)


UNITS = (
    (re.compile(r"(^|_)seconds$"), "s"),
    (re.compile(r"(^|_)minutes$"), "min"),
    (re.compile(r"(^|_)hours$"), "h"),
    (re.compile(r"(^|_)epochs$"), "epochs"),
)
"""Units by the end of a key."""
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "max_length": "length <="}


def keys_of(section: KeySection) -> Iterator[Key]:
    """Yield the keys of a section."""
    meanings, types = meanings_of(section.settings), get_type_hints(section.settings)  # without Annotated
    for name in section.names:
        field, meaning = section.settings.model_fields[name], meanings.get(name, "")
        bounds = [(sign, getattr(item, key, None)) for item in field.metadata for key, sign in SIGNS.items()]
        units = [unit for pattern, unit in UNITS if pattern.search(name)]
        units += [unit for unit in ("Angstrom", "GB", "degrees") if re.search(rf"\b{unit}\b", meaning)]
        units += ["length of the store"] if name in ("cutoff", "side") else []
        yield Key(
            key=name,
            type=_type_text(types[name]),
            default=_default_text(field),
            range=", ".join(f"{sign} {'2^63' if one == 2**63 else one}" for sign, one in bounds if one is not None),
            unit=units[0] if units and field.annotation is not bool else "",
            meaning=meaning,
            sections=(section.title,),
        )


OTHER_NAMES = {"model.start": "start", "simulate": "assume", "split.group": "split.kind"}
"""Sections and keys by where one may look for them."""


def explained(key: str) -> list[Key]:
    """Return the keys of a name, or all of a section.

    A name is ``train.epochs``, ``epochs`` or ``train``.

    InputError for a name that is none.
    """
    words = ".".join(word for word in key.strip("[] ").split(".") if not word.isdigit())
    words = re.sub(r"^branches\.(?=(data|split|heads)\b)", "", words)
    words = OTHER_NAMES.get(words, words)
    if words == "model.kind":
        from hydragnn.architectures import architectures  # no section has this key

        meaning = "Architecture of the model; a class of your own is named package.module:Name."
        facts = {"type": ", ".join(architectures()), "default": "required", "range": "", "unit": ""}
        return [Key(key=words, sections=("[model]",), meaning=meaning, **facts)]
    explained_keys: dict[Key, list[str]] = {}
    names: dict[str, None] = {}
    for section in sections():
        whole = section.path == words and words != ""
        for one in keys_of(section):
            path = f"{section.path}.{one.key}".lstrip(".")
            names |= {path: None, one.key: None}
            if whole or words in (path, one.key):
                table = {**asdict(one), "key": path, "sections": ()}
                explained_keys.setdefault(Key(**table), []).append(section.title)
    if not explained_keys:
        hint, paths = nearest(words, [*names]), dict.fromkeys(one.path for one in sections() if one.path)
        if not hint.startswith("did"):
            hint = f"name a section for its keys: {', '.join(paths)}"
        raise InputError(f"no configuration has a key {key!r:.60}; {hint}")
    return [Key(**{**asdict(one), "sections": tuple(titles)}) for one, titles in explained_keys.items()]


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the definitions of the classes of a module by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {one.name: one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)}


@cache
def meanings_of(settings: type[Settings]) -> dict[str, str]:
    """Return the text of every key."""
    meanings: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if not issubclass(base, Settings):
            continue
        for one, text in pairwise(_classes(base.__module__)[base.__name__].body):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Expr):
                meanings[one.target.id] = str(ast.literal_eval(text.value))
    described = {name: field.description for name, field in settings.model_fields.items() if field.description}
    texts = meanings | described
    return {name: " ".join(texts[name].split()) for name in texts if name in settings.model_fields}


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value!r}`".replace("'", '"') for value in get_args(annotation))
    text = annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    is_simple = not field.default_factory_takes_validated_data
    value = field.get_default(call_default_factory=True) if is_simple else field.get_default()
    if isinstance(value, Settings):
        return "the section's defaults"
    return "none" if value is None else f"`{json.dumps(value, default=str)}`"
