"""Options that commands share, and functions of the Python api as commands."""

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from hydragnn.base.allocator import HIDING, keep_memory
from hydragnn.base.environment import change_environment, environment
from hydragnn.base.errors import InputError
from hydragnn.base.machine import Workers, visible_gpus

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
Code = Annotated[list[str] | None, typer.Option(metavar="MODULE", help="A module whose code may run; repeatable.")]


def command(
    app: typer.Typer, function: Callable[..., Any], name: str, *, required: Sequence[str] = (), before: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of the api as a command.

    The decorated function runs it and shows the result. Annotated arguments are those of the command: the second item of an
    annotation is the type on the command line, if it is another one, and the last the option. ``required`` ones have no default
    there. Keywords of the decorated function are further options, ahead of the one named ``before`` or at the end.
    """
    own = inspect.signature(function).parameters
    shared = {key: _option(one, key in required) for key, one in own.items() if get_origin(one.annotation) is Annotated}

    def register(run: Callable[..., None]) -> Callable[..., None]:
        further = [one for one in inspect.signature(run).parameters.values() if one.kind is one.KEYWORD_ONLY]
        json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
        place = [*shared, ""].index(before)
        options = [*shared.values()]
        ahead = [one for one in further if one.name != "device"] if before else []

        def callback(**values: Any) -> None:
            as_json = values.pop("as_json")
            arguments = {key: values.pop(key) for key in shared}
            arguments |= {key: () for key, value in arguments.items() if value is None and own[key].default == ()}
            run(arguments | ({"quiet": as_json} if "quiet" in own else {}), as_json, **values)

        behind = [one for one in further if one not in ahead]
        parameters = [*options[:place], *ahead, *options[place:], *behind, json_option]
        callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, help=inspect.getdoc(run))(callback)
        return run

    return register


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
        import torch

        from hydragnn.hpo.launching.local import own_gpus

        try:
            changes = own_gpus(environment(), int(text.partition(":")[2]), on_amd=torch.version.hip is not None)
        except IndexError:
            changes = {HIDING[0]: "-1"}
        change_environment(changes)
    if text.startswith("cuda") and not visible_gpus():
        raise InputError(
            f"--device {text}: this process sees no such GPU (hydragnn doctor shows what there is); leave --device out, or use cpu"
        )
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
