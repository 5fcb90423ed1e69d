"""All promises for any architectures in one run, as tables.

A second table has a line for each of what may stand around the layers of all of them: attention, conditioning, pooling.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from typing import Any

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError, nearest
from hydragnn.conformance import promises  # noqa: F401  (it registers all promises)
from hydragnn.conformance.cases import AROUND, small_settings
from hydragnn.conformance.law import Law, Verdict
from hydragnn.conformance.network import PROMISES, Network


@dataclass(frozen=True, kw_only=True, slots=True)
class PromiseOutcome:
    """PromiseOutcome of one promise of one architecture."""

    kind: str
    promise: str
    """The sentence that it is named for."""
    verdict: Verdict
    why: str = ""
    """Case and figure, or first line of the error, of a failure; the reason if it does not apply."""
    around: str = ""
    """Key of ``AROUND`` around the layers; empty for none."""


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
    for kind in kinds:
        small_settings(kind, **settings)
    for name in around:
        if name not in AROUND:
            raise InputError(f"nothing is called {name} that stands around layers; {nearest(name, list(AROUND))}")
    pairs = [(kind, name) for name in ("", *dict.fromkeys(around)) for kind in kinds]
    outcomes, total = list[PromiseOutcome](), len(pairs) * len(PROMISES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (kind, name) in enumerate(pairs):
            attributes = {"architecture": kind, "settings": {**AROUND.get(name, {}), **settings}}
            network = type("Network", (Network,), attributes)()
            try:
                if name:
                    network.model()
            except InputError as refusal:
                why = f"refused: {refusal}"
                outcomes.append(
                    PromiseOutcome(kind=kind, promise=REFUSED, verdict="does not apply", why=why, around=name)
                )
                continue
            for place, law in enumerate(PROMISES.values(), 1):
                verdict, why = _outcome(law, network)
                outcomes.append(PromiseOutcome(kind=kind, promise=law.name, verdict=verdict, why=why, around=name))
                progress(number * len(PROMISES) + place, total)
    return tuple(outcomes)


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


def conformance_table(outcomes: Sequence[PromiseOutcome], *, around: bool = False) -> str:
    """Return the table of promises, or of wrappers, in Markdown."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    outcomes = [outcome for outcome in outcomes if bool(outcome.around) == around]
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    key = attrgetter("around" if around else "promise")
    first, form = ("around the layers", "`{}`") if around else ("promise", "{}")

    def cell(kind: str, name: str) -> str:
        local = [outcome for outcome in outcomes if (outcome.kind, key(outcome)) == (kind, name)]
        numbers = [str(failures.index(outcome) + 1) for outcome in local if outcome.verdict == "failed"]
        passed = sum(outcome.verdict == "passed" for outcome in local)
        return f"**failed ({', '.join(numbers)})**" if numbers else str(passed if around else "yes") if passed else "-"

    lines = [f"| {first} | {' | '.join(f'`{kind}`' for kind in kinds)} |", f"|---|{'---|' * len(kinds)}"]
    lines += [
        f"| {form.format(name)} | {' | '.join(cell(kind, name) for kind in kinds)} |"
        for name in dict.fromkeys(map(key, outcomes))
    ]
    named = [f"`{one.around}` around `{one.kind}`" if around else f"`{one.kind}`" for one in failures]
    lines += ["" for _ in failures[:1]]
    lines += [f"{n}. {name}, {one.promise}: {one.why}" for n, (name, one) in enumerate(zip(named, failures), 1)]
    if around:
        names = dict.fromkeys(map(key, outcomes))
        lines += ["", *(f"- `{name}`: `{json.dumps(AROUND[name])}`" for name in names)]
        outcomes = [outcome for outcome in outcomes if outcome.promise == REFUSED]
    reasons = sorted({one.why.partition("; ")[0] for one in outcomes if one.verdict == "does not apply"})
    dash = "an architecture that cannot have it" if around else "a promise that does not apply"
    lines += ["", f"A dash is {dash}:", "", *(f"- {why}" for why in reasons)] if reasons else []
    return "\n".join(lines) + "\n"


def _count(outcomes: Sequence[PromiseOutcome]) -> str:
    passed, failed, others = (
        sum(one.verdict == verdict for one in outcomes) for verdict in ("passed", "failed", "does not apply")
    )
    return f"{passed} hold, {failed} fail and {others} do not apply"


def conformance_page(outcomes: Sequence[PromiseOutcome], command: str) -> str:
    alone, surrounding = ([o for o in outcomes if bool(o.around) == exists] for exists in (False, True))
    page = (
        f"{TITLE}\n\n"
        f"Made by `{command}` with torch {metadata.version('torch')}.\n"
        "`hydragnn conformance my_package.networks:MyNetwork` makes it for an architecture of yours.\n"
        "A line is a promise, measured in all of its cases. Networks compute in float64 unless the line says otherwise.\n\n"
        f"Of {len(alone)} pairs of a promise and an architecture {_count(alone)}.\n\n" + conformance_table(outcomes)
    )
    if surrounding:
        page += (
            "\n## With something around the layers\n\n"
            "The table counts the promises that hold with attention, conditioning or pooling around the layers. The others do not apply:\n"
            "those about forces without forces, and about repeated cells with clusters.\n"
            f"Of {len(surrounding)} pairs {_count(surrounding)}.\n\n" + conformance_table(outcomes, around=True)
        )
    return page
