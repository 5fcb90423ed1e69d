"""Raw outputs of a network as a distribution."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.layers import Pool, pool_nodes
from hydragnn.models.distributions import VARIANCE_FLOOR, Categorical, Distribution, Normal, Number, Point

D = TypeVar("D", bound=Distribution)


class DistributionHead(nn.Module, Generic[D]):
    """Raw outputs of a network as a distribution; ``width`` is how many of them an item needs."""

    def __init__(self, field: Field, width: int) -> None:
        super().__init__()
        self.shape = field.shape
        self.width = width


class PointOutput(DistributionHead[Point]):
    """One output per number: its value."""

    def __init__(self, field: Field) -> None:
        super().__init__(field, field.width)

    def forward(self, raw: Float[Tensor, "items width"]) -> Point:
        """The values in the field's shape."""
        return Point(mean=raw.reshape(-1, *self.shape))


class GaussianOutput(DistributionHead[Normal]):
    """Normal(mean, softplus(raw) + floor): two outputs per number (Nix and Weigend 1994, doi:10.1109/ICNN.1994.374138).

    Deviates from the paper: the variance is a softplus with a floor, where the paper has an exponential.
    """

    def __init__(self, field: Field) -> None:
        super().__init__(field, 2 * field.width)

    def forward(self, raw: Float[Tensor, "items width"]) -> Normal:
        """The normal distributions in the field's shape."""
        mean, spread = raw.chunk(2, dim=-1)  # [items, field.width] each
        return Normal(mean=mean.reshape(-1, *self.shape), variance=positive(spread).reshape(-1, *self.shape))


class ClassOutput(DistributionHead[Categorical]):
    """Categorical(softmax(raw)): one output per class of each component, its logit."""

    def __init__(self, field: Field) -> None:
        super().__init__(field, field.width * field.classes)
        self.classes = field.classes

    def forward(self, raw: Float[Tensor, "items width"]) -> Categorical:
        """The probabilities in the field's shape."""
        return Categorical(logits=raw.reshape(-1, *self.shape, self.classes))


NUMBER_OUTPUTS: Mapping[str, Callable[[Field], DistributionHead[Any]]] = {
    "point": PointOutput,
    "gaussian": GaussianOutput,
}


def positive(raw: Tensor) -> Tensor:
    """A variance: never below the floor, so that its logarithm and its inverse stay finite."""
    return nn.functional.softplus(raw) + VARIANCE_FLOOR


def pool_numbers(of_node: Number, batch: GraphBatch, pool: Pool) -> Number:
    """Node predictions as one of the graph; nodes count as independent, so variances add up (and shrink in a mean)."""
    owners, graphs = batch.owner("node"), batch.num_graphs
    of_graph = of_node.mapped(lambda values: pool_nodes(values, owners, graphs, pool))
    return of_graph.mean_over(batch.counts("node").clamp_min(1)) if pool == "mean" else of_graph
