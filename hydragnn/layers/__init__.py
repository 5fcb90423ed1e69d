"""Layers that architectures share."""

from hydragnn.kernels import envelope_at, lengths_and_directions
from hydragnn.layers.attention import GPSLayer, GraphAttention, LinearGraphAttention
from hydragnn.layers.by_class import Classes, LinearByClass, classes_of
from hydragnn.layers.cartesian_tensors import TensorParts, product, squares, times
from hydragnn.layers.close_range import CloseRange, CloseRangeLimits, limits_from_json
from hydragnn.layers.coarser import Coarser
from hydragnn.layers.conditioning import ConditionInputs, FiLM, PooledCondition
from hydragnn.layers.degree_scaling import DegreeScalers, Scaler, scaled_statistics
from hydragnn.layers.distance_transforms import DISTANCE_TRANSFORMS, ELEMENTS_WITH_RADIUS, DistanceTransform
from hydragnn.layers.equivariant_attention import FAR, NUM_RADIAL, EquivariantAttention, EquivariantAttentionLayer
from hydragnn.layers.field_tokens import CrossAttention, FieldTokens, LatentAttention
from hydragnn.layers.halo import HaloExchange
from hydragnn.layers.harmonics import SphericalHarmonics, coupling
from hydragnn.layers.inputs import ClassEmbedding, EdgeInputs, NodeInputs
from hydragnn.layers.message_graph import MessageGraph, States, inputs_at_zero, radial_inputs
from hydragnn.layers.mlp import mlp
from hydragnn.layers.movement import MOVED, MeanMovement, Movement, at_rest, where_moved
from hydragnn.layers.neighbour_statistics import StatisticsForm, paper_statistics, smooth_statistics
from hydragnn.layers.pooling import GraphUNet
from hydragnn.layers.radial import BesselBasis, ExponentialBasis, GaussianBasis, RadialFeatures, SincBasis
from hydragnn.layers.radial_tables import RadialFilters, tables_of
from hydragnn.layers.readout import GatedProducts, GatedVectors, Pool, pool_nodes, pooled_nodes, shares_of_nodes
from hydragnn.layers.spherical_bessel import SphericalBesselBasis, bessel_zeros
from hydragnn.layers.split_plan import Plan, Split, Splittable
from hydragnn.layers.symmetric_contraction import SymmetricContraction
from hydragnn.layers.symmetric_polynomials import symmetric_polynomials
from hydragnn.layers.triplets import TripletSums, TripletSumsAtReceivers, reverses_of
from hydragnn.layers.wrapping import Checkpointed, Residual

__all__ = [
    "BesselBasis",
    "Checkpointed",
    "ClassEmbedding",
    "Classes",
    "CrossAttention",
    "CloseRange",
    "CloseRangeLimits",
    "Coarser",
    "ConditionInputs",
    "DISTANCE_TRANSFORMS",
    "DegreeScalers",
    "DistanceTransform",
    "ELEMENTS_WITH_RADIUS",
    "EdgeInputs",
    "EquivariantAttention",
    "EquivariantAttentionLayer",
    "ExponentialBasis",
    "FAR",
    "FieldTokens",
    "FiLM",
    "GPSLayer",
    "GatedProducts",
    "GatedVectors",
    "GaussianBasis",
    "GraphAttention",
    "GraphUNet",
    "HaloExchange",
    "LatentAttention",
    "LinearGraphAttention",
    "LinearByClass",
    "MOVED",
    "MeanMovement",
    "MessageGraph",
    "Movement",
    "NUM_RADIAL",
    "NodeInputs",
    "Plan",
    "Pool",
    "PooledCondition",
    "RadialFeatures",
    "RadialFilters",
    "Residual",
    "Scaler",
    "SincBasis",
    "SphericalBesselBasis",
    "SphericalHarmonics",
    "Split",
    "Splittable",
    "States",
    "StatisticsForm",
    "SymmetricContraction",
    "TensorParts",
    "TripletSums",
    "TripletSumsAtReceivers",
    "at_rest",
    "bessel_zeros",
    "classes_of",
    "coupling",
    "envelope_at",
    "inputs_at_zero",
    "lengths_and_directions",
    "limits_from_json",
    "mlp",
    "paper_statistics",
    "pool_nodes",
    "pooled_nodes",
    "product",
    "radial_inputs",
    "squares",
    "reverses_of",
    "symmetric_polynomials",
    "tables_of",
    "times",
    "scaled_statistics",
    "shares_of_nodes",
    "smooth_statistics",
    "where_moved",
]
