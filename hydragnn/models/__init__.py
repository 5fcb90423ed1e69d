"""Models: encoders and heads built from settings and fields, forces and stress, models on disk."""

from hydragnn.architectures import GraphStatistics, ModelSettings
from hydragnn.models.build import build_described, build_model
from hydragnn.models.description import (
    ModelDescription,
    degree_statistics,
    description_from_json,
)
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.prediction import Prediction
from hydragnn.models.saving import load_graph_model, read_description, save_model
from hydragnn.models.settings import HeadSettings
from hydragnn.models.trained import TrainedModel, load_model

__all__ = [
    "GraphModel",
    "GraphStatistics",
    "HeadSettings",
    "ModelDescription",
    "ModelSettings",
    "Prediction",
    "TrainedModel",
    "build_described",
    "build_model",
    "degree_statistics",
    "description_from_json",
    "load_graph_model",
    "load_model",
    "read_description",
    "save_model",
]
