"""Small inputs that were once wrong in silence or ended in a traceback, with the right answer beside what is seen.

python -m tests.cases               # the table of all
python -m tests.cases pyg charge    # some of them
"""

import argparse
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from tests.cases import exports, faults, first, foreign, geometry, limits, names, sentences
from tests.cases.running import Answer

MODULES = (first, exports, names, geometry, limits, foreign, faults, sentences)
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}


def answer(name: str) -> Answer:
    """Return the answer of one case, worked out in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"case-{name}-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ASE about keys of its own examples
            return CASES[name](folder)
    except Exception as error:  # a failed command or a traceback is an answer too, the wrong one
        return Answer("no error", f"{type(error).__name__}: {error}", False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Print the table; exit code 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; all if none is named")
    asked = parser.parse_args().names or list(CASES)
    unknown = [name for name in asked if name not in CASES]
    if unknown:
        parser.error(f"no case is named {unknown[0]}; the cases are {', '.join(CASES)}")
    print("| case | wanted | seen | right |\n|---|---|---|---|", flush=True)
    wrong = 0
    for name in asked:
        row = answer(name)
        wrong += not row.right
        print(f"| {name} | {row.wanted} | {row.seen} | {'yes' if row.right else 'NO'} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
