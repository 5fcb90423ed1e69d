"""Table of all architectures in Markdown, for the reference pages.

python -m hydragnn.architectures.table
"""

from hydragnn.architectures.base import Architecture, GeometricSettings, architectures

NOT_MEASURED = "not measured yet"
"""Cell of a measured page for an architecture that the last measurement lacked."""

SIGHTS = {
    "lengths": "edge lengths",
    "directions": "directions",
    "triplets": "triplets",
    "edge_features": "edge features",
    "edge_kinds": "kinds of edges",
    "species": "species",
}


def architecture_table() -> str:
    """Return a line per architecture, in Markdown."""
    head = ["| `kind` | what it is | sees | vectors | smooth energies | its own keys |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(_line(architecture) for architecture in architectures().values())]) + "\n"


def _line(architecture: type[Architecture]) -> str:
    inputs = [
        f"**{words}**" if sight in architecture.requires else words
        for sight, words in SIGHTS.items()
        if sight in architecture.sees
    ]
    inputs += [f"{statistic} of the training part" for statistic in sorted(architecture.needs - architecture.sees)]
    settings = architecture.Settings
    shared = GeometricSettings.model_fields
    own = [f"`{key}`" for key in settings.model_fields if key not in shared]
    what = (settings.__doc__ or "").partition("\n")[0].rstrip(".")
    vectors = "yes" if 1 in architecture.gives else "no"
    smooth = (
        "-"
        if not architecture.sees_positions()
        else "no"
        if settings.parse({"kind": architecture.kind}).kinks
        else "yes"
    )
    cells = [
        f"`{architecture.kind}`",
        what,
        ", ".join(inputs) or "who is whose neighbour",
        vectors,
        smooth,
        ", ".join(own) or "-",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(architecture_table(), end="")
