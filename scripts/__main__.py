"""The command ``hydragnn``. What commands need is imported by each, and takes seconds: Ctrl-C meanwhile, or a package that is missing, ends in no traceback."""

import re
import sys
from pathlib import Path

import hydragnn


def main() -> None:
    """Import the command line and run it; 130 on Ctrl-C, 2 with one sentence where a package that it needs is not installed, or another one's files lie over this one's."""
    if "build_ensemble" not in getattr(hydragnn, "__all__", ()):
        _end(
            f"the files of another package that is called hydragnn, too (the public HydraGNN), were installed over those of hydragnn-ensemble in {sys.prefix}, "
            "or removed with some of these; give each an environment of its own"
        )
    _check_surroundings()
    try:
        if re.search(r"--workers[= ](?!1( |$))", " ".join(sys.argv)):
            _load_workers_early(sys.argv[1:3])
        from hydragnn.scripts.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hydragnn"):
            raise
        _end(f"the package {package} is not installed in {sys.prefix}; `pip install {package}`")


def _load_workers_early(words: list[str]) -> None:
    """Load what local workers of a command need beside what the command itself loads."""
    from hydragnn.forked import load_early

    if words[:1] == ["predict"]:
        load_early("hydragnn.ensemble.prediction.predict")
    elif words == ["data", "build"]:
        load_early("hydragnn.datasets.parallel_build", "ase.io.extxyz", "h5py", "vesin")


def _check_surroundings() -> None:
    """End where libraries that are imported next would end in words of their own."""
    try:
        Path.cwd()
    except OSError:
        _end("the folder that this command was started in is gone; cd to another")
    try:
        Path.home()
    except RuntimeError:
        _end("the system knows no home folder of this user, and libraries look for their settings there; set HOME")


def _end(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
