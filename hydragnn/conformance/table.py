"""All promises for any architectures in one run, as tables.

A second table has a line for each of what may stand around the layers of all of them: attention, conditioning, pooling.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from hydragnn.architectures import architecture_of, architectures
from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import allow_named
from hydragnn.conformance import promises  # noqa: F401  (it registers all promises)
from hydragnn.conformance.cases import AROUND, make_model, small_settings
from hydragnn.conformance.law import Law, Verdict
from hydragnn.conformance.network import PROMISES, Network


@dataclass(frozen=True, kw_only=True, slots=True)
class PromiseOutcome:
    """Outcome of one promise of one architecture."""

    kind: str
    promise: str
    """The sentence that it is named for."""
    verdict: Verdict
    why: str = ""
    """Case and figure, or first line of the error, of a failure; the reason if it does not apply."""
    around: str = ""
    """Key of ``AROUND`` around the layers; empty for none."""

    def to_json(self) -> dict[str, str]:
        """Return the outcome as plain JSON."""
        return asdict(self)


Progress = Callable[[int, int], None]
"""Callback with the numbers of finished and of all promises."""
TITLE = "# What every architecture promises, and keeps"
"""The first line of the page."""
REFUSED = "stands around it"
"""The promise that does not apply where an architecture refuses what is to be put around its layers."""


def conformance_of(
    kinds: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    progress: Progress = lambda finished, total: None,
    *,
    around: Sequence[str] = (),
) -> tuple[PromiseOutcome, ...]:
    """Run every promise for these architectures (none: all of the room).

    A kind may be ``package.module:Name``; ``settings`` are keys of [model] for each.
    Then once more with each of ``around`` (keys of ``AROUND``) around the layers; an architecture that refuses one in a sentence has one outcome for it.
    InputError where an architecture is not known or refuses the settings.
    """
    kinds, settings = tuple(dict.fromkeys(kinds or architectures())), dict(settings or {})
    allow_named(kinds)
    for kind in kinds:
        architecture_of(kind)
        small_settings(kind, **settings)
    for name in around:
        if name not in AROUND:
            raise InputError(f"nothing is called {name} that stands around layers; {nearest(name, list(AROUND))}")
    pairs = [(kind, name) for name in ("", *dict.fromkeys(around)) for kind in kinds]
    refusals = {pair: why for pair in pairs if (why := _refusal(*pair, settings))}
    able = [pair for pair in pairs if pair not in refusals]
    outcomes: list[PromiseOutcome] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, name in able:
            attributes = {"architecture": kind, "settings": {**AROUND.get(name, {}), **settings}}
            network = type("Network", (Network,), attributes)()
            for law in PROMISES.values():
                verdict, why = _outcome(law, network)
                outcomes.append(PromiseOutcome(kind=kind, promise=law.name, verdict=verdict, why=why, around=name))
                progress(len(outcomes), len(able) * len(PROMISES))
    refused = [
        PromiseOutcome(kind=kind, promise=REFUSED, verdict="does not apply", why=why, around=name)
        for (kind, name), why in refusals.items()
    ]
    return (*outcomes, *refused)


def _refusal(kind: str, surrounding: str, settings: Mapping[str, Any]) -> str:
    """Return the reason for refusing a wrapper, or empty."""
    try:
        if surrounding:
            make_model(kind, **{**AROUND[surrounding], **settings})
    except InputError as refusal:
        return f"refused: {refusal}"
    return ""


def _outcome(law: Law, network: Network) -> tuple[Verdict, str]:
    """Return the verdict over all cases, with the first reason."""
    results = []
    for case in law.cases or [""]:
        verdict, figure, where = law.outcome(network, case)
        if verdict == "failed":
            why = " ".join(where.partition("\n")[0].split()) + (
                "" if figure is None else f": {figure:.3g}, not {law.bound}"
            )
            return "failed", f"{case}: {why}" if case else why
        results.append((verdict, where))
    return next((("passed", "") for verdict, _ in results if verdict == "passed"), results[0])


def conformance_table(outcomes: Sequence[PromiseOutcome]) -> str:
    """Return the table of architectures alone, in Markdown."""
    outcomes = [outcome for outcome in outcomes if not outcome.around]
    kinds, names = (list(dict.fromkeys(getattr(o, name) for o in outcomes)) for name in ("kind", "promise"))
    by = {(outcome.kind, outcome.promise): outcome for outcome in outcomes}
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    marks = {"passed": "yes", "does not apply": "-"}

    def cell(outcome: PromiseOutcome) -> str:
        return marks.get(outcome.verdict) or f"**failed ({failures.index(outcome) + 1})**"

    lines = [*_head("promise", kinds)]
    lines += [f"| {promise} | {' | '.join(cell(by[kind, promise]) for kind in kinds)} |" for promise in names]
    if failures:
        lines += ["", *(f"{n}. `{o.kind}`, {o.promise}: {o.why}" for n, o in enumerate(failures, start=1))]
    return "\n".join([*lines, *_reasons(outcomes, "A dash is a promise that does not apply:")]) + "\n"


def around_table(outcomes: Sequence[PromiseOutcome]) -> str:
    """Return the table of kept promises with wrappers, in Markdown."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))  # in the order of the first table
    outcomes = [outcome for outcome in outcomes if outcome.around]
    names = list(dict.fromkeys(outcome.around for outcome in outcomes))
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]

    def cell(kind: str, name: str) -> str:
        local = [outcome for outcome in outcomes if (outcome.kind, outcome.around) == (kind, name)]
        numbers = [str(failures.index(outcome) + 1) for outcome in local if outcome.verdict == "failed"]
        retained = sum(outcome.verdict == "passed" for outcome in local)
        return f"**failed ({', '.join(numbers)})**" if numbers else str(retained or "-")

    lines = [*_head("around the layers", kinds)]
    lines += [f"| `{name}` | {' | '.join(cell(kind, name) for kind in kinds)} |" for name in names]
    if failures:
        lines += [
            "",
            *(f"{n}. `{o.around}` around `{o.kind}`, {o.promise}: {o.why}" for n, o in enumerate(failures, 1)),
        ]
    lines += ["", *(f"- `{name}`: `{json.dumps(AROUND[name])}`" for name in names)]
    refused = [outcome for outcome in outcomes if outcome.promise == REFUSED]
    return "\n".join([*lines, *_reasons(refused, "A dash is an architecture that cannot have it:")]) + "\n"


