"""A terminal that is closed: a run in it saves its state, although nothing can be printed any more."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hydragnn.record import read_record

PATIENCE = 240.0  # seconds for what a loaded machine does within ten
RUN = """
data.store = "{store}"
model = {{ kind = "schnet", hidden_dim = 8, num_layers = 1 }}
heads = [{{ kind = "scalar", field = "charge" }}]
train = {{ epochs = 4000, patience = 0, checkpoint_seconds = 0 }}
"""


class Terminal:
    """A window with a command in it, until it is closed."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._ours, self._theirs = os.openpty()
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), self._theirs)
        self.process = subprocess.Popen(["setsid", "--ctty", *words], cwd=folder, env=environment, **ends)  # type: ignore[call-overload]

    def show_until(self, happened: Callable[[], bool]) -> None:
        """Read what is printed until something has happened."""
        while not happened():
            assert self.process.poll() is None
            if select.select([self._ours], [], [], 0.05)[0]:
                os.read(self._ours, 4096)

    def close(self) -> None:
        """Close the window: the system sends SIGHUP, and printing is an error from now on."""
        os.close(self._ours)
        os.close(self._theirs)


Start = Callable[..., Terminal]


@pytest.fixture
def run_in_terminal(stored: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a long run in a terminal, and returns once it has a checkpoint."""
    (tmp_path / "run.toml").write_text(RUN.format(store=stored))
    terminals: list[Terminal] = []

    def start(*before: str) -> Terminal:
        words = [*before, sys.executable, "-m", "hydragnn", "train", "run.toml", "--out", "run"]
        terminals.append(Terminal(words, tmp_path, environment))
        terminals[-1].show_until((tmp_path / "run" / "checkpoints" / "latest.json").exists)
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.process.kill()
        terminal.process.wait()


def test_a_run_whose_terminal_is_closed_saves_its_state_and_leaves(run_in_terminal: Start, tmp_path: Path) -> None:
    terminal = run_in_terminal()
    terminal.close()
    assert terminal.process.wait(timeout=PATIENCE) == 130
    assert read_record(tmp_path / "run").status == "paused"


def test_a_run_under_nohup_goes_on_without_its_terminal(run_in_terminal: Start, tmp_path: Path) -> None:
    terminal, latest = run_in_terminal("nohup"), tmp_path / "run" / "checkpoints" / "latest.json"
    terminal.close()
    before = latest.read_text()
    while latest.read_text() == before:
        assert terminal.process.poll() is None
        time.sleep(0.05)
    terminal.process.terminate()
    assert terminal.process.wait(timeout=PATIENCE) == 130
