"""From a drawing to inline SVG that takes its colours and fonts from the page, so that it follows light and dark."""

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import Formatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hydragnn.base.terminal import visible

INK, MUTED, RULE, ACCENT, PAPER, SOFT = "#1b1f24", "#6a737d", "#d9dde2", "#2a6fb0", "#fefefe", "#a9b4bf"
FAIR, POOR = "#9a6700", "#b42318"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    PAPER: "paper",
    SOFT: "soft",
    FAIR: "fair",
    POOR: "poor",
}
RASTER_ACCENT = "#3f87c9"  # pixels cannot follow the page's colours; this one is visible on light and on dark paper

COLUMN = 340  # pixels: the width of a phone's text column, so that one SVG unit is about one pixel everywhere
LARGE, WIDE, PAD = 600, 900, 6

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 12,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "legend.fontsize": 11.5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.borderaxespad": 0.2,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.parse_math": False,  # units and names are shown as they are, whatever stands between two dollars
    "text.usetex": False,  # whatever a matplotlibrc in the current folder says
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One picture of a figure; label and note stand above it."""

    svg: str
    label: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of the page: pictures, and the words that belong to them; ``broad`` replaces them on wide screens."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    broad: str = ""
    span: Literal["column", "large", "page"] = "column"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sketch:
    """A panel that is not drawn yet."""

    name: str
    label: str
    draw: Callable[[Axes], None]
    note: str = ""


def picture(name: str, title: str, draw: Callable[[Axes], None], *, width: int = COLUMN, height: int = 250) -> str:
    """The SVG that ``draw`` makes on one pair of axes, ``width`` by ``height`` pixels; texts stay texts."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        layout = ConstrainedLayoutEngine(w_pad=PAD / 72, h_pad=PAD / 72)
        figure = Drawing(figsize=(width / 72, height / 72), dpi=72, layout=layout)
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        draw(axes)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", dpi=200, metadata={"Date": None})
    return with_theme(visible(buffer.getvalue().decode()), name, title)


def figure(name: str, title: str, caption: str, draw: Callable[[Axes], None], *, height: int = 250) -> Figure:
    """A figure of one column, the same on every screen."""
    panel = Panel(svg=picture(name, title, draw, height=height))
    return Figure(name=name, title=title, caption=caption, panels=(panel,))


def panels(name: str, title: str, caption: str, sketches: Sequence[Sketch], *, height: int = 250) -> Figure | None:
    """One figure of several pictures side by side that are read in the same way; None without sketches."""
    if not sketches:
        return None
    drawn = tuple(
        Panel(
            svg=picture(f"{name}-{sketch.name}", f"{title}: {sketch.label}", sketch.draw, height=height),
            label=sketch.label,
            note=sketch.note,
        )
        for sketch in sketches
    )
    span: Literal["column", "page"] = "page" if len(drawn) > 1 else "column"
    return Figure(name=name, title=title, caption=caption, panels=drawn, span=span)


def wide_figure(
    name: str,
    title: str,
    caption: str,
    draw: Callable[[Axes], None],
    draw_narrow: Callable[[Axes], None],
    *,
    height: int = 280,
    narrow_height: int = 280,
    span: Literal["large", "page"] = "page",
) -> Figure:
    """A figure drawn twice: over the page (large: two thirds of it) for desktops and in one column for phones."""
    return Figure(
        name=name,
        title=title,
        caption=caption,
        panels=(Panel(svg=picture(f"{name}-narrow", title, draw_narrow, height=narrow_height)),),
        broad=picture(f"{name}-wide", title, draw, width=WIDE if span == "page" else LARGE, height=height),
        span=span,
    )


