"""Pipes by the thousand, as packs of one node each have them."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hydragnn.hpo.launching.descriptors import PipeSelector, WakeupPipe

PIPES = 1100
"""As many read ends have descriptors beyond 1,024, where ``select`` ends."""

LIMITS = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from hydragnn.base.files import allow_many_files
allow_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * PIPES:
        pytest.skip(f"this system grants {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * PIPES), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        made = []
        for _ in range(PIPES):
            made.append(os.pipe())
            for end in made[-1]:
                stack.callback(os.close, end)
        yield made


def test_as_many_files_may_be_open_as_the_system_grants() -> None:
    said = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "True"


def test_a_selector_finds_readable_pipes_until_they_are_closed_and_wakeups(pipes: list[tuple[int, int]]) -> None:
    selector, bell = PipeSelector(), WakeupPipe()
    for number, (end, _) in enumerate(pipes):
        selector.open(end, number)
    assert selector.wait(0.0, bell.fileno()) == ([], False)
    bell.wake()
    for number in (3, PIPES - 1):
        os.write(pipes[number][1], b"x")
    speakers, rung = selector.wait(0.0, bell.fileno())
    assert sorted(speakers) == [3, PIPES - 1] and rung
    selector.close(pipes[3][0])
    selector.wake()
    assert selector.wait(60.0) == ([PIPES - 1], False)
    os.read(pipes[-1][0], 1)
    selector.wake()
    assert selector.wait(60.0) == ([], False)
    selector.end()
    bell.close()
