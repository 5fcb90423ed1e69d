"""Times of trainings by part, the largest loss, peaks, energy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from matplotlib.axes import Axes

from hydragnn.hpo.status.facts import duration
from hydragnn.hpo.status.timeline import USES, Timeline
from hydragnn.record import RunRecord
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Table
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.words import join, plain_number

COMPUTING = ("forward", "backward", "optimizer")
PARTS: dict[str, tuple[str, str, float, str]] = {
    "forward": ("forward", canvas.ACCENT, 1.0, ""),
    "backward": ("backward", canvas.ACCENT, 0.7, ""),
    "optimizer": ("optimizer", canvas.ACCENT, 0.4, ""),
    "useful": (USES["useful"], canvas.ACCENT, 1.0, ""),
    "validation": ("validation", canvas.SOFT, 1.0, "take a smaller split.valid"),
    "saving": ("saving", canvas.SOFT, 0.5, "raise train.checkpoint_seconds"),
    "data": ("waiting for data", canvas.FAIR, 1.0, "copy the store to a disk of the node, or keep it in memory (data.window = 0)"),
    "collectives": ("collectives of ranks", canvas.FAIR, 0.7, "raise batch.max_graphs, or take fewer ranks per trial"),
    "gaps": ("gaps in the GPU's work", canvas.FAIR, 0.55, 'set train.graphs = "on", or raise batch.max_graphs'),
    "other": ("start and host", canvas.FAIR, 0.4, "train longer after each start, or raise batch.max_graphs"),
    "overhead": (USES["overhead"], canvas.MUTED, 0.7, "take fewer rungs or longer trainings, since each start takes its time"),
    "failed": (USES["failed"], canvas.POOR, 0.7, "the table of faults has the reasons; narrow search.space"),
    "faults": (USES["faults"], canvas.POOR, 1.0, "see the table of faults"),
    "out": (USES["out"], canvas.POOR, 0.4, "ask for other nodes; the chart shows which were kept out"),
    "idle": (USES["idle"], canvas.RULE, 1.0, "raise search.trials or search.finalists, or take fewer nodes or workers"),
}  # fmt: skip
"""Phases of trainings and uses of nodes: words, colour, opacity, and the next move against a loss."""

REMEDIES = {
    "out_of_memory": "set batch.memory, or lower batch.max_graphs",
    "launch": "log.txt of such a trial says why it did not start",
    "lost_node": "ask for other nodes, or lower train.checkpoint_seconds",
    **dict.fromkeys(("preempted", "cut"), "lower train.checkpoint_seconds, so that less is trained again"),
}
"""Next move against faults by kind."""

NOTABLE, LOW = 0.1, 0.25
"""Share of the time from which a loss is worth a move; share of both peaks below which a device is not filled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Time of trainings: of a run, of a search, or of members."""

    name: str
    """search, members or run."""
    records: Sequence[RunRecord]
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def phases(self) -> dict[str, float]:
        """Return seconds on all nodes by phase, if records have them.

        Time in which a GPU is not busy while it should compute is ``gaps``; validation and collectives count as busy.
        """
        seconds = dict.fromkeys(PARTS, 0.0)
        for one in self.records:
            phases, busy, gaps = one.usage.phases, one.usage.busy, 0.0
            computing = sum(phases.get(name, 0.0) for name in COMPUTING)
            if busy is not None and computing and one.hardware.get("type") == "cuda":
                others = phases.get("validation", 0.0) + phases.get("collectives", 0.0)
                gaps = min(max(0.0, computing + others - busy * sum(phases.values())), computing)
            for name, value in {**phases, "gaps": gaps}.items():
                share = 1 - gaps / computing if gaps and name in COMPUTING else 1.0
                seconds[name if name in PARTS else "other"] += value * share * one.cost.nodes
        return {name: value for name, value in seconds.items() if value > 0}

    @property
    def parts(self) -> dict[str, float]:
        """Return seconds by part, of a search with idle nodes."""
        hours, phases = self.timeline.node_hours(), self.phases
        if hours.allocated <= 0:
            return phases
        uses = {use: 3600 * getattr(hours, use) for use, words in USES.items() if words in hours.uses}
        useful = uses.pop("useful", 0.0) if phases else 0.0
        return {name: value / sum(phases.values()) * useful for name, value in phases.items() if useful} | uses

    def share_of_peak(self, name: str) -> float | None:
        """Return the share of a peak that computation uses, if known."""
        used = peaks = 0.0
        for one in self.records:
            own, peak = getattr(one.usage, name), getattr(one.usage, f"peak_{name}")
            time = one.cost.ranks * sum(one.usage.phases.get(key, 0.0) for key in COMPUTING)
            if own > 0 and peak * time > 0:
                used, peaks = used + own, peaks + peak * time
        return used / peaks if peaks else None

    def loss(self) -> str:
        """Return the largest loss and the next move, if known."""
        parts, faults = self.parts, self.timeline.faults()
        name = max((one for one in parts if PARTS[one][3]), key=lambda one: parts[one], default="")
        if not name:
            return ""
        share, (words, _, _, move) = parts[name] / sum(parts.values()), PARTS[name]
        if name == "faults" and faults:
            words, move = f"{words} ({faults[0].what})", REMEDIES.get(faults[0].kind, move)
        if share >= NOTABLE:
            return f"Largest loss of the {self.name}: {words}, {100 * share:.0f} % of the time. Next move: {move}."
        flops, traffic = self.share_of_peak("flops"), self.share_of_peak("bytes")
        if flops and traffic and max(flops, traffic) < LOW:
            return (
                f"Largest loss of the {self.name}: computation uses {100 * flops:.0f} % of the operations and {100 * traffic:.0f} % of the memory "
                "traffic that the device can do. Next move: raise batch.max_graphs."
            )
        return f"No loss takes a tenth of the time of the {self.name}; the largest: {words}, {100 * share:.0f} %."


def spent_of(facts: Facts) -> list[Spent]:
    """Return the known times of search, members and run."""
    records = {"members": [*facts.members.values()], "run": [facts.run] if facts.run else []}
    spent = [Spent(name=name, records=own) for name, own in records.items()]
    if (campaign := facts.campaign) is not None:
        spent.insert(0, Spent(name="search", records=[*campaign.records.values()], timeline=campaign.history.timeline))
    return [one for one in spent if one.parts]


def parts_figure(spent: Sequence[Spent]) -> Figure | None:
    """Return bars of the time by part, if any."""
    return canvas.panels(
        "parts",
        "Time by part",
        "the bar is all of the time: computation is blue, what surrounds it grey, waiting amber, and what the machine lost red. "
        "Training that counts is divided as the records of trials say.",
        {one.name: (partial(_draw, one.parts), duration(sum(one.parts.values()))) for one in spent},
        height=70 + 20 * max([len(one.parts) for one in spent], default=0),
    )


def _draw(parts: Mapping[str, float], axes: Axes) -> None:
    total, end = sum(parts.values()), 0.0
    for name, seconds in parts.items():
        words, colour, alpha, _ = PARTS[name]
        label = f"{words}: {100 * seconds / total:.1f} %, {duration(seconds)}"
        axes.barh(0, seconds, left=end, height=1, color=colour, alpha=alpha, label=label)
        end += seconds
    axes.set(xlim=(0, end), ylim=(-0.5, 0.5))
    axes.set_axis_off()
    canvas.legend_above(axes, 1)


def usage_table(spent: Sequence[Spent]) -> Table:
    """Return use of devices and energy, as far as records have them."""
    rows = [(one.name, *row) for one in spent if one.phases for row in _usage(one)]
    caption = (
        "Use of the devices, and energy. Traffic is counted by operation: caches can bring it above its peak. The peak "
        "with the larger share is the nearer bound."
    )
    return Table(header=("time of", "what", "value", "of"), rows=rows, caption=caption)


def _usage(spent: Spent) -> Iterator[tuple[str, str, str]]:
    """Give name, value and origin of what is measured."""
    timed = [(one.usage.busy, one.cost.seconds * one.cost.ranks) for one in spent.records if one.usage.busy is not None]
    if weight := sum(seconds for _, seconds in timed):
        yield "device computes", f"{100 * sum(busy * own for busy, own in timed) / weight:.0f} %", "time of training"
    for name, words in (("flops", "operations"), ("bytes", "memory traffic")):
        if (share := spent.share_of_peak(name)) is not None:
            slow = ", measured low beside other work" if share > 1 and name == "flops" else ""
            yield f"{words} while it computes", f"{100 * share:.1f} %", f"peak of the device{slow}"
    measured = [one for one in spent.records if one.usage.joules is not None]
    if results := sum(one.failure is None and bool(one.best) for one in measured):
        joules = sum(one.usage.joules or 0.0 for one in measured) / results
        sources = join([*dict.fromkeys(one.usage.energy_source for one in measured)])
        yield "energy per training with a result", f"{plain_number(joules)} J", sources
    else:
        yield "energy", "–", "not measured"
