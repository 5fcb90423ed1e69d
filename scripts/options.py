"""Options that commands share, and functions of the Python api as commands."""

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from hydragnn.base.allocator import HIDING, keep_memory
from hydragnn.base.environment import change_environment, environment
from hydragnn.base.errors import InputError
from hydragnn.base.machine import Workers, visible_gpus
from hydragnn.base.places import at_home

Values = dict[str, Any]
"""Arguments of a function of the api, by name."""


def workers_of(text: str | int) -> Workers:
    """Return the value of ``--workers``: a number from 1, or ``auto``."""
    number = int(text) if str(text).isdigit() else 0
    if text != "auto" and not number:
        raise typer.BadParameter(f"{text!r} is neither a number from 1 nor auto")
    return number or "auto"


def workers_option(text: str) -> Any:
    """Return the option ``--workers``."""
    return typer.Option(parser=workers_of, metavar="N|auto", help=text)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Overrides = Annotated[
    Sequence[str],
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a configuration value, e.g. `model.hidden_dim=128`."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what an interrupted command left in --out.")]
Branch = Annotated[
    str, typer.Option("--branch", metavar="NAME", help="Which branch, where runs have several data sets.")
]
Store = Annotated[
    Path | str | None,
    Path | None,
    typer.Option("--store", help="Where the store lies now, if it or the runs were moved; their files remember it."),
]
AllowCode = Annotated[
    Sequence[str],
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="Let the files of a folder name classes of this module, which runs its code; repeatable.",
    ),
]
Out = Annotated[
    Path | str, Path, typer.Option("--out", help="Where the result goes; must not exist yet, unless resuming.")
]
NewOut = Annotated[Path | str, Path, typer.Option("--out", help="Where the result goes; must not exist yet.")]


def command(
    app: typer.Typer,
    function: Callable[..., Any],
    name: str,
    run: Callable[..., None] | None = None,
    *,
    required: Sequence[str] = (),
    device: bool = False,
) -> None:
    """Register a function as a command.

    Annotated arguments are those of the command: the second item of an annotation is the type on the command line, if it is
    another one, and the last the option. An argument that is a dataclass becomes options by its fields. ``required`` ones have
    no default there. ``run`` calls the function and shows the result; without it the result is shown as it is. Keywords of
    ``run`` are further options.
    """
    own = inspect.signature(inspect.unwrap(function)).parameters
    objects: dict[str, Any] = {key: one.annotation for key, one in own.items() if is_dataclass(one.annotation)}
    arguments: dict[str, inspect.Parameter] = {}
    for key, one in own.items():
        if key in objects:
            parts = inspect.signature(one.annotation).parameters
            arguments |= {name: _option(part, False) for name, part in parts.items()}
        elif get_origin(one.annotation) is Annotated:
            arguments[key] = _option(one, key in required)
    further = [one for one in inspect.signature(run).parameters.values() if one.kind is one.KEYWORD_ONLY] if run else []
    form = inspect.Parameter.KEYWORD_ONLY
    end = [inspect.Parameter("device", form, default="", annotation=Device)] * device
    end += [inspect.Parameter("as_json", form, default=False, annotation=AsJson)]

    def callback(**values: Any) -> None:
        values = {key: _at_home(value) for key, value in values.items()}
        as_json = values.pop("as_json")
        more = {one.name: values.pop(one.name) for one in further}
        values.pop("device", None)
        values |= {key: () for key, value in values.items() if value is None and key in own and own[key].default == ()}
        for key, kind in objects.items():
            values[key] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        values |= {"quiet": as_json} if "quiet" in own else {}
        if run is None:
            from hydragnn.scripts.showing import show

            show(function(**values), as_json)
        else:
            run(values, as_json, **more)

    callback.__signature__ = inspect.Signature([*arguments.values(), *further, *end])  # type: ignore[attr-defined]
    text = inspect.getdoc(run or function) or inspect.getdoc(function) or ""
    app.command(name, help=text.replace("``", "`"))(callback)


def _at_home(value: Any) -> Any:
    """Return an option with ``~`` replaced, which shells leave in ``--out=~/run``."""
    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    return at_home(value) if isinstance(value, Path) else value


def _option(parameter: inspect.Parameter, required: bool) -> inspect.Parameter:
    """Return an argument of a function as one of a command."""
    kind, *others, option = get_args(parameter.annotation)
    default = inspect.Parameter.empty if required else None if parameter.default == () else parameter.default
    annotation = Annotated[others[0] if others else kind, option]
    return inspect.Parameter(parameter.name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def use_device(text: str) -> str:
    """Show this process and its children one device; InputError without it.

    Nothing has asked for GPUs before, so that the libraries read the environment as it is set here.
    """
    if not re.fullmatch(r"|cpu|cuda|cuda:\d{1,4}", text):
        raise InputError(f"--device {text} is no device; use cpu, cuda or cuda:1, the second GPU")
    if text == "cpu":
        change_environment({name: "-1" for name in HIDING if name in environment() or name == HIDING[0]})
        keep_memory()
    if ":" in text:
        from hydragnn.hpo.launching.rank import gpu_variables

        number, changes = int(text.partition(":")[2]), dict[str, str | None]({HIDING[0]: "-1"})
        with suppress(IndexError):
            changes = gpu_variables(environment(), number, None, number + 1)
        change_environment(changes)
    if text.startswith("cuda") and not visible_gpus():
        problem = f"--device {text}: this process sees no such GPU (hydragnn doctor shows what there is)"
        raise InputError(f"{problem}; leave --device out, or use cpu")
    return text


Device = Annotated[
    str,
    typer.Option(
        "--device",
        callback=use_device,
        metavar="cpu|cuda|cuda:N",
        help="Where to compute; the GPUs that there are, if absent.",
    ),
]
