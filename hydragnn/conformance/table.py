"""All promises for any architectures in one run, as tables.

A second table has a line for each of what may stand around the layers of all of them: attention, conditioning, pooling.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hydragnn.architectures import architecture_of, architectures
from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import allow_named
from hydragnn.conformance.cases import AROUND, make_model, small_settings

Verdict = Literal["passed", "does not apply", "failed"]
MODULES = tuple(f"hydragnn.conformance.{name}" for name in ("suite", "limits", "smoothness", "symmetry"))

HEAD = """from hydragnn.conformance import ArchitectureConformance

"""
SUITE = """
class TestArchitecture{number}(ArchitectureConformance):
    architecture = {kind!r}
    settings = {settings!r}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of one promise of one architecture."""

    kind: str
    promise: str
    """The sentence that its test is named for."""
    verdict: Verdict
    why: str = ""
    """Case and figure, or first line of the error, of a failure; the reason if it does not apply."""
    around: str = ""
    """Key of ``AROUND`` around the layers; empty for none."""

    def to_json(self) -> dict[str, str]:
        """Return the outcome as plain JSON."""
        return asdict(self)


Progress = Callable[[int, int], None]
"""Callback with the numbers of finished and of all tests."""


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
) -> tuple[Outcome, ...]:
    """Run every promise for these architectures (none: all of the room).

    A kind may be ``package.module:Name``; ``settings`` are keys of [model] for each.
    Then once more with each of ``around`` (keys of ``AROUND``) around the layers; an architecture that refuses one in a sentence has one outcome for it.
    InputError where an architecture is not known or refuses the settings, and where pytest is not installed.
    """
    if find_spec("pytest") is None:
        raise InputError("the conformance suite runs by pytest, which is not installed; pip install pytest")
    kinds, settings = tuple(dict.fromkeys(kinds or architectures())), dict(settings or {})
    allow_named(kinds)
    for kind in kinds:
        architecture_of(kind)
        small_settings(kind, **settings)
    for name in around:
        if name not in AROUND:
            raise InputError(f"nothing is called {name} that stands around layers; {nearest(name, list(AROUND))}")
    pairs = [(kind, name) for name in ("", *dict.fromkeys(around)) for kind in kinds]
    refused = tuple(
        Outcome(kind=kind, promise=REFUSED, verdict="does not apply", why=why, around=name)
        for kind, name in pairs
        if (why := _refusal(kind, name, settings))
    )
    able = [pair for pair in pairs if pair not in {(outcome.kind, outcome.around) for outcome in refused}]
    reports = _Reports(able, progress)
    with tempfile.TemporaryDirectory() as folder:
        # a name of its own, since Python keeps modules by their names: another call would run the suites of the first
        path = Path(folder) / f"test_{Path(folder).name}.py"
        suites = [
            SUITE.format(number=number, kind=kind, settings={**AROUND.get(name, {}), **settings})
            for number, (kind, name) in enumerate(able)
        ]
        path.write_text(HEAD + "\n".join(suites))
        (path.parent / "pytest.ini").write_text("[pytest]\n")
        _run(path, reports)
    return (*reports.outcomes(), *refused)


def _refusal(kind: str, surrounding: str, settings: Mapping[str, Any]) -> str:
    """Return the reason for refusing a wrapper, or empty."""
    try:
        if surrounding:
            make_model(kind, **{**AROUND[surrounding], **settings})
    except InputError as refusal:
        return f"refused: {refusal}"
    return ""


def _run(path: Path, reports: "_Reports") -> None:
    """Run pytest quietly on one file in this process."""
    import pytest

    new = [module for module in MODULES if module not in sys.modules]
    pytest.register_assert_rewrite(*new)  # so that an assertion without a message says its figures
    options = ["-q", "--capture=sys", "--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore"]
    configuration = ["-c", str(path.parent / "pytest.ini"), "--rootdir", str(path.parent), "--noconftest"]
    with _quiet():
        code = pytest.main([*options, *configuration, str(path)], plugins=[reports])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"pytest ended with {code}"


@contextmanager
def _quiet() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


class _Reports:
    """Plugin of pytest that collects outcomes by architecture and promise."""

    def __init__(self, pairs: Sequence[tuple[str, str]], progress: Progress) -> None:
        self.pairs, self.progress = pairs, progress
        self.done = self.total = 0
        self.said: dict[tuple[str, str, str], list[tuple[Verdict, str]]] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        """Note the number of tests."""
        self.total = len(session.items)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One stage of one test is over."""
        if report.when == "teardown":
            self.done += 1
            self.progress(self.done, self.total)
        if report.when == "call" or not report.passed:
            _, suite, test = report.nodeid.split("::", 2)
            name, _, case = test.partition("[")
            pair = self.pairs[int(suite.removeprefix("TestArchitecture"))]
            sentence = name.removeprefix("test_").replace("_", " ")
            self.said.setdefault((*pair, sentence), []).append(_verdict(report, case.removesuffix("]")))

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return one outcome per architecture, wrapper and promise."""
        return tuple(_joined(kind, name, sentence, cases) for (kind, name, sentence), cases in self.said.items())


def _verdict(report: Any, case: str) -> tuple[Verdict, str]:
    if report.passed:
        return "passed", ""
    if report.skipped:
        return "does not apply", str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    line = message.strip().partition("\n")[0].removeprefix("AssertionError: ")
    return "failed", f"{case}: {line}" if case else line


def _joined(kind: str, surrounding: str, sentence: str, cases: Sequence[tuple[Verdict, str]]) -> Outcome:
    for verdict in ("failed", "passed"):
        reasons = [why for result, why in cases if result == verdict]
        if reasons:
            return Outcome(kind=kind, promise=sentence, verdict=verdict, why=reasons[0], around=surrounding)
    return Outcome(kind=kind, promise=sentence, verdict="does not apply", why=cases[0][1], around=surrounding)


def conformance_table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of architectures alone, in Markdown."""
    outcomes = [outcome for outcome in outcomes if not outcome.around]
    kinds, promises = (list(dict.fromkeys(getattr(o, name) for o in outcomes)) for name in ("kind", "promise"))
    by = {(outcome.kind, outcome.promise): outcome for outcome in outcomes}
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    marks = {"passed": "yes", "does not apply": "-"}

    def cell(outcome: Outcome) -> str:
        return marks.get(outcome.verdict) or f"**failed ({failures.index(outcome) + 1})**"

    lines = [*_head("promise", kinds)]
    lines += [f"| {promise} | {' | '.join(cell(by[kind, promise]) for kind in kinds)} |" for promise in promises]
    if failures:
        lines += ["", *(f"{n}. `{o.kind}`, {o.promise}: {o.why}" for n, o in enumerate(failures, start=1))]
    return "\n".join([*lines, *_reasons(outcomes, "A dash is a promise that does not apply:")]) + "\n"


