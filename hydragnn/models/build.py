"""Build checked models whose weights depend on the seed alone."""

from collections.abc import Mapping, Sequence

import torch

from hydragnn.architectures import ArchitectureSettings, GraphStatistics
from hydragnn.graphs.field import Field
from hydragnn.models.checks import check
from hydragnn.models.description import ModelDescription, make_description
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.heads import HeadSettings


def build_model(
    model: ArchitectureSettings,
    heads: Sequence[HeadSettings],
    fields: Mapping[str, Field] | Sequence[Field],
    *,
    inputs: Sequence[str],
    dim: int,
    seed: int,
    statistics: GraphStatistics | None = None,
    edges: bool = True,
) -> GraphModel:
    """Return a checked model in float32; equal seeds give equal weights.

    ``statistics`` are needed by architectures that say so; without ``edges`` the trained model takes them away at prediction. Raises InputError for combinations that cannot work.
    """
    description = make_description(model, heads, fields, inputs=inputs, dim=dim, statistics=statistics, edges=edges)
    return build_from_description(description, seed)


def build_from_description(description: ModelDescription, seed: int) -> GraphModel:
    """Return the model of a description; InputError where it cannot work."""
    check(description)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphModel(description)
