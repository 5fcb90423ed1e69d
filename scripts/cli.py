"""Command line: one function of the Python api per command."""

import os
import sys
from contextlib import suppress
from errno import EDQUOT, EIO, EMFILE, ENAMETOOLONG, ENFILE, ENOLCK, ENOSPC, EROFS, ESTALE
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hydragnn import __version__
from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import NO_MEMORY, InputError, Interrupted, SaidByFirst, wants_memory
from hydragnn.base.places import check_store
from hydragnn.base.settings import store_override
from hydragnn.base.terminal import printing, visible
from hydragnn.hpo.folder import campaign_table
from hydragnn.scripts import api
from hydragnn.scripts.check_commands import check, compile_kernels, conformance
from hydragnn.scripts.options import Device, Values, command
from hydragnn.scripts.plan_command import plan
from hydragnn.scripts.quickstart import run_quickstart
from hydragnn.scripts.run_sources import run_folder
from hydragnn.scripts.showing import Result, leave_together, run_summary, show
from hydragnn.scripts.simulation_commands import label, md, relax

if TYPE_CHECKING:
    from hydragnn.datasets import StoreInfo

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""**HydraGNN Ensemble**: from graphs to trustworthy predictions.

    Bring graphs into a store, search for good models, run the best as one calibrated ensemble, read the report:

    `hydragnn data build` -> `hydragnn search` -> `hydragnn ensemble` -> `hydragnn predict` -> `hydragnn report`

    See it work on three scales in minutes: `hydragnn quickstart`. Every command takes `--json`.""",
)
data = typer.Typer(no_args_is_help=True, help="Make, look at, check and convert stores of graphs.")
kernels = typer.Typer(no_args_is_help=True, help="Kernels of accelerators.")
WITHOUT_TENSORS = ("doctor", "help", "simulate", "status", "--version")
"""Commands that compute with no tensors, and do not wait for torch therefore."""
FILE_SYSTEM = (EIO, ENAMETOOLONG, ENOSPC, EDQUOT, EROFS, ESTALE, ENFILE, EMFILE, ENOLCK)
"""Errors of a file system that no command can do anything about."""

SHARED = (["train"], ["predict"], ["plan"], ["data", "build"])
"""Commands whose work the ranks of a launcher share; all others are one process."""

app.add_typer(data, name="data")
app.add_typer(kernels, name="kernels")


def _print_version(version: bool) -> bool:
    if version:
        print(f"hydragnn {__version__}")
        raise typer.Exit
    return version


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options before a command."""


def explain(
    key: Annotated[str, typer.Argument(help="A key such as `train.epochs` or `cutoff`, or a section such as `split`.")],
) -> Result:
    """Explain a key of a configuration: type, default, range, unit, meaning."""
    from dataclasses import asdict

    from hydragnn.scripts.key_help import explained

    keys = explained(key)
    return Result(value=[asdict(one) for one in keys], table={}, lines=[str(one) for one in keys])


def build(values: Values, as_json: bool) -> None:
    """Make a store from files of structures, graphs, meshes or tables.

    `hydragnn data build BUILD.toml --out STORE.h5`. Sources are extended XYZ or any ASE format, JSON of pymatgen, PyTorch Geometric, npz arrays and grids, meshes, tables, networks, images of grains.

    Under `mpirun -n N`, `srun` or torchrun all ranks share the work and make the store that one process makes.
    """
    leave_together(_contents(api.build_store(**values), "attributes", "backend", "version"), as_json)


def info(values: Values, as_json: bool) -> None:
    """Return a store's fields with units, sizes, attributes and backend."""
    show(_contents(api.store_info(**values)), as_json)


def _contents(info: "StoreInfo", *hidden: str) -> Result:
    """Return contents of a store, for people without what tells nothing."""
    value = info.to_json()
    table = {key: item for key, item in value.items() if key not in hidden}
    unsaid = {"classes"} if not any(field["classes"] for field in value["fields"]) else set()
    unsaid |= {"present", "missing"} if not any(field["missing"] for field in value["fields"]) else set()
    table["fields"] = [{key: item for key, item in field.items() if key not in unsaid} for field in value["fields"]]
    return Result(value=value, table=table)


def data_check(store: Annotated[Path, typer.Argument()]) -> Result:
    """Read all of a store and report its problems.

    Checksums, indices, NaN, shifts, lengths, odd graphs. Exits with 2 where there is a problem.
    """
    check_store(store)
    from hydragnn.datasets import examine_store

    check = examine_store(store)
    table = {"store": str(store), "problems": check.problems, "notes": check.notes, "nearest": check.nearest}
    return Result(value=table, code=2 if check.problems else 0)


