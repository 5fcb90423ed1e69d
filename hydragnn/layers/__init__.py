"""Layers: radial features, networks of nodes, and one module per kind of message passing."""

from hydragnn.layers.edges import Edges, States, lengths_and_directions
from hydragnn.layers.egnn import EGNNLayer
from hydragnn.layers.inputs import ClassEmbedding, EdgeInputs, NodeInputs
from hydragnn.layers.mlp import mlp
from hydragnn.layers.painn import PaiNNMessage, PaiNNUpdate
from hydragnn.layers.pna import PNALayer
from hydragnn.layers.radial import BesselBasis, GaussianBasis, RadialFeatures, envelope_at
from hydragnn.layers.readout import GatedVectors, Pool, pooled
from hydragnn.layers.relational import Level, RelationalLayer, level_of
from hydragnn.layers.schnet import SchNetInteraction

__all__ = [
    "BesselBasis",
    "ClassEmbedding",
    "EGNNLayer",
    "EdgeInputs",
    "Edges",
    "GatedVectors",
    "GaussianBasis",
    "Level",
    "NodeInputs",
    "PNALayer",
    "PaiNNMessage",
    "PaiNNUpdate",
    "Pool",
    "RadialFeatures",
    "RelationalLayer",
    "SchNetInteraction",
    "States",
    "envelope_at",
    "lengths_and_directions",
    "level_of",
    "mlp",
    "pooled",
]
