"""Tensors of a process that trains on a CPU lie in memory of their own, without holes between them."""

import os
import subprocess
import sys

import pytest

from hydragnn.allocator import LIBRARY, OVERCOMMIT, STRICT

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists() or not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == STRICT,
    reason="the arena of tensors is built, and used where address space is no counted good",
)

BEGIN = """
import ctypes, os, random, re, threading
from pathlib import Path
import torch
from hydragnn.allocator import LIBRARY, keep_memory
torch.set_num_threads(1)
assert keep_memory()

def amounts():
    "Bytes of tensors now and at their most, and those resident."
    out = (ctypes.c_int64 * 3)()
    ctypes.CDLL(str(LIBRARY)).amounts(out)
    return list(out)

def resident():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def churn(seed, rounds, largest=2**22):
    "Make and free tensors of all sizes in random order, and look whether each still holds what was put into it."
    order, held = random.Random(seed), []
    for number in range(rounds):
        if len(held) > 40 or (held and order.random() < 0.4):
            tensor, value = held.pop(order.randrange(len(held)))
            assert bool((tensor == value).all()), "a tensor was overwritten"
        else:
            tensor = torch.full((int(largest ** order.uniform(0.3, 1)),), float(number))
            held.append((tensor, float(number)))
    return held

"""


def output_of(program: str) -> list[str]:
    """What a fresh process prints that keeps its memory and runs the program."""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", BEGIN + program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_tensors_keep_their_values_and_no_more_is_resident_than_they_took_at_their_most_and_a_little() -> None:
    program = """
before = resident()
held = churn(0, 3000)
live, most, pages = amounts()
assert live >= sum(tensor.nbytes for tensor, _ in held if tensor.nbytes >= 2**15)
print(live, most, pages, resident() - before)
"""
    live, most, pages, grown = map(int, output_of(program))
    assert most > 50 * 2**20 and live <= most
    assert pages <= most * 17 / 16 + 34 * 2**20
    assert grown <= pages + 16 * 2**20, "what is counted as given back was given back"


def test_what_was_freed_becomes_one_piece_again() -> None:
    program = """
first = torch.empty(2**20)
start = first.data_ptr()
del first
small = [torch.empty(2**16) for _ in range(16)]
order = list(range(16))
random.Random(0).shuffle(order)
for number in order:
    small[number] = None
print(torch.empty(2**20).data_ptr() == start, amounts()[0])
"""
    assert output_of(program) == ["True", "0"]


def test_threads_and_forked_processes_have_tensors_of_their_own() -> None:
    program = """
held = churn(1, 200, 2**20)
threads = [threading.Thread(target=churn, args=(seed, 500, 2**18)) for seed in range(4)]
for thread in threads:
    thread.start()
child = os.fork()
if child == 0:
    churn(2, 500, 2**20)
    for tensor, _ in held:
        tensor.zero_()
    os._exit(0)
code = os.waitpid(child, 0)[1]
for thread in threads:
    thread.join()
print(code, all(bool((tensor == value).all()) for tensor, value in held))
"""
    assert output_of(program) == ["0", "True"]


def test_tensors_that_were_there_before_are_freed_where_they_came_from() -> None:
    program = """
early = [torch.full((2**16,), float(number)) for number in range(3)]
"""
    begin, keep = BEGIN.split("assert keep_memory()\n")
    whole = begin + program + "assert keep_memory() and keep_memory()\n" + keep
    whole += "del early[1]\nprint(early[0][5].item(), early[1][5].item(), amounts()[0])\n"
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    result = subprocess.run(
        [sys.executable, "-c", whole], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert result.stdout.split() == ["0.0", "2.0", "0"]
