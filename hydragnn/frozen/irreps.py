"""States of several degrees, with the names and scales of e3nn.

That library takes 20 seconds to load and to build such a model, which are less than one here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Blocks = list[Tensor]
"""States ``[nodes, channels, 2 l + 1]``, by irreps."""
Irreps = Sequence[tuple[int, int]]
"""Channels and degree l of every block; parities are natural."""
Path = tuple[int, int, int]
"""Degrees of two factors and of their product."""


class Buffers(nn.Module):
    """Constants of a file, by name; NaN before they are loaded."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], *scalars: str) -> None:
        super().__init__()
        for name, shape in {**shapes, **dict.fromkeys(scalars, ())}.items():
            self.register_buffer(name, torch.full(tuple(shape), torch.nan))


class IrrepsLinear(nn.Module):
    """Linear maps between blocks of one degree, over root of channels."""

    def __init__(self, inputs: Irreps, outputs: Irreps) -> None:
        super().__init__()
        self.outputs = outputs
        self.paths = [
            (i, o, rows, columns)
            for i, (rows, degree) in enumerate(inputs)
            for o, (columns, other) in enumerate(outputs)
            if degree == other
        ]
        self.weight = nn.Parameter(torch.zeros(sum(rows * columns for *_, rows, columns in self.paths)))

    def forward(self, states: Blocks) -> Blocks:
        """New states; zero where no block has the degree."""
        first, sums = states[0], [sum(path[2] for path in self.paths if path[1] == o) for o in range(len(self.outputs))]
        result = [first.new_zeros(len(first), channels, 2 * degree + 1) for channels, degree in self.outputs]
        weights = self.weight.split([rows * columns for *_, rows, columns in self.paths])
        for (i, o, rows, columns), weight in zip(self.paths, weights):
            matrix = weight.view(rows, columns) / math.sqrt(sums[o])
            result[o] = result[o] + torch.einsum("nci,cd->ndi", states[i], matrix)
        return result


class ScalarLinear(IrrepsLinear):
    """Linear map of scalars ``[nodes, channels]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__([(inputs, 0)], [(outputs, 0)])

    def forward(self, states: Any) -> Any:
        """New scalars."""
        return super().forward([states.unsqueeze(2)])[0].squeeze(2)


class Couplings(nn.Module):
    """Couplings of two states to a third, by the file's 3j symbols."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self.paths = paths
        shapes = {f"_w3j_{a}_{b}_{c}": (2 * a + 1, 2 * b + 1, 2 * c + 1) for a, b, c in paths if a * b * c}
        if shapes:
            self._compiled_main_left_right = Buffers(shapes)

    def coupled(self, path: Path, harmonics: Tensor) -> Tensor:
        """Return harmonics as maps ``[..., 2 a + 1, 2 c + 1]``."""
        a, b, c = path
        if a * b * c:
            table = self._compiled_main_left_right.get_buffer(f"_w3j_{a}_{b}_{c}") * math.sqrt(2 * c + 1)
        else:
            eye = torch.eye(2 * max(path) + 1, dtype=harmonics.dtype, device=harmonics.device)
            table = eye.view(2 * a + 1, 2 * b + 1, 2 * c + 1) / (1 if c else math.sqrt(2 * a + 1))
        return torch.einsum("...j,ijk->...ik", harmonics, table)


def paths_between(inputs: int, harmonics: int, outputs: int) -> list[Path]:
    """Return all couplings of degrees below these, by that of the inputs."""
    every = [(a, b, c) for a in range(inputs) for b in range(harmonics) for c in range(outputs)]
    return [(a, b, c) for a, b, c in every if abs(a - b) <= c <= a + b and (a + b + c) % 2 == 0]


def num_products(max_ell: int, degree: int, order: int) -> int:
    """Return how many couplings of so many states give a degree.

    Parities are natural; with four factors those of all products on the way, too.
    """
    counts = {(ell, ell % 2): 1 for ell in range(max_ell + 1)}
    for _ in range(order - 1):
        products: dict[tuple[int, int], int] = {}
        for (first, parity), count in counts.items():
            for second in range(max_ell + 1):
                for third in range(abs(first - second), first + second + 1):
                    of = (third, (parity + second) % 2)
                    if order < 4 or third % 2 == of[1]:
                        products[of] = products.get(of, 0) + count
        counts = products
    return counts.get((degree, degree % 2), 0)