def _head(first: str, kinds: Sequence[str]) -> tuple[str, str]:
    return f"| {first} | {' | '.join(f'`{kind}`' for kind in kinds)} |", f"|---|{'---|' * len(kinds)}"


def _reasons(outcomes: Sequence[PromiseOutcome], title: str) -> list[str]:
    """Why something does not apply, each reason once, below a title."""
    reasons = {outcome.why.partition("; ")[0]: None for outcome in outcomes if outcome.verdict == "does not apply"}
    lines = [f"- {why}" for why in sorted(reasons)]
    return ["", title, "", *lines] if lines else []


def _sum_of(outcomes: Sequence[PromiseOutcome]) -> str:
    """Return the numbers of kept, failed and inapplicable promises, in words."""
    counts = {
        verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("passed", "failed", "does not apply")
    }
    return f"{counts['passed']} hold, {counts['failed']} fail and {counts['does not apply']} do not apply"


def conformance_page(outcomes: Sequence[PromiseOutcome], command: str) -> str:
    """Return the page with both tables, its command and versions."""
    alone, surrounding = ([o for o in outcomes if bool(o.around) == exists] for exists in (False, True))
    page = (
        f"{TITLE}\n\n"
        f"Made by `{command}` with torch {metadata.version('torch')}.\n"
        "`hydragnn conformance my_package.networks:MyNetwork` makes it for an architecture of yours.\n"
        "A line is a promise, measured in all of its cases. Networks compute in float64 unless the line says otherwise.\n\n"
        f"Of {len(alone)} pairs of a promise and an architecture {_sum_of(alone)}.\n\n" + conformance_table(alone)
    )
    if surrounding:
        page += (
            "\n## With something around the layers\n\n"
            "The table counts the promises that hold with attention, conditioning or pooling around the layers. The others do not apply:\n"
            "those about forces without forces, about two dimensions for models of three, and about repeated cells with clusters.\n"
            f"Of {len(surrounding)} pairs {_sum_of(surrounding)}.\n\n" + around_table(surrounding)
        )
    return page