def with_theme(svg: str, name: str, title: str) -> str:
    """The SVG without what a page has already (declarations, metadata, fonts), colours as CSS variables, unique ids."""
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}title")]:
            parent.remove(child)
    text = ET.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            _set_themed(element, key, value, name, used)
    size = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib.update({"viewBox": " ".join(size), "role": "img", "aria-label": title, "class": "figure"})
    if float(size[2]) == COLUMN:
        root.attrib["style"] = f"max-width: {float(size[2]) * 1.2:.0f}px"
    label = ET.Element("title")
    label.text = title
    root.insert(0, label)
    return ET.tostring(root, encoding="unicode")


def _set_themed(element: ET.Element, key: str, value: str, name: str, used: set[str]) -> None:
    if key == "id":
        if value in used:
            element.set("id", f"{name}-{value}")
        return
    if key.startswith(f"{{{XLINK}}}"):
        key = key.removeprefix(f"{{{XLINK}}}")
    if key == "href" and value.startswith("#"):
        value = f"#{name}-{value[1:]}"
    value = value.replace("url(#", f"url(#{name}-")
    if key == "style":
        value = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", value)
        value = re.sub(r"font: bold ([\d.]+px) [^;]*", r"font-weight: 600; font-size: \1", value)
        for colour, variable in VARIABLES.items():
            value = value.replace(colour, f"var(--{variable})")
    element.set(key, value)


def named_rows(axes: Axes, names: Sequence[str]) -> None:
    """Rows from the top down that are named, not measured; long names stand above their rows instead of beside them."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if max(len(name) for name in names) <= 18:
        axes.set_yticks(range(len(names)), labels=list(names))
        return
    axes.set_yticks([])
    axes.set_ylim(len(names) - 0.5, -0.8)
    for row, name in enumerate(names):
        axes.text(
            0,
            row - 0.2,
            shorten(name, 42),
            transform=axes.get_yaxis_transform(),
            color=MUTED,
            bbox=plate(),
            va="bottom",
        )


def plate() -> dict[str, Any]:
    """Paper behind a label, so that lines do not cross it."""
    return {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 1.5}


def shorten(text: str, length: int) -> str:
    """The text, cut in the middle where it is longer than ``length``.

    >>> shorten("effective_conductivity", 12)
    'effect…ivity'
    """
    if len(text) <= length:
        return text
    return text[: length // 2] + "…" + text[len(text) - (length - 1) // 2 :]


def plain_number(value: int | float) -> str:
    """A number as people write it: three digits, no computer notation.

    >>> [plain_number(value) for value in (0.0123456, 1234.5, 0.5, 0, 3e-7, -2e9, 1e-8)]
    ['0.0123', '1230', '0.5', '0', '3×10⁻⁷', '−2×10⁹', '10⁻⁸']
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    sign = "−" if value < 0 else ""
    size = abs(value)
    exponent = math.floor(math.log10(size))
    if -5 < exponent < 6:
        rounded = float(f"{size:.3g}")
        return sign + (f"{rounded:.0f}" if rounded >= 100 else f"{rounded:.7f}".rstrip("0").rstrip("."))
    mantissa = f"{float(f'{size / 10**exponent:.3g}'):g}"
    return sign + ("" if mantissa == "1" else f"{mantissa}×") + f"10{superscript(exponent)}"


def measured(value: int | float) -> str:
    """A number for a table: three digits, kept where they are zeros, so that rows compare.

    >>> [measured(value) for value in (0.097, 12.0, 0.0, 3e-7)]
    ['0.0970', '12.0', '0', '3×10⁻⁷']
    """
    text = plain_number(value)
    size = abs(value)
    if not math.isfinite(value) or not 1e-4 <= size < 99.95:
        return text
    places = 2 - math.floor(math.log10(float(f"{size:.2e}")))
    return ("−" if value < 0 else "") + f"{size:.{places}f}"


def short(path: str) -> str:
    """A configuration path without its section.

    >>> short("train.learning_rate"), short("heads.0.weight"), short("valid/loss")
    ('learning_rate', 'heads.0.weight', 'valid/loss')
    >>> short("model.num_layers#small+large")
    'num_layers (small, large)'
    """
    place, _, kinds = path.partition("#")
    parts = place.split(".")
    return (parts[-1] if len(parts) == 2 else place) + (f" ({kinds.replace('+', ', ')})" if kinds else "")


