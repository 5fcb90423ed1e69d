"""Chapters of the page: drawings as SVG, tables of ready texts."""

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hydragnn.base.terminal import visible
from hydragnn.scripts.report.words import plain_number

INK, MUTED, RULE, ACCENT, PAPER, SOFT = "#1b1f24", "#6a737d", "#d9dde2", "#2a6fb0", "#fefefe", "#a9b4bf"
FAIR, POOR = "#9a6700", "#b42318"
NAMES = ("ink", "muted", "rule", "accent", "paper", "soft", "fair", "poor")
THEME = dict(zip((INK, MUTED, RULE, ACCENT, PAPER, SOFT, FAIR, POOR), NAMES))
"""CSS variables of the page, by the colours of drawings that become them."""
COLOURS = re.compile("|".join(THEME))
RASTER_ACCENT = "#3f87c9"  # pixels cannot follow the page's colours; this one is visible on light and on dark paper

COLUMN = 340  # pixels: the width of a phone's text column, so that one SVG unit is about one pixel everywhere
PAGE = 900  # pixels: the width of a desktop's text; on a phone one scrolls sideways
Draw = Callable[[Axes], None]

TIP = "tip:"
"""Begin of an artist's gid whose rest shows under the pointer."""

STYLE = dict(mpl.rc_params_from_file(Path(__file__).parent / "drawings.mplstyle", use_default_template=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One picture of a figure; label and note stand above it."""

    svg: str
    label: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of the page: its pictures, and how to read them."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    wide: bool = False


def picture(name: str, title: str, draw: Draw, *, width: int = COLUMN, height: int = 250, dpi: int = 200) -> str:
    """Return a drawing of ``width`` by ``height`` pixels as SVG."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        drawing = Drawing(figsize=(width / 72, height / 72), dpi=72)
        FigureCanvasSVG(drawing)
        axes = drawing.subplots()
        axes.set_title("", y=1.0)  # there is none, and without its place every pass would look for room for one
        draw(axes)
        ConstrainedLayoutEngine(w_pad=6 / 72, h_pad=6 / 72).execute(
            drawing
        )  # once; as drawing.layout it costs a pass more
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="svg", dpi=dpi, metadata={"Date": None})
    return with_theme(visible(buffer.getvalue().decode()), name, title)


def figure(name: str, title: str, caption: str, draw: Draw, *, height: int = 250, wide: bool = False) -> Figure:
    """Return a figure of one drawing, a column or a page wide."""
    panel = Panel(svg=picture(name, title, draw, width=PAGE if wide else COLUMN, height=height))
    return Figure(name=name, title=title, caption=caption, panels=(panel,), wide=wide)


def panels(
    name: str, title: str, caption: str, drawings: Mapping[str, tuple[Draw, str]], *, height: int = 250
) -> Figure | None:
    """Return a figure of labelled pictures side by side; None without any."""
    drawn = tuple(
        Panel(svg=picture(f"{name}-{label}", f"{title}: {label}", draw, height=height), label=label, note=note)
        for label, (draw, note) in drawings.items()
    )
    return Figure(name=name, title=title, caption=caption, panels=drawn, wide=len(drawn) > 1) if drawn else None


def with_theme(svg: str, name: str, title: str) -> str:
    """Return the SVG with CSS variables as colours and with unique ids."""
    root = ET.fromstring(svg)
    size = root.attrib["viewBox"]
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag.endswith(("}metadata", "}title"))]:
            parent.remove(child)
    tips: dict[ET.Element, str] = {}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.tag == "g" and (words := attributes.pop("id", "")).startswith(TIP):
            tips[element] = words.removeprefix(TIP)
        element.attrib = {key: _themed(key, value, name) for key, value in attributes.items()}
    for element, words in tips.items():
        ET.SubElement(element, "title").text = words
    looks = "figure column" if float(size.split()[2]) == COLUMN else "figure"
    root.attrib = {"viewBox": size, "role": "img", "aria-label": title, "class": looks}
    label = ET.Element("title")
    label.text = title
    root.insert(0, label)
    return ET.tostring(root, encoding="unicode")