def data_convert(
    source: Annotated[Path, typer.Argument(help="A store.")],
    target: Annotated[Path, typer.Argument(help="The new store; .h5 for HDF5, .bp for ADIOS2.")],
) -> Any:
    """Copy a store to the other backend, bit for bit."""
    check_store(source)
    from hydragnn.datasets import convert_store

    convert_store(source, target)
    return api.store_info(target)


def train(values: Values, as_json: bool) -> None:
    """Train one model.

    Ctrl-C saves, `--resume` continues with the same bits. Runs under torchrun, mpirun or srun too.

    `hydragnn train RUN --resume` continues the run in that folder; `hydragnn train RUN/config.json --out NEW` begins another like it.
    """
    record = api.train(**values)
    place = run_folder(values["config"], values["out"])
    leave_together(run_summary(record, place), as_json, 3 if record.status == "failed" else 0)


def search(
    values: Values,
    as_json: bool,
    *,
    submit: Annotated[
        bool, typer.Option("--submit", help="Let batch jobs search, as [job] says: Slurm, PBS or Flux.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --submit: only print the batch script.")] = False,
    device: Device = "",
) -> None:
    """Search for good configurations, with early stopping, journalled and resumable.

    `hydragnn search CAMPAIGN.toml --out CAMPAIGN --workers 2`. Ctrl-C saves, `--resume` continues.
    """
    if not (submit or dry_run):
        _tell_new(values["out"], values["out"], values["resume"])
        status = api.search(**values)
        from hydragnn.hpo.status.view import status_rows

        table = {key: "\n".join(lines) for key, lines in status_rows(status).items()}
        show(Result(value=status.to_json(), table=table), as_json)
        return
    if device:
        raise InputError("--device is of this machine, and batch jobs compute on others; leave it out")
    del values["quiet"]
    overrides = [*values.pop("overrides"), *store_override(values.pop("store"))]
    submission = api.submit(**values, overrides=overrides, dry_run=dry_run)
    if dry_run and not as_json:
        print(submission.text, end="")
    else:
        show({**submission.to_json(), **({"text": submission.text} if dry_run else {})}, as_json)


def simulate(values: Values, as_json: bool) -> None:
    """Simulate a campaign on thousands of nodes: the real scheduler, with faults."""
    from hydragnn.scripts.simulated import shown

    show(shown(api.simulate(**values)), as_json)


def status(
    values: Values,
    as_json: bool,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again whenever it changed, until the end.")] = False,
) -> None:
    """Show a campaign: trials, rungs, nodes, goodput, faults, costs, budget, forecast.

    `hydragnn status CAMPAIGN --watch`. Reads the journal only: safe while the search runs, and from any machine that sees the folder. *Goodput* is the share of
    all node-hours that went into training that counts. With `--json --watch` every line is one JSON value.
    """
    campaign_table(values["campaign"])  # says what is wrong with the folder
    from hydragnn.hpo.status.view import show_status

    show_status(values["campaign"], watch=watch, as_json=as_json)


def ensemble(values: Values, as_json: bool) -> None:
    """Build one calibrated ensemble from a campaign or from runs.

    `hydragnn ensemble CAMPAIGN --top-k 5 --out E` chooses members; `hydragnn ensemble RUN RUN RUN --out E` takes all of them:
    finished runs on one store that predict the same fields. Validation graphs set their weights per field, and test graphs judge them. Potentials of others are compared by `--baseline` (docs/foreign.md). Runs that each held another fold out become one
    ensemble by cross-validation (docs/uncertainty.md). After Ctrl-C the same command begins again.
    """
    result = api.build_ensemble(**values)
    from hydragnn.scripts.report.page import summary

    show(result if as_json else summary(values["out"]), as_json)


def predict(values: Values, as_json: bool) -> None:
    """Predict every graph with uncertainty.

    `hydragnn predict ENSEMBLE new.xyz --out new.csv`. Graphs that failed have a row, too, with the reason; where all did, it exits with 3.

    Under `mpirun -n N` or `srun` all ranks share the work; after an interruption `--resume` ends with the same bits.
    """
    _tell_new(values["out"], Path(f"{values['out']}.parts"), values["resume"])
    result: Any = api.predict(**values)  # counts of the file
    if result:
        show(Result(value=result.to_json(), table=result.table()), as_json)
    from hydragnn.distributed import leave

    leave(3 if result and result.failed == result.graphs > 0 else 0)


def import_public(values: Values, as_json: bool) -> None:
    """Import checkpoints of the public HydraGNN as runs.

    Finds configuration, checkpoints and data beside each other, says which version wrote them and why, repeats the errors on the test part, and makes a
    calibrated ensemble of several. Files are read as numbers: no code in them runs.
    """
    result = api.import_public(**values)
    show(Result(value=result.to_json(), table={"out": str(result.out)}, lines=[*result.lines()]), as_json)


