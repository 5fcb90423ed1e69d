"""Peaks of devices are stated by name or measured."""

from unittest.mock import patch

import pytest
import torch

from hydragnn.base import peaks


@pytest.mark.parametrize(
    ("name", "precision", "flops", "moved"),
    [
        ("NVIDIA H200", "bf16", 990e12, 4.8e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12, 3.35e12),
        ("NVIDIA H100 PCIe", "tf32", 378e12, 2.0e12),
        ("NVIDIA A100-SXM4-40GB", "fp64", 19.5e12, 1.555e12),
        ("AMD Instinct MI250X", "fp64", 47.9e12, 1.6e12),
        ("AMD Instinct MI300A", "fp32", 122.6e12, 5.3e12),
        ("NVIDIA A100 80GB PCIe", "bf16", 312e12, 1.935e12),
        ("NVIDIA GH200 480GB", "fp32", 0.0, 0.0),
        ("NVIDIA H100 NVL", "fp32", 0.0, 0.0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "fp32", 0.0, 0.0),
    ],
)
def test_a_gpu_has_stated_peaks(name: str, precision: str, flops: float, moved: float) -> None:
    with patch.object(torch.cuda, "get_device_name", return_value=name):
        found = peaks.peaks_of(torch.device("cuda"), precision)
    assert (found.flops, found.bytes) == (pytest.approx(flops), pytest.approx(moved))
    assert name in found.source


def test_a_cpu_is_measured_once() -> None:
    first = peaks.peaks_of(torch.device("cpu"), "fp32")
    assert first.flops > 1e9 and first.bytes > 1e8 and peaks.peaks_of(torch.device("cpu"), "tf32") is first
