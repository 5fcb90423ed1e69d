"""Option ``--device`` of commands: the CPU or one of the machine's GPUs."""

import re
from typing import Annotated

import typer

from hydragnn.base.allocator import HIDING, keep_memory
from hydragnn.base.environment import change_environment, environment
from hydragnn.base.errors import InputError
from hydragnn.base.machine import visible_gpus


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
