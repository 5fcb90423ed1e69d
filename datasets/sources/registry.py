"""Kinds of data sources: built in, announced by packages, or named."""

import pkgutil
from collections.abc import Callable, Collection, Mapping
from functools import cache
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import REFERENCE, announced_classes, class_named, classes_of, function_named, is_allowed
from hydragnn.base.places import at_home
from hydragnn.base.settings import refuse_idle
from hydragnn.datasets.sources.base import BuildSettings, OwnBuild

GROUP = "hydragnn.sources"  # entry-point group in which packages announce sources; the name of an entry is its kind
_NOT_SOURCES = ("base", "fields", "labels", "registry", "atoms_text", "climate_axes", "map_settings")
FORMER = {"grains": "tables"}  # kinds under an earlier name


def sources() -> Mapping[str, type[BuildSettings]]:
    """Return the sources of this folder by kind."""
    return {name: _defined_in(name) for name in _names() if name not in FORMER}


@cache
def _names() -> list[str]:
    import hydragnn.datasets.sources as room

    names = [one.name for one in pkgutil.iter_modules(room.__path__) if not one.name.endswith("_files")]
    return sorted({*FORMER, *names} - {*_NOT_SOURCES})


@cache
def _defined_in(name: str) -> type[BuildSettings]:
    """Return a file's source; TypeError unless kind and file agree."""
    name = FORMER.get(name, name)
    module = import_module(f"hydragnn.datasets.sources.{name}")
    classes = classes_of(module, BuildSettings)
    if len(classes) != 1 or classes[0].model_fields["kind"].default != name:
        raise TypeError(f"{module.__name__} defines {classes}; a file here defines one source, of kind {name}")
    return classes[0]


def source_named(kind: Any, origin: str) -> type[BuildSettings]:
    """Return the source of a kind; InputError where there is none."""
    if kind in _names():
        return _defined_in(kind)
    announced = announced_classes(GROUP)
    if isinstance(kind, str) and (":" in kind or kind in announced):
        reference = announced.get(kind, kind)
        return class_named(
            reference,
            OwnBuild,
            where=f"{origin}: kind = {kind!r}",
            noun="source",
            parent="hydragnn.datasets.OwnBuild",
            registered=reference in announced.values(),
        )
    kinds = [*_names(), *announced]
    hint = nearest(str(kind), kinds) if kind else f"add one of {', '.join(kinds)}"
    raise InputError(f"{origin}: {f'kind = {kind!r} is no kind of source' if kind else 'no key kind'}; {hint}")


def read_build_settings(table: dict[str, Any], origin: Path) -> BuildSettings:
    """Return the source of a BUILD.toml; paths count from its folder."""
    settings = source_named(table.get("kind"), str(origin)).parse(table, source=str(origin))
    refuse_idle(settings, str(origin))
    settings.check_fields(str(origin))
    transform_function(settings.transform)
    folder = origin.parent
    paths: dict[str, Any] = {"files": [str(Path(escape(str(folder))) / at_home(file)) for file in settings.files]}
    for key in settings.beside:
        value = getattr(settings, key, None)
        if value is not None:
            paths[key] = str(folder / at_home(value))
    return settings.model_copy(update=paths)


def rule_of(settings: BuildSettings) -> dict[str, Any]:
    """Return the rule that a store keeps; empty where files need others."""
    if not settings.one_file():
        return {}
    others = {"files", "attributes", "node_split", *settings.beside}
    rule = settings.model_dump(mode="json", exclude=others, exclude_defaults=True)
    return {**dict.fromkeys(settings.former), **rule, "kind": settings.kind}


def transform_function(reference: str | None) -> Callable[..., Any] | None:
    """Return a user's transform; InputError where it is none or forbidden."""
    where = f"transform = {reference!r}"
    if reference and not REFERENCE.fullmatch(reference):
        raise InputError(f"{where} names no function; write package.module:name")
    return function_named(reference, where=where, noun="graph for a graph") if reference else None


def settings_of_rule(rule: Any, file: Path, source: str) -> BuildSettings:
    """Return the source that makes graphs of ``file`` by a store's rule.

    ``source`` says where the rule was found. InputError where the rule is damaged or names a class that no file may: it
    may come from a stranger.
    """
    kind = rule.get("kind") if isinstance(rule, dict) else None
    module = kind.partition(":")[0] if isinstance(kind, str) and ":" in kind else ""
    announced = announced_classes(GROUP)
    permitted = kind in [*announced, *announced.values()] or (kind in _names() and _defined_in(str(kind)).one_file())
    if not permitted and not (module and is_allowed(module)):
        trust = f", or --allow-code {module}" if module else ""
        raise InputError(f"{source} has graphs made by {kind!r}, no source of this package; give a BUILD.toml{trust}")
    settings_class = source_named(kind, source)
    values = {key: value for key, value in rule.items() if key not in (*settings_class.beside, "attributes")}
    own = {**settings_class.former, **values}
    if isinstance(own.get("fields"), list):  # a rule names every dtype but float32, whatever is the default today
        own["fields"] = [{"dtype": "float32", **one} if isinstance(one, dict) else one for one in own["fields"]]
    settings = settings_class.parse({**own, "files": ["new"]}, source)
    return settings.model_copy(update={"files": [str(file)]})


def for_prediction(settings: BuildSettings, inputs: Collection[str]) -> BuildSettings:
    """Return the settings for ``inputs`` alone: no labels, no tables of labels.

    A transform may read all that is declared, so that it all stays, and files may lack what members do not read.
    """
    if transform_function(settings.transform):
        kept = [one if one.name in inputs else one.model_copy(update={"optional": True}) for one in settings.fields]
        return settings.model_copy(update={"fields": kept, "node_split": None})
    fields = [field for field in settings.fields if field.name in inputs]
    known = type(settings).model_fields
    needless = () if any(field.on == "graph" for field in fields) else (*settings.beside, "log")
    absent = {key: None for key in needless if key in known and not known[key].is_required()}
    return settings.model_copy(update={"fields": fields, "name_key": None, "texts": [], "node_split": None, **absent})
