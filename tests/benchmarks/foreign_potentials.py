"""Potentials of others whose wheels hold their weights, for ``hydragnn check``.

pip install chgnet sevenn
hydragnn check --calculator tests.benchmarks.foreign_potentials:chgnet --allow-code tests.benchmarks.foreign_potentials --structures FRAMES
"""

from typing import Any


def chgnet() -> Any:
    """Return CHGNet 0.3.0, without a word about atoms that have no neighbours."""
    from chgnet.model.dynamics import CHGNetCalculator

    return CHGNetCalculator(use_device="cpu", check_cuda_mem=False, on_isolated_atoms="ignore")


def sevennet() -> Any:
    """Return SevenNet-0 of 11 July 2024."""
    from sevenn.calculator import SevenNetCalculator

    return SevenNetCalculator("7net-0", device="cpu")