def around_table(outcomes: Sequence[Outcome]) -> str:
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


def _reasons(outcomes: Sequence[Outcome], title: str) -> list[str]:
    """Why something does not apply, each reason once, below a title."""
    reasons = {outcome.why.partition("; ")[0]: None for outcome in outcomes if outcome.verdict == "does not apply"}
    lines = [f"- {why}" for why in sorted(reasons)]
    return ["", title, "", *lines] if lines else []


def _sum_of(outcomes: Sequence[Outcome]) -> str:
    """Return the numbers of kept, failed and inapplicable promises, in words."""
    counts = {
        verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("passed", "failed", "does not apply")
    }
    return f"{counts['passed']} hold, {counts['failed']} fail and {counts['does not apply']} do not apply"


def conformance_page(outcomes: Sequence[Outcome], command: str) -> str:
    """Return the page with both tables, its command and versions."""
    alone, surrounding = ([o for o in outcomes if bool(o.around) == exists] for exists in (False, True))
    page = (
        f"{TITLE}\n\n"
        f"Made by `{command}` with torch {metadata.version('torch')}.\n"
        "`hydragnn conformance my_package.networks:MyNetwork` makes it for an architecture of yours.\n"
        "A line is a test of `hydragnn.conformance`, named for its sentence, with all of its cases. Tests run in float64 unless the line says otherwise.\n\n"
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
