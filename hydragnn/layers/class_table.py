"""Learned rows, one for each class."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.kernels import spread


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
