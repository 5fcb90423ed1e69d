"""Chapter on where the time went: parts, attempts over time, node-hours, faults."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS
from hydragnn.hpo.status.facts import duration
from hydragnn.hpo.status.timeline import Span, Timeline
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Section, Table, table_of
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.usage import parts_figure, spent_of, usage_table
from hydragnn.scripts.report.words import shorten

THIN = 64
"""Slots above which bars have no edges."""

BARS = 1000
"""Bars above which they are drawn as pixels, so that the page stays small."""


def polygon_look(name: str, colour: str, alpha: float = 1.0) -> dict[str, Any]:
    """Return the arguments of polygons with their name in the legend."""
    return {"label": name, "facecolor": colour, "alpha": alpha, "edgecolor": canvas.PAPER, "linewidth": 0.5}


LOOKS: dict[str, dict[str, Any]] = {
    "finished": polygon_look("trained to the end", canvas.ACCENT),
    "reached": polygon_look("reached a rung", canvas.ACCENT, 0.5),
    "running": polygon_look("still runs", canvas.ACCENT, 0.25),
    "saved": polygon_look("interrupted", canvas.SOFT),
    "own": polygon_look("failed by itself", canvas.FAIR),
    "machine": polygon_look("lost to the machine", canvas.POOR),
    "out": {**polygon_look("node out of service", "none"), "edgecolor": canvas.MUTED, "hatch": "////"},
}
"""Looks of outcomes: arguments of polygons."""


@dataclass(frozen=True, slots=True)
class SlotBar:
    """One look of one slot between two campaign times (s)."""

    slot: str
    look: str
    begin: float
    end: float


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on time, energy and nodes, if known."""
    spent, timeline = spent_of(facts), facts.campaign.history.timeline if facts.campaign else Timeline()
    if not spent:
        return None
    lead = " ".join(one.loss() for one in spent)
    if timeline.slots:
        hours, noun, nodes = timeline.node_hours(), timeline.noun, len(set(map(node_of, timeline.slots)))
        time = f"{nodes} {noun}{'' if nodes == 1 else 's'}, {duration(3600 * hours.allocated)} of {noun} time"
        lead = f"{time}; {100 * (hours.goodput or 0):.0f} % of it is training that counts (goodput). {lead}"
    figures = [parts_figure(spent), nodes_over_time(timeline)]
    tables = [usage_table(spent), faults_table(timeline)]
    return Section("time", "Where the time went", lead, figures, tables)


def nodes_over_time(timeline: Timeline) -> Figure | None:
    """Return the Gantt picture of a campaign; None where nothing ran yet."""
    slots, bars = timeline.slots, all_bars(timeline)
    total = sum(session.seconds for session in timeline.sessions)
    if not bars or total <= 0:
        return None
    whole = timeline.noun == "worker" or len(set(map(node_of, slots))) == len(slots)
    used = [key for key in LOOKS if any(bar.look == key for bar in bars)]
    scale, unit = (1.0, "s") if total < 180 else (60.0, "min") if total < 10_800 else (3600.0, "h")

    def draw(axes: Axes) -> None:
        _draw_rows(axes, slots, bars, used, scale)
        resumes = campaign_time(timeline, [session.started for session in timeline.sessions[1:]])
        canvas.dashed(axes, "x", resumes / scale, zorder=4)
        axes.set_xlim(0, total / scale)
        canvas.linear_scale(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]))
        canvas.legend_above(axes, len(used), handlelength=1.2, columnspacing=1.2)
        canvas.label(axes, f"time of campaign ({unit})", grid="x")

    row = timeline.noun if whole else f"part of a {timeline.noun}"
    return canvas.figure(
        "nodes",
        "Attempts over time",
        f"each row is one {row}; each bar is an attempt at one segment of a trial, and blank is idle. Red is a fault of the machine: the "
        "trial went on elsewhere from its last checkpoint. Hatched nodes were probed or kept out after faults. A dashed line is a "
        "resume; pauses in between are left out.",
        draw,
        height=96 + min(448, round(len(slots) * max(7.0, 22.0 - 0.35 * len(slots)))),
        wide=True,
    )


def faults_table(timeline: Timeline) -> Table:
    """Return failures by kind and what they cost."""
    noun = timeline.noun
    return table_of(
        timeline.faults(),
        {
            "what happened": lambda row: row.what,
            "times": lambda row: str(row.count),
            "trials": lambda row: str(row.trials),
            f"{noun}s at fault": lambda row: str(row.nodes or "–"),
            f"{noun} time lost": lambda row: duration(3600 * row.node_hours) if row.node_hours else "–",
            "told to the sampler": lambda row: {0: "no", row.count: "yes"}.get(
                row.to_sampler, f"{row.to_sampler} of {row.count}"
            ),
            "ended trials": lambda row: (
                "; ".join(
                    f"{', '.join(map(str, trials))}: {shorten(reason, 300)}" for reason, trials in row.reasons.items()
                )
                or "–"
            ),
        },
        "Faults of the campaign. Those of the machine are repeated elsewhere and never told to the sampler; a failure of "
        "the configuration is an answer, so that its time is not lost.",
        prose=frozenset({6}),
    )


def look_of(span: Span) -> str:
    """Return the look of an attempt.

    >>> look_of(Span(trial=0, attempt=1, slots=("n1",), started=0.0, ended=9.0, outcome="preempted"))
    'machine'
    """
    if span.outcome in LOOKS:
        return span.outcome
    if span.outcome == "cut":
        return "saved"
    return "machine" if span.outcome in MACHINE_FAULTS else "own"


def campaign_time(timeline: Timeline, times: Iterable[float]) -> NDArray[np.float64]:
    """Return seconds since the campaign began, without pauses between controllers.

    Sessions whose clock was set back come in the order of the clock.
    """
    starts, lengths = np.array([(session.started, session.seconds) for session in timeline.sessions]).T
    return np.subtract.outer(list(times), starts).clip(0.0, lengths).sum(1)


def all_bars(timeline: Timeline) -> list[SlotBar]:
    """Return attempts and outages of every slot in campaign time."""
    if not timeline.sessions:
        return []
    uses = [(look_of(span), span) for span in timeline.spans if span.ended > span.started]
    every = [*uses, *(("out", outage) for outage in timeline.outages)]
    begins, ends = (campaign_time(timeline, [getattr(own, end) for _, own in every]) for end in ("started", "ended"))
    times = zip(every, begins.tolist(), ends.tolist())
    return [SlotBar(slot, look, begin, end) for (look, own), begin, end in times for slot in own.slots]


def _draw_rows(axes: Axes, slots: Sequence[str], bars: Sequence[SlotBar], used: Sequence[str], scale: float) -> None:
    row = {slot: number for number, slot in enumerate(slots)}
    thin = {"linewidth": 0.0} if len(slots) > THIN else {}
    for look in used:
        own = [(row[bar.slot], bar.begin / scale, bar.end / scale) for bar in bars if bar.look == look]
        corners = [
            [(begin, at - 0.42), (begin, at + 0.42), (end, at + 0.42), (end, at - 0.42)] for at, begin, end in own
        ]
        axes.add_collection(PolyCollection(corners, rasterized=len(bars) > BARS, zorder=2, **LOOKS[look] | thin))
    shown = range(0, len(slots), max(1, round(len(slots) / 24)))
    axes.set_ylim(len(slots) - 0.5, -0.5)
    axes.set_yticks([*shown], labels=[shorten(slots[k], 14) for k in shown])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
