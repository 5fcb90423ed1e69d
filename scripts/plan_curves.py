"""Curves of scaling: rows, and a picture with their losses beside published points."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError

SCALINGS = ("strong", "weak")

LOSSES: Mapping[str, str] = {
    "fixed work": "#8c96a0",
    "imbalance": "#e0a030",
    "communication": "#c0504d",
    "latency": "#7f5fa8",
    "bubble": "#4f9d69",
}
"""Colours of losses, in the order in which they are stacked."""

PUBLISHED: Sequence[tuple[str, int, float, float, str]] = (
    ("strong", 1024, 0.89, 0.89, "language model of 175 G weights (arXiv:2312.12705)"),
    ("strong", 3072, 0.87, 0.87, "language model of 1 T weights (arXiv:2312.12705)"),
    ("weak", 1024, 1.0, 1.0, "language model of 175 G weights (arXiv:2312.12705)"),
    ("weak", 3072, 1.0, 1.0, "language model of 1 T weights (arXiv:2312.12705)"),
    ("strong", 24_576, 0.78, 0.96, "weather model ORBIT (arXiv:2404.14712v1)"),
    ("strong", 49_152, 0.41, 0.85, "weather model ORBIT (arXiv:2404.14712v5)"),
)
"""Efficiencies of other models on Frontier: scaling, devices, least, largest, source; from the papers' abstracts."""


def check_picture(path: Path | None) -> None:
    """Raise InputError for a picture that could not be written after minutes of measuring."""
    if path is None:
        return
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--picture {path}: pictures are .svg, .png or .pdf; change the ending")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"--picture {path}: name a file in a folder that exists")


def points(curves: Sequence[Mapping[str, Any]], scaling: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield devices and their step, as far as a scaling goes."""
    yield from ((row["devices"], row[scaling]) for row in curves if row[scaling] is not None)


def curve_rows(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of both scalings."""
    return [
        {
            "scaling": scaling,
            "devices": f"{devices:,}",
            "ms a step": f"{1e3 * one['seconds']['step']:,.3g}",
            "efficiency": f"{one['efficiency']:.1%}",
            **{name: f"{one['losses'][name]:.1%}" for name in LOSSES},
            "memory": "" if one["fits"] else "does not fit",
        }
        for scaling in SCALINGS
        for devices, one in points(curves, scaling)
    ]


def layout_words(parallel: dict[str, int]) -> str:
    """Return a layout in words.

    >>> layout_words({"replicate": 4, "shard": 2, "tensor": 1, "micro_batches": 3})
    'replicate 4 x shard 2'
    """
    sizes = {axis: size for axis, size in parallel.items() if size > 1 and axis != "micro_batches"}
    sizes |= {"chunks": sizes.pop("chunks")} if "chunks" in sizes else {}  # the last
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items()) or "one device"


def curves_line(result: Mapping[str, Any]) -> str:
    """Return what curves belong to, and where strong scaling ends."""
    first = result["curves"][0]
    words = layout_words({**first["weak"]["parallel"], "replicate": 1})
    (graphs, weak), count = graphs_of(result), max(one for one, _ in points(result["curves"], "strong"))
    ends = f" up to {count:,} devices, as of more some would have none"
    ends = "" if count == result["curves"][-1]["devices"] else ends
    return (
        f"curves: copies of {words}, nodes of {result['ranks_per_node']:,}; strong: {graphs:,} graphs a step of all devices{ends}; "
        f"weak: {weak:,} graphs a step of each; losses are shares of a step and add up to 100% with the efficiency"
    )


def graphs_of(result: Mapping[str, Any]) -> tuple[int, int]:
    """Return the graphs of all devices, and those of each."""
    graphs = result["graphs_per_batch"]
    return graphs, max(1, round(graphs / (result["nodes"] * result["ranks_per_node"])))


def draw_curves(result: Mapping[str, Any], path: Path) -> None:
    """Draw losses of both scalings over the number of devices, and published points."""
    from matplotlib.figure import Figure

    strong, weak = graphs_of(result)
    titles = (
        f"strong scaling: {strong:,} graphs a step of all devices",
        f"weak scaling: {weak:,} graphs a step of each device",
    )
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    for axes, scaling, title in zip(figure.subplots(1, 2, sharey=True), SCALINGS, titles):
        devices, steps = zip(*points(result["curves"], scaling))
        shares = [[100 * max(0.0, one["losses"][name]) for one in steps] for name in LOSSES]
        bottom = [100 - sum(column) for column in zip(*shares)]
        areas = axes.stackplot(devices, bottom, *shares, colors=["#eef2f6", *LOSSES.values()], labels=["", *LOSSES])
        areas[0].set_label("_")
        efficiency = [100 * one["efficiency"] for one in steps]
        axes.plot(devices, efficiency, color="#1b1f24", linewidth=1.6, label="efficiency")
        for number, (_, at, low, high, source) in enumerate(one for one in PUBLISHED if one[0] == scaling):
            label = f"published, another model: {source}"
            span = [100 * low, 100 * high]
            axes.plot([at, at], span, "osD^"[number], color="white", markeredgecolor="#1b1f24", label=label, zorder=3)
            axes.plot([at, at], span, color="#1b1f24", linewidth=0.8, zorder=2)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 8, 64, 512, 4096, 32_768], labels=["1", "8", "64", "512", "4,096", "32,768"])
        axes.set(xlim=(1, 65_536), ylim=(0, max(101.0, 1.02 * max(efficiency))), xlabel="devices, extrapolated")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share of a step, %")
    handles = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
