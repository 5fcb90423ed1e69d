"""Promises of every architecture, as tests to inherit.

    class TestMyNetwork(ArchitectureConformance):
        architecture = "my_package.networks:MyNetwork"

Needs pytest (the extra ``test``).
"""

from typing import Any

import pytest

from hydragnn.conformance.law import DoesNotApply, Law
from hydragnn.conformance.network import Network
from hydragnn.conformance.table import PROMISES


class ArchitectureConformance(Network):
    """Promises of every architecture, as tests named for their sentences."""


def _test_of(law: Law) -> Any:
    def test(self: ArchitectureConformance, case: str) -> None:
        try:
            verdict, figure, where = law.judgement(self, case)
        except DoesNotApply as reason:
            pytest.skip(str(reason))
        assert verdict == "passed", f"{where}: {figure} in place of {law.bound}"

    test.__name__, test.__doc__ = f"test_{law.name.replace(' ', '_')}", law.measure.__doc__
    test.measure = law.measure  # type: ignore[attr-defined]
    return pytest.mark.parametrize("case", law.cases or [""])(test)


for _law in PROMISES.values():
    _test = _test_of(_law)
    setattr(ArchitectureConformance, _test.__name__, _test)
