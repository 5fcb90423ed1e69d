"""Commands, answers and small runs that the cases share."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.forked import Forked


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of the table: the wanted answer, the answer seen, and whether they agree."""

    wanted: str
    seen: str
    right: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A finished command: exit code, and all lines that it printed."""

    code: int
    text: str

    @property
    def sentence(self) -> str:
        """Return the error as one line, or the exit code."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        start = next((number for number, line in enumerate(lines) if line.startswith("error")), len(lines))
        return " ".join(lines[start:]) or f"exit {self.code}"

    @property
    def refused(self) -> bool:
        """Return True for bad input that ended in a sentence."""
        return self.code == 2 and "Traceback" not in self.text and "error" in self.text


def hydragnn(folder: Path, *words: str, before: tuple[str, ...] = (), **variables: str) -> Command:
    """Run the command line in a folder; in a process of its own start where something else starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400", **variables}
    command = ("-m", "hydragnn", *words)
    if not before and not variables:
        process = Forked(command, environment, folder)
        output, _ = process.communicate(timeout=300)
        return Command(process.wait(), output)
    line = [*before, sys.executable, *command]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return Command(done.returncode, done.stdout + done.stderr)


def build(folder: Path, name: str, text: str = "") -> Path:
    """Make the store ``NAME.h5`` of ``NAME.toml``; RuntimeError with the sentence where there is none."""
    if text:
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    built = hydragnn(folder, "data", "build", f"{name}.toml", "--out", f"{name}.h5")
    if built.code:
        raise RuntimeError(built.sentence)
    return folder / f"{name}.h5"


def train(folder: Path) -> None:
    """Train ``run.toml`` into ``run``; RuntimeError with the sentence where that fails."""
    trained = hydragnn(folder, "train", "run.toml", "--out", "run")
    if trained.code:
        raise RuntimeError(trained.sentence)
