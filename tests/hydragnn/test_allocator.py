"""Processes that train or predict keep freed memory, and threads that wait soon sleep, unless their user has decided otherwise."""

import os
import subprocess
import sys

import pytest

from hydragnn.base.allocator import OVERCOMMIT, STRICT

START = """
import os, re, resource, sys
from pathlib import Path
from hydragnn.base.allocator import keep_memory
SIZE = 2**25  # bytes; a tensor that is mapped on its own
"""
FAULTS = """
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        b"x" * SIZE
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_memory(), (faults(), faults())[1])
"""
HEAP = """
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))
before, kept = resident(), keep_memory()
grown, held = resident() - before, b"x" * SIZE
place = id(held) + SIZE // 2
for line in Path("/proc/self/smaps").read_text().splitlines():
    ends = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
    if ends:
        inside = int(ends[1], 16) <= place < int(ends[2], 16)
    elif inside and line.startswith("VmFlags:"):
        print(kept, grown, "hg" in line.split())
"""
ADDRESSES = """
def addresses():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = addresses() + 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before, kept = addresses(), keep_memory()
print(kept, addresses() - before)
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")


def output_of(program: str, *arguments: str, **variables: str) -> list[str]:
    """Return the words of a fresh process, whose environment sets nothing of allocators and threads but the variables."""
    own = {"GLIBC_TUNABLES", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    environment = {name: value for name, value in os.environ.items() if name not in own} | variables
    command = [sys.executable, "-c", program, *arguments]
    options = {"capture_output": True, "text": True, "check": True, "timeout": 120}
    return subprocess.run(command, env=environment, **options).stdout.split()  # type: ignore[call-overload,no-any-return]


@on_linux
def test_memory_that_was_freed_is_used_again_instead_of_being_mapped_anew() -> None:
    left, kept, faults = output_of(START + FAULTS)
    assert kept == "True"
    assert 10 * int(faults) < int(left), "one of the twenty may lie elsewhere"


@pytest.mark.skipif(
    not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == STRICT,
    reason="address space is no counted good on Linux",
)
@pytest.mark.parametrize("word, large", [("free", "True"), ("limited", "False")])
def test_the_heap_asks_for_large_pages_and_takes_none_before_they_are_used(word: str, large: str) -> None:
    kept, grown, asked = output_of(START + HEAP, word)
    assert (kept, asked) == ("True", large)
    assert int(grown) < 16 * 2**20


def test_whoever_has_set_the_allocator_keeps_what_was_set() -> None:
    assert output_of(f"{START}print(keep_memory())", GLIBC_TUNABLES="glibc.malloc.check=0") == ["False"]


@on_linux
def test_where_addresses_are_limited_none_are_taken_ahead() -> None:
    kept, taken = output_of(START + ADDRESSES)
    assert kept == "True" and int(taken) < 2**28


@pytest.mark.parametrize(
    "given, said", [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_spin_shortly_unless_somebody_has_said_how_they_wait(given: dict[str, str], said: str) -> None:
    program = "import sys, hydragnn, os; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    assert output_of(program, **given) == [said, "False"]  # torch is not loaded yet, and will read it
