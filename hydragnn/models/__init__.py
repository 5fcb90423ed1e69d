"""Models: encoders and heads built from settings and fields, forces and stress, models on disk."""

from hydragnn.architectures import GraphStatistics, ModelSettings
from hydragnn.models.branched import BranchedModel, build_branched, check_shared
from hydragnn.models.build import build_described, build_model
from hydragnn.models.description import (
    ModelDescription,
    degree_statistics,
    described,
    description_from_json,
)
from hydragnn.models.distributions import (
    Categorical,
    Distribution,
    Normal,
    Number,
    Point,
    concatenated,
    distribution_from_arrays,
)
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.head_settings import HeadSettings, parse_head
from hydragnn.models.saving import load_graph_model, read_description, save_branched, save_model
from hydragnn.models.target import Target, target_from_json
from hydragnn.models.trained import TrainedModel, load_model

__all__ = [
    "BranchedModel",
    "Categorical",
    "Distribution",
    "GraphModel",
    "GraphStatistics",
    "HeadSettings",
    "ModelDescription",
    "ModelSettings",
    "Normal",
    "Number",
    "Point",
    "Target",
    "TrainedModel",
    "build_branched",
    "build_described",
    "build_model",
    "check_shared",
    "concatenated",
    "degree_statistics",
    "described",
    "description_from_json",
    "distribution_from_arrays",
    "load_graph_model",
    "load_model",
    "parse_head",
    "read_description",
    "save_branched",
    "save_model",
    "target_from_json",
]
