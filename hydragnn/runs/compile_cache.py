"""Cache of compiled steps, for all runs of a user.

torch keeps them as shared libraries and pickles, and what is read there is run. The folder is therefore private, and never one
of a run or a campaign, which may be given to others. Processes may share it: files appear whole or not at all.
"""

import os
import platform
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hydragnn.base.environment import changed_environment, environment
from hydragnn.base.errors import InputError
from hydragnn.base.files import digest

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The one way that torch offers to say where; what the user set stays."""


def cache_folder(variables: Mapping[str, str], processor: str) -> Path:
    """Return the folder of compiled steps for a kind of processor.

    >>> cache_folder({"XDG_CACHE_HOME": "/home/ada/.cache"}, "") == cache_folder({"HOME": "/home/ada"}, "")
    True
    """
    if folder := variables.get(VARIABLE):
        return Path(folder)
    return user_cache(variables) / f"compiled-{digest(processor)}"


def user_cache(variables: Mapping[str, str] | None = None) -> Path:
    """Return the folder of what this program caches for a user."""
    variables = environment() if variables is None else variables
    caches = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or Path.home()) / ".cache"
    return Path(caches) / "hydragnn"


def this_processor() -> str:
    """Return the processor's name and features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


@contextmanager
def compile_cache() -> Iterator[None]:
    """Keep what torch compiles in the user's folder.

    InputError where others could write there.
    """
    folder = cache_folder(environment(), this_processor())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise InputError(
            f"cannot keep compiled steps in {folder}: {error.strerror or error}; set {VARIABLE}"
        ) from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise InputError(
            f"others can write to {folder}, and what lies there is run; chmod 700 it, or set {VARIABLE} to a folder of yours"
        )
    with changed_environment({VARIABLE: str(folder)}):
        yield
