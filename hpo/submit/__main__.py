"""Command of a job that submits its successor.

    python -m hydragnn.hpo.submit CAMPAIGN --job N --id ID

Prints the successor's name at the scheduler, or nothing where there must be none.
"""

import argparse
import sys
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.hpo.submit.chain import successor


def main() -> int:
    """Submit as the command line says; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hydragnn.hpo.submit", description=__doc__)
    parser.add_argument("campaign", type=Path, help="folder of the campaign")
    parser.add_argument("--job", type=int, required=True, help="number of the job that asks")
    parser.add_argument("--id", required=True, help="its name at the scheduler")
    options = parser.parse_args()
    try:
        submission = successor(options.campaign, options.job, options.id)
    except InputError as error:
        print(f"no successor: {error}", file=sys.stderr)
        return 2
    if submission is not None:
        print(submission.id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