def _plan(values: Values, as_json: bool) -> None:
    from hydragnn.distributed import leave, this_launch

    if (result := plan(**values)) is not None and this_launch().rank == 0:
        show(result, as_json)
    leave(0)


command(app, explain, "help")
command(app, run_quickstart, "quickstart")
command(data, api.build_store, "build", build)
command(data, api.store_info, "info", info)
command(data, data_check, "check")
command(data, data_convert, "convert")
command(data, api.merge_stores, "merge")
command(data, api.append_store, "append")
command(data, label, "label", device=True)
command(app, api.import_public, "import", import_public)
command(app, api.train, "train", train, device=True)
command(app, api.search, "search", search)
command(app, api.simulate, "simulate", simulate)
command(app, api.status, "status", status)
command(app, api.build_ensemble, "ensemble", ensemble, device=True)
command(app, api.predict, "predict", predict, required=["out"], device=True)
command(app, api.export, "export", required=["to"])
command(app, api.report, "report", lambda values, as_json: show({"report": str(api.report(**values))}, as_json))
command(app, api.doctor, "doctor")
command(app, check, "check", device=True)
command(app, conformance, "conformance")
command(app, plan, "plan", _plan, device=True)
command(app, relax, "relax", device=True)
command(app, md, "md", device=True)
command(kernels, compile_kernels, "compile")


def _tell_new(out: Path, folder: Path, resume: bool) -> None:
    """Print once that there is nothing to resume in ``out``."""
    if not resume or os.path.lexists(folder) or os.path.lexists(out):  # which say no of names that cannot be
        return
    from hydragnn.distributed import this_launch

    if this_launch().rank == 0:
        print(f"nothing to resume in {out}: beginning anew", file=sys.stderr, flush=True)


def _say(sentence: str) -> None:
    with suppress(OSError):  # the code counts where a log is on a full disk
        print(visible(sentence), file=sys.stderr, flush=True)


def _exit(code: int) -> NoReturn:
    """End the process; where ranks trained together, the way that ranks leave."""
    if "hydragnn.distributed.ranks" in sys.modules:
        from hydragnn.distributed import leave

        leave(code)
    sys.exit(code)


def _be_one_process(words: list[str]) -> None:
    """End all ranks but 0 where ranks do not share work."""
    from hydragnn.distributed.launch import leave_launch, this_launch

    launch = this_launch()
    if launch.size == 1 or any(words[: len(shared)] == shared for shared in SHARED):
        return
    # one of those that leave says so for all; at a terminal there may be no rank 0
    if launch.rank < 2 or sys.stderr.isatty():
        did = "goes on, as a process alone" if launch.rank == 0 else "leaves it to rank 0, as all others do"
        _say(f"hydragnn {words[0]} is one process, and rank {launch.rank} of {launch.size} {did}; {launch.evidence}")
    if launch.rank:
        sys.exit(0)
    leave_launch()


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 2 bad input, 3 failed run or prediction, 130 Ctrl-C, 75 end of an allocation.
    """
    if len(sys.argv) > 1 and sys.argv[1] not in WITHOUT_TENSORS and "--help" not in sys.argv:
        keep_memory()
    try:
        if "" in sys.argv[1:] and sys.argv[1] != "help":  # a path without letters would be this folder
            raise InputError(
                "an argument is empty; leave it out, or look at the variable of the shell that it came from"
            )
        if len(sys.argv) > 1 and "--help" not in sys.argv:
            _be_one_process(sys.argv[1:])
        with printing():
            app()
    except InputError as error:
        if not isinstance(error, SaidByFirst):
            _say(f"error: {error}")
        _exit(error.code)
    except Interrupted as error:
        _say(f"interrupted: {error}")
        _exit(error.code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `hydragnn ... | head` is not an error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FILE_SYSTEM:
            place = f"{error.filename}: " if error.filename else ""
            _say(f"error: the file system failed: {place}{error.strerror}; see to it, then run the command again")
            _exit(InputError.code)
        if isinstance(error, RuntimeError | OSError) and wants_memory(error):  # of torch, or of the system
            _say(f"error: {NO_MEMORY}")
            _exit(2)
        sentence = None
        if "hydragnn.runs.failures" in sys.modules:
            from hydragnn.distributed import this_launch
            from hydragnn.runs.failures import of_peer

            sentence = of_peer(error) if this_launch().size > 1 else None
        if sentence is None:
            raise
        _say(f"error: {sentence}")
        _exit(3)