def _themed(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    if key == "style":
        value = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", value)
        value = COLOURS.sub(lambda colour: f"var(--{THEME[colour[0]]})", value)
    return value.replace("url(#", f"url(#{name}-")


def dashed(
    axes: Axes, axis: Literal["x", "y"], values: Iterable[int | float], color: str = MUTED, zorder: int = 2
) -> None:
    """Draw dashed lines across the axes at values of ``axis``."""
    for value in values:
        line = axes.axvline if axis == "x" else axes.axhline
        line(value, color=color, linestyle=(0, (4, 3)), linewidth=1, zorder=zorder)


def log_scale(axes: Axes, axis: str, low: float, high: float) -> None:
    """Set a logarithmic axis from ``low`` to ``high`` with plain labels."""
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": (low, high)})
    decades, line = math.log10(high / low), axes.xaxis if axis == "x" else axes.yaxis
    if decades < 0.5:  # less than a factor of three: decades would leave the axis without labels
        line.set_major_locator(MaxNLocator(4))
    else:
        steps = {3: (1.0,), 1.3: (1.0, 3.0), 0.8: (1.0, 2.0, 5.0), 0: (1, 1.5, 2, 3, 4, 6)}
        subs = next(subs for least, subs in steps.items() if decades > least)
        line.set_major_locator(LogLocator(subs=subs, numticks=8))
    line.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))
    line.set_minor_formatter(NullFormatter())


def tick_label(value: int | float) -> str:
    """Return the number of a tick, with up to six digits.

    >>> tick_label(9999.5), tick_label(-0.3), tick_label(-2e-9)
    ('9999.5', '−0.3', '−2×10⁻⁹')
    """
    return f"{value:.6g}".replace("-", "−") if 1e-4 <= abs(value) < 1e6 else plain_number(value)


def linear_scales(axes: Axes, ticks: int = 5) -> None:
    """Set two linear axes with few ticks."""
    linear_scale(axes, "x", ticks)
    linear_scale(axes, "y", ticks)


def linear_scale(axes: Axes, axis: str, ticks: int = 5, *, whole: bool = False) -> None:
    """Set a linear axis with few ticks, only at integers if ``whole``."""
    line = axes.xaxis if axis == "x" else axes.yaxis
    low, high = line.get_view_interval()
    while axis == "x" and ticks > 2:  # long labels side by side need room
        labels = [tick_label(place) for place in MaxNLocator(ticks, integer=whole).tick_values(low, high)[1:-1]]
        if sum(len(label) + 2 for label in labels) <= 36:
            break
        ticks -= 1
    line.set_major_locator(MaxNLocator(ticks, integer=whole))
    line.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))


def value_axis(axes: Axes, axis: str, values: Iterable[int | float]) -> None:
    """Set a logarithmic axis for values that span a factor of five."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > 5:
        log_scale(axes, axis, min(finite) / 1.3, max(finite) * 1.3)
    else:
        linear_scale(axes, axis)


def label(axes: Axes, x: str, y: str = "", grid: Literal["both", "x", "y"] = "both") -> None:
    """Name both axes and draw hairlines behind the data."""
    axes.grid(True, axis=grid)
    axes.set(xlabel=x, ylabel=y)


def square(axes: Axes, low: float, high: float, top: float | None = None) -> None:
    """Draw the diagonal on axes of equal scale from ``low`` to ``high``."""
    axes.plot([low, high], [low, high], color=MUTED, linewidth=1)
    axes.set(xlim=(low, high), ylim=(low, top or high), aspect="equal")


def legend_above(axes: Axes, columns: int = 0, **look: Any) -> None:
    """Draw the legend above the axes, where it hides no data."""
    columns = columns or len(axes.get_legend_handles_labels()[1])
    look = {"handlelength": 1.0, "columnspacing": 1.0, **look}
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, handletextpad=0.4, **look)


Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of ready texts; without rows the page shows no table."""

    header: tuple[str, ...]
    rows: Rows
    caption: str
    strong: frozenset[int] = frozenset()
    prose: frozenset[int] = frozenset()
    bars: Sequence[float] = ()
    """By row, the length of a bar in its third cell: 1 is the whole cell."""

    @property
    def title(self) -> str:
        """Return the first sentence of the caption."""
        return self.caption.split(". ")[0].rstrip(".")

    def __bool__(self) -> bool:
        """Return True where there are rows to show."""
        return bool(self.rows)

    def css(self, column: int) -> str:
        """Return the class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell != "–" for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        numeric &= not any(" to " in cell for cell in cells)
        return "number" if numeric and column else ""


def table_of(items: Iterable[Any], columns: Mapping[str, Callable[[Any], str]], caption: str, **looks: Any) -> Table:
    """Return a table with a row per item and ``columns`` of cells.

    >>> table_of([1, 2], {"number": str, "twice": lambda number: str(2 * number)}, "").rows
    [('1', '2'), ('2', '4')]
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(header=tuple(columns), rows=rows, caption=caption, **looks)


@dataclass(frozen=True, slots=True)
class Section:
    """Chapter of the page; None and tables without rows are not shown."""

    anchor: str
    title: str
    lead: str
    figures: Sequence[Figure | None] = ()
    tables: Sequence[Table | None] = ()
    folded: Sequence[Table] = ()
