"""Gather and scatter ops with derivatives of every order."""

from hydragnn.graphs.topology import Topology, relation_topology
from hydragnn.kernels.activation import SiLU, first_derivatives, silu
from hydragnn.kernels.ends import gather_add, received_and_sent
from hydragnn.kernels.family import plain_forms
from hydragnn.kernels.function_sums import POWER, activated_sum, power_sums
from hydragnn.kernels.gathered_outer import gather_outer_sum
from hydragnn.kernels.ops import OPS, Case, Op
from hydragnn.kernels.outer import along_channels, along_directions, outer_sum
from hydragnn.kernels.pairs import Pairs, pairs_of
from hydragnn.kernels.pointwise import (
    ended,
    envelope_at,
    gated,
    joined,
    lengths_and_directions,
    measured,
    normalised,
    radial_functions,
)
from hydragnn.kernels.segments import (
    segment_max,
    segment_mean,
    segment_softmax,
    segment_statistics,
    segment_sum,
    spread,
)
from hydragnn.kernels.table import FunctionTable, interpolated, tables_of_functions
from hydragnn.kernels.trilinear import edge_product, gather_multiply_sum, scatter_multiply_sum
