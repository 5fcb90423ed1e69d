"""Linear maps and learned rows of every class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from hydragnn.kernels import spread
from hydragnn.kernels.family import ANYWHERE, form_on


class ClassTable(nn.Embedding):
    """``nn.Embedding`` whose gradient adds in the order of the items."""

    def forward(self, classes: Int[Tensor, " *items"]) -> Float[Tensor, "*items channels"]:
        """Return the row of each item's class."""
        return rows_of(self.weight, classes)


def rows_of(
    table: Float[Tensor, "classes channels"], classes: Int[Tensor, " *items"]
) -> Float[Tensor, "*items channels"]:
    """Return the rows of the classes."""
    if classes.ndim == 1:
        return spread(table, classes)
    return spread(table, classes.flatten()).view(*classes.shape, table.shape[1])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Classes:
    """Class of every row, and on a CPU the rows per class."""

    candidates: Int[Tensor, " rows"]
    """The row of every row's class among those of every row and class."""
    order: Int[Tensor, " rows"] | None = None
    """Rows class by class."""
    places: Int[Tensor, " rows"] | None = None
    """Position of each row in ``order``."""
    sizes: Sequence[int] = ()


def classes_of(of_rows: Int[Tensor, " rows"], count: int) -> Classes:
    """Return the classes of rows, of ``count``.

    Rows are counted on CPUs only, and not while a tracer runs: elsewhere the host would wait.
    """
    form: Any = form_on(COUNTING, of_rows.device.type)
    return form(of_rows, count)


def _uncounted(of_rows: Tensor, count: int) -> Classes:
    return Classes(candidates=torch.arange(0, of_rows.shape[0] * count, count, device=of_rows.device) + of_rows)


def _counted(of_rows: Tensor, count: int) -> Classes:
    sizes: list[int] = torch.bincount(of_rows, minlength=count).tolist()
    if max(sizes) == len(of_rows):
        return replace(_uncounted(of_rows, count), sizes=sizes)
    order = of_rows.argsort(stable=True)
    places = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
    return replace(_uncounted(of_rows, count), order=order, places=places, sizes=sizes)


COUNTING: Mapping[str, Any] = {ANYWHERE: _uncounted, "cpu": _counted}


class LinearByClass(nn.Linear):
    """Linear map with weights per class: y = W_c x + b_c."""

    def __init__(self, inputs: int, outputs: int, classes: int) -> None:
        super().__init__(inputs, classes * outputs)
        self.classes, self.outputs = classes, outputs

    def forward(  # type: ignore[override]  # a map of rows and their classes
        self, values: Float[Tensor, "rows inputs"], classes: Classes
    ) -> Float[Tensor, "rows outputs"]:
        """Map the rows of each class by one product."""
        if not classes.sizes:
            return self.select(super().forward(values), classes)
        weights = self.weight.view(self.classes, self.outputs, -1).unbind(0)
        biases = self.bias.view(self.classes, self.outputs).unbind(0)
        if classes.order is None or classes.places is None:  # rows of one class
            only = max(range(self.classes), key=classes.sizes.__getitem__)
            return linear(values, weights[only], biases[only])
        parts = spread(values, classes.order).split(list(classes.sizes))
        result = [linear(*arguments) for arguments in zip(parts, weights, biases) if len(arguments[0])]
        return spread(torch.cat(result), classes.places)

    def select(self, candidates: Float[Tensor, "rows all_outputs"], classes: Classes) -> Float[Tensor, "rows outputs"]:
        """Return the result of the class of every row."""
        return spread(candidates.view(-1, self.outputs), classes.candidates)
