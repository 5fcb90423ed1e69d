"""Batches of flat tensors by name, for traced potentials."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn.functional import pad

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS, Field
from hydragnn.graphs.topology import Topology
from hydragnn.kernels.segment_order import SegmentOrder, remember_order


def batch_from_flat(tensors: Mapping[str, Tensor], fields: Sequence[Field]) -> GraphBatch:
    """Return the batch of flat tensors, with all that derives from edges."""
    senders, nodes = tensors["senders"], tensors["positions"].shape[0]
    topology = Topology.square(senders, tensors["receivers"], nodes)
    topology._derived.update(
        by_sender=tensors["by_sender"],
        sorted_senders=senders.index_select(0, tensors["by_sender"]),
        degrees=tensors["degrees"],
        row_offsets=pad(tensors["degrees"].cumsum(0), (1, 0)),
        column_offsets=pad(tensors["sent"].cumsum(0), (1, 0)),
    )
    on = {at: {f.name: tensors[f"{at}/{f.name}"] for f in fields if f.on == at} for at in LOCATIONS}
    batch = GraphBatch(
        positions=tensors["positions"],
        topology=topology,
        edge_shifts=tensors["edge_shifts"],
        cell=tensors["cell"],
        periodic=tensors["periodic"],
        node_offsets=pad(tensors["nodes_per_graph"].cumsum(0), (1, 0)),
        edge_offsets=pad(tensors["edges_per_graph"].cumsum(0), (1, 0)),
        fields={field.name: field for field in fields},
        nodes=on["node"],
        edges=on["edge"],
        graphs=on["graph"],
    )
    batch._derived.update(
        {
            ("counts", "node"): tensors["nodes_per_graph"],
            ("counts", "edge"): tensors["edges_per_graph"],
            ("owner", "node"): tensors["graph_of_node"],
            ("owner", "edge"): tensors["graph_of_edge"],
            ("volume", "graph"): tensors["volumes"],
            ("reverse", "edge"): tensors["reverse_edges"],
        }
    )
    ascending = (
        (topology.receivers, topology.row_offsets),
        (tensors["graph_of_node"], batch.node_offsets),
        (tensors["graph_of_edge"], batch.edge_offsets),
    )
    for owners, offsets in ascending:  # which nobody has to sort
        remember_order(owners, offsets.shape[0] - 1, SegmentOrder(None, owners, offsets, None))
    return batch
