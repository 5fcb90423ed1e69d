"""The table of this machine: every section has rows, and some say what is asked."""

import json

import pytest
import torch

from hydragnn.kernels import OPS
from tests.benchmarks import bench_kernels
from tests.benchmarks.bench_machine import Effort, bench_table

TINY = Effort(
    turns=1,
    nodes=20,
    ranks=(2, 20),
    steps=1,
    measured_graphs=2,
    edges=100,
    pairs=1,
    batch=1,
    dynamics=1,
    graphs=50,
)


@pytest.fixture(autouse=True)
def same_threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_section_has_rows_with_a_figure_and_some_say_what_is_asked() -> None:
    rows = list(bench_table(TINY))
    words = ("gather_multiply_sum", "segment_statistics", "balance, measured costs", "share of a rank", "memory")
    for part in (*words, "calculator", "second trial"):
        found = [row for row in rows if part in row.what]
        assert found, part
        assert all(row.measured is not None and row.measured > 0 and row.device for row in found)
    assert sum(bool(row.asked) for row in rows) > 10


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_every_op_is_timed_beside_a_copy(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    bench_kernels.main(
        ["--device", "cpu", "--nodes", "20", "--degree", "3", "--channels", "4", "--repeats", "1", *more]
    )
    out = capsys.readouterr().out
    assert all(name in out for name in OPS)
    if more:
        about, *rows = map(json.loads, out.splitlines())
        assert about["copy_bytes_per_second"] > 0
        assert all(row["forward"] > 0 and row["twice"] > 0 and row["copy_share"] > 0 for row in rows)
