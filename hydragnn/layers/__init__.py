"""Layers that architectures share."""

from hydragnn.kernels import envelope_at, lengths_and_directions
from hydragnn.layers.attention import GPSLayer, GraphAttention, LinearGraphAttention
from hydragnn.layers.by_class import Classes, LinearByClass, classes_of
from hydragnn.layers.close_range import CloseRange, CloseRangeLimits, limits_from_json
from hydragnn.layers.equivariant_attention import FAR, NUM_RADIAL, EquivariantAttention, EquivariantAttentionLayer
from hydragnn.layers.field_tokens import CrossAttention, FieldTokens
from hydragnn.layers.halo import HaloExchange
from hydragnn.layers.harmonics import SphericalBesselBasis, SphericalHarmonics, bessel_zeros, coupling
from hydragnn.layers.inputs import ClassEmbedding, EdgeInputs, NodeInputs, mlp
from hydragnn.layers.message_graph import Coarser, MessageGraph, States, inputs_at_zero, radial_inputs
from hydragnn.layers.neighbour_statistics import (
    DegreeScalers,
    Scaler,
    StatisticsForm,
    aggregated,
    paper_statistics,
    scaled_statistics,
    smooth_statistics,
)
from hydragnn.layers.pooling import GraphUNet
from hydragnn.layers.radial import (
    DISTANCE_TRANSFORMS,
    ELEMENTS_WITH_RADIUS,
    BesselBasis,
    DistanceTransform,
    ExponentialBasis,
    GaussianBasis,
    RadialFeatures,
    SincBasis,
)
from hydragnn.layers.radial_tables import RadialFilters, tables_of
from hydragnn.layers.readout import GatedProducts, GatedVectors, Pool, pool_nodes, pooled_nodes, shares_of_nodes
from hydragnn.layers.split_plan import LayerSplit, Plan
from hydragnn.layers.symmetric_contraction import SymmetricContraction, symmetric_polynomials
from hydragnn.layers.triplets import TripletSums, reverses_of
from hydragnn.layers.wrapping import Checkpointed, ConditionInputs, FiLM, PooledCondition, Residual
