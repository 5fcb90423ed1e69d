"""Transforms of graphs that tests name as a user would."""

from hydragnn.graphs import Field, GraphBatch

NUMBER = 3
SHIFTED = "tests.transforms:shifted"


def shifted(graph: GraphBatch) -> GraphBatch:
    """Add one to every charge."""
    return graph.with_fields({"charge": graph["charge"] + 1})


def with_twice(graph: GraphBatch) -> GraphBatch:
    """Add the field ``twice``, which is two charges."""
    return graph.with_fields({"twice": 2 * graph["charge"]}, fields=[Field(name="twice", on="graph")])