def superscript(exponent: int) -> str:
    """The exponent in raised digits.

    >>> superscript(-12)
    '⁻¹²'
    """
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def log_scale(axes: Axes, axis: str, low: float, high: float) -> None:
    """A logarithmic axis from ``low`` to ``high`` that is labelled in plain numbers, at least at three places."""
    set_scale, set_limits = (axes.set_xscale, axes.set_xlim) if axis == "x" else (axes.set_yscale, axes.set_ylim)
    set_scale("log")
    set_limits(low, high)
    decades = math.log10(high / low)
    steps = (
        (1.0,)
        if decades > 3
        else (1.0, 3.0)
        if decades > 1.3
        else (1.0, 2.0, 5.0)
        if decades > 0.8
        else (1, 1.5, 2, 3, 4, 6)
    )
    line = axes.xaxis if axis == "x" else axes.yaxis
    if decades < 0.5:  # less than a factor of three: decades would leave the axis without labels
        line.set_major_locator(MaxNLocator(4))
    else:
        line.set_major_locator(LogLocator(subs=steps, numticks=8))
    line.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    line.set_minor_formatter(NullFormatter())


def tick_labels(values: Sequence[float]) -> list[str]:
    """Evenly spaced numbers with just the digits that tell them apart.

    >>> tick_labels([9999.0, 9999.5, 10000.0]), tick_labels([-2e-9, 0.0, 2e-9])
    (['9999.0', '9999.5', '10000.0'], ['−2×10⁻⁹', '0', '2×10⁻⁹'])
    """
    step = min((abs(b - a) for a, b in pairwise(values)), default=0.0)
    largest = max((abs(value) for value in values), default=0.0)
    if not step or largest >= 1e6 or step < 1e-4:
        return [plain_number(0.0 if abs(value) < 1e-6 * step else value) for value in values]
    places = next((n for n in range(6) if abs(step * 10**n - round(step * 10**n)) < 1e-6 * 10**n * step), 6)
    return [f"{value:.{places}f}".replace("-", "−") if abs(value) > 1e-6 * step else "0" for value in values]


class TickLabels(Formatter):
    """Labels of a linear axis from ``tick_labels``."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        """The label of one place outside the ticks."""
        return plain_number(value)

    def format_ticks(self, values: Iterable[float]) -> list[str]:
        """The labels of all ticks of the axis."""
        return tick_labels([float(value) for value in values])


def linear_scale(axes: Axes, axis: str, ticks: int = 5, *, whole: bool = False) -> None:
    """A linear axis with few ticks, labelled in plain numbers; ``whole`` where there is nothing between integers."""
    line = axes.xaxis if axis == "x" else axes.yaxis
    low, high = line.get_view_interval()
    while axis == "x" and ticks > 2:  # long labels side by side need room
        labels = tick_labels([float(place) for place in MaxNLocator(ticks, integer=whole).tick_values(low, high)[1:-1]])
        if sum(len(label) + 2 for label in labels) <= 36:
            break
        ticks -= 1
    line.set_major_locator(MaxNLocator(ticks, integer=whole))
    line.set_major_formatter(TickLabels())


def quiet_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Hairlines behind the data."""
    axes.grid(True, axis=axis, color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)


def legend_above(axes: Axes) -> None:
    """The legend over the axes, where it hides no data."""
    entries = axes.get_legend_handles_labels()[1]
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        handlelength=1.0,
        ncols=len(entries),
        columnspacing=1.0,
        handletextpad=0.4,
    )


def thousands(count: int) -> str:
    """A count with its thousands set apart.

    >>> thousands(1234567).split("\u202f")
    ['1', '234', '567']
    """
    return f"{count:,}".replace(",", "\u202f")
