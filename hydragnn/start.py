"""Model that a run begins with, and settings that it decides."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field as Setting

from hydragnn.architectures import ArchitectureSettings
from hydragnn.base.errors import InputError
from hydragnn.base.files import check_inside, digest, read_sealed
from hydragnn.base.places import at_home, model_folder
from hydragnn.base.settings import Settings
from hydragnn.graphs.field import Field
from hydragnn.models.description import ModelDescription
from hydragnn.models.saving import read_description, read_weights, weights_checksum

OF_LOSSES = (
    *("weight", "loss", "per_node", "class_weights", "references", "stage_two_factor"),
    *("forces", "forces_weight", "stress", "stress_weight"),
)
"""Settings of heads that do not change their network."""


class StartSettings(Settings):
    """Trained model that a run begins with."""

    model: Path
    """Folder of the run, ensemble or model that the weights come from; of an ensemble it is the member with the lowest validation loss, and
    another one by its own folder. Settings under [model] are those of this model, and need not be
    repeated; heads keep their weights where field, unit and kind are the same."""

    branch: str = ""
    """Branch of a model that was trained on several data sets."""

    freeze: int = Setting(default=0, ge=0)
    """Message-passing layers, counted from the inputs, that keep their weights, with the embedding of the inputs; 0: all are trained."""

    encoder_rate: float = Setting(default=1.0, gt=0, le=10)
    """Learning rate of the encoder over ``train.learning_rate``, which is that of the heads."""

    replay: float = Setting(default=0.0, ge=0, le=1)
    """Share of the start's training graphs that every epoch shows again, other ones each time; 0: none."""

    store: Path | None = None
    """Store with the start's data; absent: that of its configuration."""

    digest: str = ""
    """Hash of the start, filled in by the program; a run that goes on with another start is refused."""


def folder_of(start: StartSettings) -> Path:
    """Return the folder with ``model.json``; InputError where there is none."""
    if (start.model / "model.json").is_file():
        return start.model
    folder = model_folder(start.model)
    if not (folder / "ensemble.json").is_file():
        return folder / "model"
    members = read_sealed(folder / "ensemble.json")["members"]
    best = min(members, key=lambda one: one["summary"].get("best", {}).get("valid/loss", float("inf")))
    check_inside(folder / best["folder"] / "model.json", folder)
    return folder / str(best["folder"])


def with_digest(start: StartSettings) -> StartSettings:
    """Return a start with its hash; InputError where it had another one."""
    folder = folder_of(start)
    weights = weights_checksum(read_weights(folder / "weights.safetensors"))
    now = digest([read_sealed(folder / "model.json"), weights])
    if start.digest not in ("", now):
        raise InputError(f"{start.model} is not the start that this run began with; restore it, or begin a new run")
    return start.model_copy(update={"digest": now})


def with_start(table: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return a configuration with the settings of its start.

    Paths count from ``path``'s folder. InputError where the table contradicts it. A table that has its digest is returned as it is.
    """
    section = table.get("start")
    if not isinstance(section, Mapping) or section.get("digest") or "branches" in table:
        return table
    start = StartSettings.parse(dict(section), f"{path}: start")
    places = {
        name: (path.parent / at_home(place)).resolve() for name in ("model", "store") if (place := getattr(start, name))
    }
    start = with_digest(start.model_copy(update=places))
    old, _ = read_description(folder_of(start), start.branch)
    model, data, heads = table.get("model", {}), table.get("data"), table.get("heads")
    if isinstance(model, Mapping):
        if model.get("kind", old.model.kind) == old.model.kind:
            model = {"kind": old.model.kind, **changed_settings(old.model), **model}
        check_settings(old.model, ArchitectureSettings.class_for(model).parse(model, f"{path}: model"), start)
    if isinstance(data, Mapping):
        data = {"inputs": [*old.inputs], "edges": old.edges, **data}
    if isinstance(heads, list):
        heads = [{**_of_start(old, head), **head} if isinstance(head, Mapping) else head for head in heads]
    decided = {"start": start.to_json(), "model": model, "data": data, "heads": heads}
    return {**table, **{key: value for key, value in decided.items() if value is not None}}


def check_settings(old: ArchitectureSettings, new: ArchitectureSettings, start: StartSettings) -> None:
    """Raise InputError where an architecture is not that of the start."""
    theirs, ours = old.to_json(), new.to_json()
    for key in ("kind", *sorted(ours.keys() - {*new.own_of_run})):
        if theirs.get(key) != ours[key]:
            problem = f"model.{key} = {ours[key]!r}, and the start {start.model} has {theirs.get(key)!r}"
            raise InputError(f"{problem}; leave model.{key} out")


def _of_start(old: ModelDescription, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the network settings of the start's head of this kind."""
    alike = [head for head in old.heads if (head.kind, head.field) == (own.get("kind"), own.get("field"))]
    settings = changed_settings(alike[0]) if alike else {}
    return {key: value for key, value in settings.items() if key not in OF_LOSSES or key == "loss"}


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not their defaults, as JSON."""
    fields = type(settings).model_fields
    defaults = {key: one.get_default(call_default_factory=True) for key, one in fields.items() if not one.is_required()}
    return {
        key: value
        for key, value in settings.to_json().items()
        if key not in defaults or getattr(settings, key) != defaults[key]
    }


def kept_heads(old: ModelDescription, new: ModelDescription) -> tuple[dict[int, int], dict[str, str]]:
    """Return the start's heads of retained heads, and words by field."""
    retained, words, places = {}, {}, {head.field: number for number, head in enumerate(old.heads)}
    for number, head in enumerate(new.heads):
        reason = "the start has none"
        if head.field in places:
            theirs, ours = old.heads[places[head.field]].to_json(), head.to_json()
            keys = ["kind"] if theirs["kind"] != ours["kind"] else sorted(ours.keys() - {*OF_LOSSES})
            other = (f"its {key} is {theirs.get(key)!r} in the start" for key in keys if theirs.get(key) != ours[key])
            reason = next(other, "") or difference(old.fields[head.field], new.fields[head.field])
        words[head.field] = f"new: {reason}" if reason else "kept"
        if not reason:
            retained[number] = places[head.field]
    return retained, words


def difference(old: Field, new: Field) -> str:
    """Return the first difference of two fields; empty without any."""
    keys = ("on", "shape", "unit", "parity", "classes")
    differing = (key for key in keys if getattr(old, key) != getattr(new, key))
    return next((f"its {key} is {getattr(old, key)!r} in the start" for key in differing), "")
