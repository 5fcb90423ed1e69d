"""Workers that are forked from a process which has loaded their libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from hydragnn.base.forked import load_early, workers_context

def tell(pipe):
    pipe.send("colorsys" in sys.modules)

if __name__ == "__main__":
    if EARLY:
        load_early("colorsys")
    context = workers_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(sender,))
    process.start()
    print(context.get_start_method(), receiver.recv())
    process.join()
"""


@pytest.mark.parametrize(("early", "said"), [(True, "forkserver True"), (False, "spawn False")])
def test_workers_have_what_was_loaded_early_and_start_anew_otherwise(early: bool, said: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("EARLY", str(early)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == said, done.stderr
