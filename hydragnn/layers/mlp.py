"""Multilayer perceptron with SiLU between its layers."""

import itertools
from collections.abc import Sequence

from torch import nn

from hydragnn.kernels import SiLU


def mlp(widths: Sequence[int], *, last_bias: bool = True) -> nn.Sequential:
    """Return linear layers from ``widths[0]`` to ``widths[-1]``, SiLU between them.

    >>> [type(layer).__name__ for layer in mlp([4, 8, 1])]
    ['Linear', 'SiLU', 'Linear']
    """
    layers: list[nn.Module] = []
    pairs = list(itertools.pairwise(widths))
    for number, (wide, narrow) in enumerate(pairs):
        last = number == len(pairs) - 1
        layers.append(nn.Linear(wide, narrow, bias=last_bias or not last))
        if not last:
            layers.append(SiLU())
    return nn.Sequential(*layers)
