"""Graphs at three scales: batches, fields, builders."""

from typing import TYPE_CHECKING

from hydragnn.base.imports import names_in
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD, from_ase, neighbour_list
from hydragnn.graphs.batch import GraphBatch, edge_vectors, graph_label, volumes
from hydragnn.graphs.encodings import ENCODINGS, with_encodings
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, field_from_json
from hydragnn.graphs.hetero import relation_field, with_relations
from hydragnn.graphs.joining import concatenate, unbatch
from hydragnn.graphs.levels import CLUSTERS, clusters_field, with_clusters, with_contracted_levels
from hydragnn.graphs.mesoscale import from_labels, from_voronoi, grain_numbers, mesoscale_fields
from hydragnn.graphs.parts import graphs_of_parts
from hydragnn.graphs.pyg import from_pyg, to_pyg
from hydragnn.graphs.texts import Texts
from hydragnn.graphs.topology import Topology
from hydragnn.graphs.validate import field_values, graph_from_arrays, validate

if TYPE_CHECKING:
    from hydragnn.graphs.continuum import from_mesh, used_points
    from hydragnn.graphs.network import from_networkx

__getattr__ = names_in(__name__, __file__)  # imports meshio on first use
