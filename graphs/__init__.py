"""What a graph is, at three scales."""

from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch, concatenate, edge_vectors, one_graph, split, to, volumes
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, field_from_json
from hydragnn.graphs.validate import graph_from_arrays, validate
