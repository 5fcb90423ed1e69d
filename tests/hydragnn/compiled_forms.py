"""Runs ``hydragnn kernels compile`` for fewer variants: those in which an option or a dtype of a kernel is seen first.

``compiled_forms.py WORDS``, those that follow ``hydragnn``.
"""

import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydragnn.kernels import offline

SEEN: set[tuple[str, int | str, Any]] = set()
LAUNCH = offline._Compiler.__call__


def compile_new_forms(
    compiler: Any, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Compile a variant that has something no earlier one of its kernel has."""
    dtypes = {(kernel.__name__, at, one.dtype) for at, one in enumerate(inputs) if isinstance(one, torch.Tensor)}
    forms = dtypes | {(kernel.__name__, name, str(value)) for name, value in options.items()}
    if not forms <= SEEN:
        SEEN.update(forms)
        LAUNCH(compiler, kernel, grid, inputs, options)


if __name__ == "__main__":
    offline._Compiler.__call__ = compile_new_forms  # type: ignore[method-assign]
    runpy.run_module("hydragnn.scripts", run_name="__main__")
