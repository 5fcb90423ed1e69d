"""Triton forms equal the references in Triton's interpreter, and compile without spills for machines that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn.kernels import OPS
from hydragnn.kernels.ops import case_graphs

VARIANTS = sum(len(op.variants) for op in OPS.values())
CHECKS = {
    "derivatives": VARIANTS,
    "corners": VARIANTS * len(case_graphs()),
    "widths": VARIANTS * 4,
    "long": VARIANTS * 2 + 4 + 3,
}


@pytest.mark.parametrize("suite", CHECKS)
def test_every_op_in_triton_equals_its_reference(suite: str, root: Path) -> None:
    command = [sys.executable, str(root / "tests" / "hydragnn" / "triton_interpreted.py"), suite]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"checks": CHECKS[suite], "failures": []}
