"""The page of ``bench_kinds``: what it measured, as text and a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from hydragnn.architectures import architectures
from tests.benchmarks.harness import NOT_MEASURED
from tests.benchmarks.peer_worker import BLIND

OURS = "ours"
TITLE = "# Every architecture beside its public implementations"
HEAD = [
    "architecture",
    "trained",
    "beside",
    "molecules: ours, ms",
    "theirs / ours",
    "alloys: ours, ms",
    "theirs / ours",
    "ours, MB",
    "ours / theirs",
    "values",
]
PAGE = """{title}

Made by `python -m tests.benchmarks.bench_kinds --environment DIRECTORY --rounds {rounds} --out docs/measurements/speed.md`. Dates and machine: {dates}, {processor}, {cores} cores at a load of {load}. One thread, torch {torch}, PyTorch Geometric {geometric}, float32.

DIRECTORY becomes the environment of the other packages. The same command continues where it was stopped; names of architectures after it measure these anew.

- A training step is forward, backward (through forces, if they are trained) and AdamW.
- Every implementation runs in a process of its own, {rounds} times in turns with the others, after two warm-up rounds.
- Figures are processor time, medians. Each answer is the mean of as many steps as fill a twentieth of a second.
- Freed memory is kept in all of them, as our commands keep it.
- *Molecules* are {molecules}. There most time goes into calls of operations.
- *Alloys* are {alloys}, all within 5 Angstrom. DimeNet++ does not support periodic images, so its alloys are not periodic.
- Models have 64 channels, 3 layers (`tensornet` and `mace` 2) and 20 radial functions (`dimenet` 6, `mace` 8). `mace` has `max_ell = 2` and `correlation = 3`.
- *Memory* is what tensors of a step of the alloys take at most, beside weights and graphs.
- *Values* are the largest difference of energies and forces over the largest, with equal weights. "own" are other weights of the same form up to constants ([parity](../parity.md)).
- `gps` is `gin` with attention among all nodes.

"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """An implementation on one batch."""

    milliseconds: Sequence[float]
    """Of a step, in every round."""
    megabytes: float
    """Of a step's tensors at most."""
    values: str
    """The largest difference from ours, or "own"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An architecture in all its implementations, ours among them."""

    made_with: Mapping[str, Any]
    """Versions, processor, rounds and our source: figures are comparable where it is equal."""
    date: str
    load: Sequence[float]
    """Of the machine before and after."""
    molecules: Mapping[str, Sample]
    alloys: Mapping[str, Sample]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Implementations that could not be had, and why."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Measured":
        """What ``to_json`` gave."""
        batches = {name: {who: Sample(**one) for who, one in value[name].items()} for name in ("molecules", "alloys")}
        return cls(**{**value, **batches})


def ratios(samples: Mapping[str, Sample], name: str) -> list[float]:
    """Theirs over ours in every round."""
    return [theirs / ours for ours, theirs in zip(samples[OURS].milliseconds, samples[name].milliseconds)]


def rows_of(kind: str, measured: Measured) -> list[list[str]]:
    """The lines of one architecture, the fastest of others first."""
    small, large = measured.molecules, measured.alloys
    rows = [
        [
            f"`{kind}`",
            "energies" if kind in BLIND else "energies, forces",
            name,
            f"{median(small[OURS].milliseconds):.1f}",
            f"{median(ratios(small, name)):.2f}",
            f"{median(large[OURS].milliseconds):.1f}",
            f"{median(ratios(large, name)):.2f}",
            f"{large[OURS].megabytes:.1f}",
            f"{large[OURS].megabytes / large[name].megabytes:.2f}",
            large[name].values,
        ]
        for name in large
        if name != OURS
    ]
    return sorted(rows, key=lambda row: float(row[6]))


def scatter(samples: Mapping[str, Sample], name: str) -> float:
    """How far ratios of single rounds are from their median, as a share of it; the median over rounds."""
    single = ratios(samples, name)
    return median(abs(ratio / median(single) - 1) for ratio in single)


def remarks(kinds: Sequence[str], measured: Mapping[str, Measured]) -> list[str]:
    """Sentences below the table: how certain its ratios are, where ours is no faster, and what is not there."""
    known = [(kind, measured[kind]) for kind in kinds if kind in measured]
    batches = [(samples, name) for _, one in known for samples in (one.molecules, one.alloys) for name in samples]
    off = sorted(scatter(samples, name) for samples, name in batches if name != OURS)
    lines = []
    if off:
        lines.append(
            f"Ratios of single rounds are {100 * median(off):.0f} % away from the figure that is printed in the median of all, "
            f"{100 * off[-1]:.0f} % in the worst of {len(off)}."
        )
    level = {
        f"`{row[0].strip('`')}` beside {row[2]} ({row[4]})"
        for kind, one in known
        for row in rows_of(kind, one)
        if float(row[4]) < 1.05
    }
    if level:
        lines.append(f"No faster on molecules, or by less than a twentieth: {', '.join(sorted(level))}.")
    lines += [
        f"Not measured: `{kind}` beside {name}, since {why}."
        for kind, one in known
        for name, why in one.missing.items()
    ]
    later = [f"`{kind}`" for kind in kinds if kind not in measured]
    if later:
        lines.append(f"Not measured yet: {', '.join(later)}; the same command goes on with them.")
    return lines


def page_of(kinds: Sequence[str], measured: Mapping[str, Measured], *, cores: int, amounts: Mapping[str, str]) -> str:
    """The document; ``amounts`` are graphs, atoms and edges of both batches, in words."""
    known = [measured[kind] for kind in kinds if kind in measured]
    dates = sorted({one.date for one in known})
    loads = sorted(load for one in known for load in one.load)
    head = PAGE.format(
        title=TITLE,
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))),
        cores=cores,
        load=" to ".join(dict.fromkeys((f"{loads[0]:.0f}", f"{loads[-1]:.0f}"))),
        **{name: known[0].made_with[name] for name in ("processor", "torch", "geometric", "rounds")},
        **amounts,
    )
    rows = [row for kind in kinds if kind in measured for row in rows_of(kind, measured[kind])]
    rows += [[f"`{kind}`", NOT_MEASURED, *[""] * (len(HEAD) - 2)] for kind in architectures() if kind not in kinds]
    table = ["| " + " | ".join(row) + " |" for row in [HEAD, ["---"] * len(HEAD), *rows]]
    return head + "\n".join(table) + "\n\n" + "\n".join(remarks(kinds, measured)) + "\n"
