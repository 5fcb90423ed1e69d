"""The command ``hydragnn``. Its modules take seconds to import: Ctrl-C meanwhile, or a package that is missing, ends in no traceback."""

import sys


def main() -> None:
    """Import the command line and run it; 130 on Ctrl-C, 2 with one sentence where a package that it needs is not installed."""
    try:
        from hydragnn.scripts.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hydragnn"):
            raise
        print(
            f"error: the package {package} is not installed in {sys.prefix}; `pip install {package}`", file=sys.stderr
        )
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
