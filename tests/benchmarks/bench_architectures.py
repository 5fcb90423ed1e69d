"""Which architecture wins per error and which per second: a campaign over all of them on the quickstart's alloys, and its page, by one command.

    python -m tests.benchmarks.bench_architectures --folder DIRECTORY [--samples 700] [--set KEY=VALUE ...] [--out docs/measurements/architectures.md]

DIRECTORY gets the store and the campaign of ``architectures.toml``; the same command goes on where it was stopped. ``--set`` overrides keys of that file, as of ``hydragnn search``.
"""

import argparse
import datetime
import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.datasets import open_store
from hydragnn.hpo.status.facts import duration
from hydragnn.runs.provenance import processor_name
from hydragnn.scripts import api
from hydragnn.scripts.demo.alloys import make_alloys
from hydragnn.scripts.report.collect import campaign_facts
from hydragnn.scripts.report.facts import Campaign, failure_kind
from hydragnn.scripts.report.search import architectures_table
from tests.benchmarks.harness import NOT_MEASURED

TITLE = "# A campaign over all architectures"
PAGE = """{title}

Made by `{command}`. Date and machine: {date}, {processor}, {cores} cores at a load of {load} in the end, torch {torch}.

The campaign is `tests/benchmarks/architectures.toml` on the quickstart's alloys (energies and forces).

- {samples} structures, of which {train} train and {valid} validate.
- {trials} trials of at most {epochs} epochs; the best third continues beyond {rungs}.
- One worker; its trials took {seconds} of a processor. Trials that failed: {failed}.
- The error is the mean of both fields' mean absolute errors on the validation part over those of the trivial predictor.

The first trials try every architecture once, in the middle of its ranges. With {each:.1f} trials of each, of {longest} at most, the table shows how far each comes in that time, not which is best in the end.
A [longer campaign](models.md#a-campaign-over-all-architectures) has more.

{left_out}"""


def _left_out(reasons: Mapping[str, str]) -> str:
    """Return the list of architectures that the campaign leaves out, each with its reason."""
    lines = [f"- `{kind}`: {reason.partition('; ')[0]}\n" for kind, reason in reasons.items()]
    return "".join(["Left out:\n\n", *lines, "\n"]) if lines else ""


def make_store(store: Path, samples: int) -> None:
    """The alloys, unless they are there; InputError where there are more or fewer of them."""
    if not store.exists():
        make_alloys(store, samples=samples)
    elif len(open_store(store)) != samples:
        raise InputError(f"{store} has {len(open_store(store))} structures, not {samples}; choose another --folder")


def page_of(campaign: Campaign, command: str) -> str:
    """The document on a campaign that is over; InputError where it has no table."""
    table = architectures_table(campaign)
    if table is None:
        raise InputError(
            f"{campaign.history.trials[0].folder.parents[1]} tried one architecture alone, so that there is nothing to compare; raise search.trials"
        )
    history, records = campaign.history, list(campaign.records.values())
    parts = records[0].parts
    head = PAGE.format(
        title=TITLE,
        command=command,
        date=datetime.date.today().isoformat(),
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        load=f"{os.getloadavg()[0]:.0f}",
        torch=metadata.version("torch"),
        samples=sum(parts.values()),
        **{part: parts[part] for part in ("train", "valid")},
        trials=len(history.trials),
        epochs=history.settings.base["train"]["epochs"],
        rungs=" and ".join(map(str, history.rungs[:-1])) or "none",
        each=len(history.trials) / len(table.rows),
        longest=duration(max(record.cost.cpu_seconds for record in records)),
        seconds=duration(sum(record.cost.cpu_seconds for record in records)),
        failed=sum(bool(failure_kind(trial)) for trial in history.trials),
        left_out=_left_out(history.settings.left_out or {}),
    )
    rows = tuple((f"`{row[0]}`", *row[1:]) for row in table.rows)
    known = f"{history.settings.left_out} {[row[0] for row in table.rows]}"
    missing = [kind for kind in architectures() if f"'{kind}'" not in known]
    rows += tuple((f"`{kind}`", NOT_MEASURED, *[""] * (len(table.header) - 2)) for kind in missing)
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (table.header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    lines.insert(1, "|" + "---|" * len(table.header))
    return "\n".join([head + lines[0], *lines[1:], "", table.caption, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the store, run or resume the campaign, print its table or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the store and the campaign")
    parser.add_argument("--samples", type=int, default=700, help="structures")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--out", type=Path, help="a Markdown file, replaced where there is one")
    options = parser.parse_args(arguments)
    if options.out is not None:
        check_page_target(options.out, TITLE.encode(), "page of a campaign")
    store, campaign = options.folder / "alloys.h5", options.folder / "campaign"
    make_store(store, options.samples)
    source = Path(__file__).with_name("architectures.toml")
    api.search(
        source, campaign, resume=campaign.exists(), workers=1, overrides=options.overrides, quiet=False, store=store
    )
    words = [
        "python",
        "-m",
        "tests.benchmarks.bench_architectures",
        "--folder",
        "DIRECTORY",
        "--samples",
        str(options.samples),
    ]
    words += [word for assignment in options.overrides for word in ("--set", assignment)]
    page = page_of(campaign_facts(campaign), shlex.join([*words, "--out", "docs/measurements/architectures.md"]))
    print(page) if options.out is None else write_atomically(options.out, page)


if __name__ == "__main__":
    main()
