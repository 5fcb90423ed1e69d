"""Every op is timed beside a copy."""

import json

import pytest
import torch

from hydragnn.kernels import OPS
from tests.benchmarks import bench_kernels


@pytest.fixture(autouse=True)
def same_threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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
