"""Chapter on imported files of the public HydraGNN."""

from hydragnn.importing.page import Import
from hydragnn.scripts.report.canvas import Section, Table, table_of
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.words import join


def failures_of(page: Import, verdict: str = "suffered") -> str:
    """Return the numbers of the failures with this verdict on any model."""
    numbers = {one.number for model in page.models for one in model.findings if one.verdict == verdict}
    return join([*map(str, sorted(numbers))])


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on an import; None for what was trained here."""
    page = facts.origin
    if page is None or not page.models:
        return None
    names = {one.run or page.out.name: one for one in page.models}
    own = [
        Table(header=("model", name), rows=[*one.facts()], caption=f"{name}: {one.writer}.", prose=frozenset({1}))
        for name, one in names.items()
    ]
    columns = {
        "number": lambda one: str(one.number),
        "failure": lambda one: one.name,
        "verdict": lambda one: one.verdict,
        "evidence": lambda one: one.evidence,
    }
    every = [
        table_of(one.findings, columns, f"All failures that were looked for in {name}", prose=frozenset({1, 3}))
        for name, one in names.items()
    ]
    return Section(
        "import",
        "Import",
        f"Imported from {page.source}; it computes what the code that trained it computed, errors included. Data: {page.data}. "
        f"Of {len(page.models[0].findings)} known failures of that code, these files suffered {failures_of(page) or 'none that they tell'}"
        + (f"; they cannot tell {untold}." if (untold := failures_of(page, "cannot be told")) else "."),
        tables=[*own, table_of(page.left_out, {"left out": str}, "What was left out.", prose=frozenset({0}))],
        folded=every,
    )
