"""Chapter on the graphs with the largest errors."""

from collections.abc import Callable

import numpy as np

from hydragnn.scripts.report.facts import Facts, Points
from hydragnn.scripts.report.section import Section, Table, table_of
from hydragnn.scripts.report.words import measured, with_unit

WORST = 8


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the graphs with the largest errors."""
    part = facts.part
    if part is None or not part.numbers:
        return None
    return Section(
        "worst",
        "Largest errors",
        f"The graphs of the {part.name} part with the largest errors, by their number in the store. Look at these first: "
        "wrong labels and missing physics show here.",
        tables=[worst_table(points, facts) for points in part.numbers.values()],
    )


def worst_table(points: Points, facts: Facts) -> Table:
    """Return the graphs with the largest errors of one field."""
    errors, data, outside, covered = points.graph_errors(), facts.data, facts.outside, points.covered
    worst = {int(errors.number[n]): float(errors.mae[n]) for n in np.argsort(-errors.mae, kind="stable")[:WORST]}
    rows_of = {graph: np.flatnonzero(points.graph == graph) for graph in worst}
    top = {graph: own[np.argmax(np.abs(points.error[own]))] for graph, own in rows_of.items()}
    many = len(errors.number) < len(points.graph)

    def inside(graph: int) -> str:
        share = np.nan if covered is None else covered[rows_of[graph]].mean()  # a graph has all intervals or none
        return "unknown" if np.isnan(share) else f"{100 * share:.0f} %"

    columns: dict[str, Callable[[int], str]] = {
        "graph": lambda graph: f"{facts.name_of(graph)} ({graph})" if facts.name_of(graph) else str(graph),
        "nodes": lambda graph: str(data.sizes.nodes[graph]) if data is not None and graph < len(data.sizes) else "–",
        "MAE" if many else "error": lambda graph: measured(worst[graph]),
        "true": lambda graph: measured(float(points.target[top[graph]])),
        "predicted": lambda graph: measured(float(points.mean[top[graph]])),
    }
    if (spread := points.spread) is not None:
        columns["spread"] = lambda graph: measured(float(spread[rows_of[graph]].mean()))
    columns |= {"covered": inside} if covered is not None else {}
    columns |= (
        {"domain": lambda graph: "outside: " * bool(outside[graph]) + (outside[graph] or "inside")} if outside else {}
    )
    caption = with_unit(points.field, points.unit) + ": true and predicted are of the worst value." * many
    return table_of(worst, columns, caption)
