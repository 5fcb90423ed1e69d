"""The sampler in a process of its own: a model of thousands of trials takes nothing from the controller's interpreter.

    python -m hydragnn.hpo.sampling.process

Both sides speak JSON, a line each: first the campaign, then questions, each answered by one line. A question holds all of
the history that its answer depends on, and the points that trials got since the last one. So a process that died, or that
does not answer, is replaced by another that answers the same.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hydragnn.base.files import open_log
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.sampling.sampler import History, proposals
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.settings import CampaignSettings, campaign_settings
from hydragnn.hpo.space.points import Point, space_of

HANG = 600.0
"""A process that does not answer for so many seconds is ended, and another one asked."""

ATTEMPTS = 3
"""So many processes are asked the same question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Which configurations trials should have, and all that the answer depends on but the points that are taken."""

    first: int
    """The number of the first trial."""
    count: int
    history: History

    def to_json(self, known: Sequence[str]) -> dict[str, Any]:
        """Plain JSON; ``known``: keys of the points that the process does not know."""
        trials = [[trial.number, trial.status, trial.values, trial.results] for trial in self.history.trials]
        return {
            "first": self.first,
            "count": self.count,
            "trials": trials,
            "rungs": self.history.rungs,
            "width": self.history.width,
            "known": list(known),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Question":
        """The question that a line holds."""
        trials = tuple(
            Trial(number=number, status=status, values=values, results=tuple(results))
            for number, status, values, results in value["trials"]
        )
        history = History(trials=trials, rungs=tuple(value["rungs"]), width=value["width"])
        return cls(first=value["first"], count=value["count"], history=history)


class SamplerProcess:
    """The controller's end: starts the process, asks it, and replaces it where it does not answer."""

    def __init__(self, settings: CampaignSettings, log: Path) -> None:
        """``log``: where the process writes what it has to say, errors for example."""
        self._settings, self._log = settings, log
        self._process: subprocess.Popen[bytes] | None = None
        self._told: set[str] | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process that answers; None before the first."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Let a process come up, if there is none, without waiting for it."""
        with self._lock:
            if self._process is not None or self._closed:
                return
            command = [sys.executable, "-P", "-m", "hydragnn.hpo.sampling.process"]
            environment = {**environment_alone(), "OMP_NUM_THREADS": "1"}
            pipe = subprocess.PIPE
            with open_log(self._log) as log:
                self._process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
                )
            self._told = None

    def ask(self, question: Question, known: Sequence[str]) -> list[Point] | None:
        """The points for a question, fewer where no more are left; None where no process answers.

        ``known``: the keys of all points that trials have.
        """
        for _ in range(ATTEMPTS):
            with suppress(OSError, ValueError, KeyError):  # broken pipes, half an answer
                return self._answer(question, known)
            self._end()
            if self._closed:
                break
        return None

    def close(self) -> None:
        """End the process; a question that is open has no answer."""
        self._closed = True
        self._end()

    def _answer(self, question: Question, known: Sequence[str]) -> list[Point]:
        self.start()
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("the sampler is closed")
        too_late = threading.Timer(HANG, process.kill)
        too_late.start()
        try:
            if self._told is None:
                begin = {"campaign": self._settings.to_json()}
                _write(process.stdin, {**begin, "allow_code": allowed_code()})
                self._told = set()
            told = self._told
            _write(process.stdin, question.to_json([key for key in known if key not in told]))
            answer: list[Point] = json.loads(process.stdout.readline())["points"]
        finally:
            too_late.cancel()
        told.update(known)
        return answer

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet
                    pipe.close()


def _write(file: IO[bytes], value: Any) -> None:
    file.write(json.dumps(value).encode() + b"\n")
    file.flush()


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Hand on what comes in; the process ends with its controller, whatever it computes."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def main() -> None:
    """Answer questions until the controller is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints becomes an answer
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    begun = json.loads(lines.get())
    allow_code(begun["allow_code"])
    settings = campaign_settings(begun["campaign"], Path("campaign"))
    space, known = space_of(settings.search.space), set[str]()
    while True:
        value = json.loads(lines.get())
        question = Question.from_json(value)
        known.update(value["known"])
        points = proposals(settings, space, question.history, question.first, question.count, known)
        _write(answers, {"points": points})


if __name__ == "__main__":
    main()
