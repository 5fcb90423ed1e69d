"""Processes that train or predict keep freed memory, unless their user has decided otherwise."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from hydragnn.allocator import keep_memory
kept = keep_memory() if sys.argv[1] == "keep" else None
def work():
    for _ in range(10):
        torch.ones(2**24).add(1)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(word: str, **variables: str) -> tuple[str, int]:
    """What ``keep_memory`` said in a fresh process, and how many pages ten rounds with 128 MiB cost it."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | variables
    command = [sys.executable, "-c", FAULTS, word]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    kept, faults = said.split()
    return kept, int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_memory_that_was_freed_is_used_again_instead_of_being_mapped_anew() -> None:
    kept, faults = page_faults("keep")
    assert kept == "True"
    assert 10 * faults < page_faults("leave")[1], "one of the twenty tensors may lie elsewhere"


def test_whoever_has_set_the_allocator_keeps_what_was_set() -> None:
    assert page_faults("keep", GLIBC_TUNABLES="glibc.malloc.check=0")[0] == "False"
