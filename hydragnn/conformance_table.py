"""All promises of ``hydragnn.conformance`` for any architectures in one run, and their table: a line per promise, a column per architecture."""

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
from hydragnn.conformance_cases import small_settings
from hydragnn.errors import InputError

Verdict = Literal["passed", "does not apply", "failed"]
MODULES = tuple(
    f"hydragnn.{name}"
    for name in ("conformance", "conformance_limits", "conformance_smoothness", "conformance_symmetry")
)

HEAD = """from hydragnn.conformance import ArchitectureConformance

"""
SUITE = """
class TestArchitecture{number}(ArchitectureConformance):
    architecture = {kind!r}
    settings = {settings!r}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one architecture does with one promise."""

    kind: str
    promise: str
    """The sentence that its test is named for."""
    verdict: Verdict
    why: str = ""
    """Where it failed: the corner, and the figure or the first line of the error. Where it does not apply: why not."""

    def to_json(self) -> dict[str, str]:
        """The same as plain JSON."""
        return asdict(self)


Progress = Callable[[int, int], None]
"""Is told how many tests are done, of how many."""


TITLE = "# What every architecture promises, and keeps"
"""The first line of the page."""


def conformance_of(
    kinds: Sequence[str] = (), settings: Mapping[str, Any] | None = None, progress: Progress = lambda done, total: None
) -> tuple[Outcome, ...]:
    """Run every promise for these architectures (none: all of the room), also ``package.module:Name``; ``settings`` are keys of [model] for each.

    InputError where an architecture is not known or refuses the settings, and where pytest is not installed.
    """
    if find_spec("pytest") is None:
        raise InputError("the conformance suite runs by pytest, which is not installed; pip install pytest")
    kinds, settings = tuple(dict.fromkeys(kinds or architectures())), dict(settings or {})
    for kind in kinds:
        architecture_of(kind)
        small_settings(kind, **settings)
    reports = _Reports(kinds, progress)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test_architectures.py"
        suites = [SUITE.format(number=number, kind=kind, settings=settings) for number, kind in enumerate(kinds)]
        path.write_text(HEAD + "\n".join(suites))
        (path.parent / "pytest.ini").write_text("[pytest]\n")
        _run(path, reports)
    return reports.outcomes()


def _run(path: Path, reports: "_Reports") -> None:
    """Run pytest on one file in this process, with its own configuration and without a word."""
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
    """Whatever is printed goes nowhere."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


class _Reports:
    """A plugin of pytest that keeps what every test says, by architecture and promise."""

    def __init__(self, kinds: Sequence[str], progress: Progress) -> None:
        self.kinds, self.progress = kinds, progress
        self.done = self.total = 0
        self.said: dict[tuple[str, str], list[tuple[Verdict, str]]] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        """Pytest knows how many tests there are."""
        self.total = len(session.items)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One stage of one test is over."""
        if report.when == "teardown":
            self.done += 1
            self.progress(self.done, self.total)
        if report.when == "call" or not report.passed:
            _, suite, test = report.nodeid.split("::", 2)
            name, _, case = test.partition("[")
            kind = self.kinds[int(suite.removeprefix("TestArchitecture"))]
            sentence = name.removeprefix("test_").replace("_", " ")
            self.said.setdefault((kind, sentence), []).append(_verdict(report, case.removesuffix("]")))

    def outcomes(self) -> tuple[Outcome, ...]:
        """One for each architecture and promise: failed where any of its cases failed, and what does not apply to any of them."""
        return tuple(_joined(kind, sentence, cases) for (kind, sentence), cases in self.said.items())


def _verdict(report: Any, case: str) -> tuple[Verdict, str]:
    if report.passed:
        return "passed", ""
    if report.skipped:
        return "does not apply", str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    line = message.strip().partition("\n")[0].removeprefix("AssertionError: ")
    return "failed", f"{case}: {line}" if case else line


def _joined(kind: str, sentence: str, cases: Sequence[tuple[Verdict, str]]) -> Outcome:
    for verdict in ("failed", "passed"):
        reasons = [why for found, why in cases if found == verdict]
        if reasons:
            return Outcome(kind=kind, promise=sentence, verdict=verdict, why=reasons[0])
    return Outcome(kind=kind, promise=sentence, verdict="does not apply", why=cases[0][1])


def conformance_table(outcomes: Sequence[Outcome]) -> str:
    """The table in Markdown, with a numbered sentence for every failure and the reasons why promises do not apply."""
    kinds, promises = (list(dict.fromkeys(getattr(o, name) for o in outcomes)) for name in ("kind", "promise"))
    by = {(outcome.kind, outcome.promise): outcome for outcome in outcomes}
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    marks = {"passed": "yes", "does not apply": "-"}

    def cell(outcome: Outcome) -> str:
        return marks.get(outcome.verdict) or f"**failed ({failures.index(outcome) + 1})**"

    lines = [f"| promise | {' | '.join(f'`{kind}`' for kind in kinds)} |", f"|---|{'---|' * len(kinds)}"]
    lines += [f"| {promise} | {' | '.join(cell(by[kind, promise]) for kind in kinds)} |" for promise in promises]
    if failures:
        lines += ["", *(f"{n}. `{o.kind}`, {o.promise}: {o.why}" for n, o in enumerate(failures, start=1))]
    reasons = {o.why: None for o in outcomes if o.verdict == "does not apply"}
    if reasons:
        lines += ["", "A dash is a promise that does not apply:", "", *(f"- {why}" for why in sorted(reasons))]
    return "\n".join(lines) + "\n"


def conformance_page(outcomes: Sequence[Outcome], command: str) -> str:
    """The table as a page of the documents that says by which command, and with which versions, it was made."""
    counts = {
        verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("passed", "failed", "does not apply")
    }
    return (
        f"{TITLE}\n\n"
        f"Made by `{command}` with torch {metadata.version('torch')}; `hydragnn conformance my_package.networks:MyNetwork` makes it for\n"
        "an architecture of yours. A line is a test of `hydragnn.conformance`, named for its sentence, with all of its corners, in float64 unless it says\n"
        "otherwise.\n"
        f"Of {len(outcomes)} pairs of a promise and an architecture {counts['passed']} hold, {counts['failed']} fail and "
        f"{counts['does not apply']} do not apply.\n\n" + conformance_table(outcomes)
    )
