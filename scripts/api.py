"""Python api: one function per command, imported lazily as ``hydragnn.train``.

What stands in ``Annotated`` is for the command line, which takes its arguments from here (``options.command``).

Every function gives a frozen value whose fields say what they mean; ``str`` of it is one line. Nothing is printed unless
``quiet=False``: that is the command line's job.

A table or a TOML file is the user's own and may name classes as ``package.module:Name``. A folder may come from anybody: it names what
installed packages register, and classes of the modules in ``allow_code``, which stay allowed in this process.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

import typer

from hydragnn.base import places
from hydragnn.base.arguments import check_arguments
from hydragnn.base.errors import InputError, Interrupted, OutOfWalltime
from hydragnn.base.files import read_json
from hydragnn.base.imports import check_references
from hydragnn.base.machine import Workers, this_machine, workers_here
from hydragnn.base.places import as_path
from hydragnn.base.settings import Settings, read_toml, refuse_idle, store_override, with_overrides
from hydragnn.distributed.launch import this_launch
from hydragnn.record import RunRecord
from hydragnn.scripts.options import AllowCode, Branch, NewOut, Out, Overrides, Resume, Store, workers_option
from hydragnn.scripts.run_sources import CONFIG, model_folder, run_folder, run_of

if TYPE_CHECKING:
    from hydragnn.config import AnyConfig
    from hydragnn.datasets import GraphStore, StoreInfo
    from hydragnn.ensemble import Ensemble, Evaluation, ExportResult, PredictionResult, Predictions
    from hydragnn.hpo import CampaignStatus
    from hydragnn.hpo.submit import Submission
    from hydragnn.importing.page import Import
    from hydragnn.scripts.doctor import Installation
    from hydragnn.scripts.simulated import SimulationResult
else:  # for what reads annotations; the rooms are imported when a function needs them
    AnyConfig = Ensemble = GraphStore = Any

Table = dict[str, Any]


@check_arguments
def build_store(
    source: Annotated[
        Path | str | Table, Path, typer.Argument(help="BUILD.toml: which files, which fields; see docs/data.md.")
    ],
    out: NewOut,
    *,
    workers: Annotated[Workers, Any, workers_option("Processes that make graphs, on as many cores; auto: on all.")] = 1,
    overrides: Overrides = (),
    quiet: bool = False,
    data: Any = None,
) -> "StoreInfo":
    """Make a store from a BUILD.toml or its table; return its contents.

    ``data`` are graphs in memory in place of ``files``, for ``kind = "ase"``, ``"networkx"`` and ``"pyg"``: a graph, a list, a data set, a loader or a generator.

    More than one of ``workers`` are processes, so that Python's rule holds: call it under ``if __name__ == "__main__":``.
    Here as in all functions ``"auto"`` are as many as this machine has room for (here cores, without its GPUs).
    Under mpirun, srun or torchrun all ranks make the store together, and each gives what it holds.
    """
    if isinstance(source, str | Path) and this_launch().size == 1:
        places.check_exists(as_path(source))
    from hydragnn.datasets.build import build_store as build
    from hydragnn.datasets.disk import open_store
    from hydragnn.datasets.fit import precision_notes
    from hydragnn.datasets.sources.base import ObjectsBuild
    from hydragnn.datasets.sources.registry import read_build_settings
    from hydragnn.scripts.showing import graphs_made

    launch = this_launch()
    if data is not None and (workers != 1 or launch.size > 1):
        raise InputError("workers and ranks read files; build the store of data in one process")
    if launch.size > 1:
        from hydragnn.distributed.building import build_with_ranks

        with graphs_made(quiet or launch.rank > 0) as tell:
            build_with_ranks(lambda: read_build_settings(*_table(source, overrides)), as_path(out), workers, tell)
        return store_info(out)
    table, origin = _table(source, overrides)
    settings = read_build_settings(table if data is None else {**table, "files": ["data"]}, origin)
    if data is not None:
        if not isinstance(settings, ObjectsBuild):
            raise InputError(f"kind = {settings.kind!r} takes files; data are for ase, climate, networkx and pyg")
        settings = settings.of_objects(data)
    processes = replace(this_machine(), gpus=0).workers() if workers == "auto" else workers
    with graphs_made(quiet) as tell:
        if processes > 1:
            from hydragnn.distributed.building import build_with_workers

            build_with_workers(settings, as_path(out), processes, tell)
        else:
            build(settings, as_path(out), tell)
    return _noted(out, precision_notes(open_store(out)))


@check_arguments
def merge_stores(
    stores: Annotated[Sequence[Path | str], list[Path], typer.Argument(help="Stores with the same fields.")],
    out: NewOut,
) -> "StoreInfo":
    """Copy graphs of several stores into a new one; return its contents.

    A training reads several stores without a copy: ``store = ["a.h5", "b.h5"]``.
    """
    paths = [as_path(store) for store in stores] if isinstance(stores, list | tuple) else [as_path(stores)]
    for path in paths:
        places.check_store(path)
    from hydragnn.datasets.merging import merge_stores as merge

    return _noted(out, merge(paths, as_path(out)))


@check_arguments
def append_store(
    store: Annotated[Path | str, Path, typer.Argument(help="The store that grows.")],
    source: Annotated[Path | str | Table, Path, typer.Argument(help="BUILD.toml of more graphs, or another store.")],
    *,
    overrides: Overrides = (),
    quiet: bool = True,
) -> "StoreInfo":
    """Append graphs of a BUILD.toml or a store; return the contents.

    The store gets all of them, or stays as it was if the process ends before. For runs trained on it the store is another one then.
    """
    path = as_path(store)
    places.check_store(path)
    from hydragnn.datasets.merging import append_store as append
    from hydragnn.datasets.sources.registry import read_build_settings
    from hydragnn.scripts.showing import graphs_made

    other = None if isinstance(source, dict) else as_path(source)
    if other is not None and other.is_file() and other.suffix != ".toml":
        raise InputError(f"{other} is neither a store nor a BUILD.toml; write one that names this file")
    with graphs_made(quiet) as tell:
        notes = append(
            path,
            other if other is not None and places.is_store(other) else read_build_settings(*_table(source, overrides)),
            tell,
        )
    return _noted(path, notes)


@check_arguments
def store_info(store: Annotated["Path | str | GraphStore", Path, typer.Argument()]) -> "StoreInfo":
    """Return a store's fields, sizes, attributes and backend; InputError without a store."""
    place = as_path(getattr(store, "path", store))
    places.check_store(place)
    from hydragnn.datasets import store_info as info

    return info(place)


@check_arguments
def import_public(
    source: Annotated[
        Path | str, Path, typer.Argument(help="A run folder, checkpoint or folder of runs of the public HydraGNN.")
    ],
    out: Annotated[
        Path | str | None, Path | None, typer.Option("--out", help="Where runs go; NAME-imported here if absent.")
    ] = None,
    *,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Trials of a search, those of the lowest loss.", show_default="all"),
    ] = None,
) -> "Import":
    """Import models of the public HydraGNN as runs.

    Of a search, ``top_k`` takes the trials with the lowest validation loss. Several with data beside them become a calibrated ensemble in ``OUT/ensemble``. InputError where no model can be read: nothing is written then.
    """
    from hydragnn.importing.page import import_folder

    place = as_path(source)
    return import_folder(place, as_path(out) if out else Path(f"{place.resolve().stem}-imported"), top_k)


@check_arguments
def train(
    config: Annotated[
        "Path | str | Table | AnyConfig",
        Path,
        typer.Argument(
            help="CONFIG.toml; sections data, split, batch, model, heads, train; or branches. Or a run folder, or its config.json."
        ),
    ],
    out: Annotated[
        Path | str | None,
        Path | None,
        typer.Option(
            "--out", help="Where the run goes; must not exist yet, unless resuming. A run folder resumes in itself."
        ),
    ] = None,
    *,
    resume: Resume = False,
    overrides: Overrides = (),
    memory: Annotated[
        str | None,
        typer.Option(help='Memory of a rank, such as "4 GB"; larger batches are computed in parts (batch.memory).'),
    ] = None,
    quiet: bool = True,
    callbacks: Sequence[Any] = (),
    allow_code: AllowCode = (),
) -> RunRecord:
    """Train one model into the folder ``out``, or resume an interrupted run.

    ``config`` may be the folder of a run, which resumes there, or its ``config.json``.

    ``memory`` (``"4 GB"``) is what a rank may take; it goes before ``batch.memory`` of the configuration. ``callbacks`` are
    ``TrainingCallback`` objects, or functions of the run that are called after every epoch, beside those of the configuration.
    """
    source = config
    if not isinstance(config, Settings):
        own = run_of(config)
        table, path = _table(config if own is None else own / CONFIG, overrides)
        if "search" in table:
            raise InputError(
                f"{path} has a section [search], which makes it a campaign; start it with hydragnn search {path} --out CAMPAIGN, or "
                "train one configuration: a file without [search] and [job]"
            )
        if this_launch().size == 1:
            places.check_stores(table, path)  # needs no torch, which takes seconds to load
    from hydragnn.callbacks import as_callback
    from hydragnn.config import config_from_table
    from hydragnn.runs import Progress
    from hydragnn.runs import train as run

    if not isinstance(config, Settings):
        config = config_from_table(table, path, stored=own is not None)
    place = run_folder(source, out, resume=resume)
    return run(
        config,
        place,
        resume=resume,
        memory=memory,
        progress=None if quiet else Progress(),
        callbacks=[as_callback(one) for one in callbacks],
    )


@check_arguments
def search(
    campaign: Annotated[
        Path | str | Table, Path, typer.Argument(help="CAMPAIGN.toml: the sections of CONFIG.toml plus [search].")
    ],
    out: Out,
    *,
    resume: Resume = False,
    workers: Annotated[
        Workers | None,
        Any,
        workers_option(
            "Trials at once, one thread and at most one GPU each (times search.trials_per_device); "
            "auto: as many as this machine's GPUs, or cores, and memory are enough for."
        ),
    ] = None,
    overrides: Overrides = (),
    quiet: bool = True,
    store: Store = None,
    callback: Any = None,
    allow_code: AllowCode = (),
) -> "CampaignStatus":
    """Run the campaign of a CAMPAIGN.toml or its table; return its status.

    ``store`` is where its data lie now, instead of where the table says. ``callback`` is called with the status after trials
    had new results or failed.

    Interrupted by a signal, OutOfWalltime at the end of the allocation; InputError where no trial has a result at the end.
    """
    if callback is not None and not callable(callback):
        raise InputError(f"callback = {callback!r:.60} cannot be called; give a function of the status")
    table, origin = _table(campaign, [*overrides, *store_override(store)])
    if not resume:
        places.check_stores(table, origin)
    from hydragnn.hpo import CampaignView, campaign_settings, run_search
    from hydragnn.hpo.status.facts import ENDINGS

    settings, folder = campaign_settings(table, origin), as_path(out)
    note = None if quiet else partial(print, file=sys.stderr, flush=True)
    with CampaignView(folder, quiet=quiet, callback=callback) as view:
        status = run_search(settings, folder, resume=resume, workers=workers, on_event=view, on_note=note)
    outcome = f"{status.trials['finished']} of {sum(status.trials.values())} trials are done"
    if status.status == "walltime":
        raise OutOfWalltime(f"the allocation has ended; {outcome}; {out} continues with --resume in a new one")
    if status.status == "stopped":
        raise Interrupted(f"{outcome}; {out} continues with --resume")
    if status.best is None:  # a budget of [search] is spent
        raise InputError(f"{ENDINGS[status.status]} ({out} has no trial with a result)")
    return status


@check_arguments
def submit(
    campaign: Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    allow_code: Sequence[str] = (),
) -> "Submission":
    """Submit the first batch job of a campaign; return job and script."""
    from hydragnn.hpo.submit import submit_campaign

    return submit_campaign(
        as_path(campaign), as_path(out), resume=resume, workers=workers, overrides=overrides, dry_run=dry_run
    )


@check_arguments
def simulate(
    campaign: Annotated[Path | str | Table, Path, typer.Argument(help="CAMPAIGN.toml, as for `hydragnn search`.")],
    *,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the machine.")] = 9408,
    hours: Annotated[float | None, typer.Option(min=0.01, help="Allocated hours.", show_default="6")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of faults and trials; search.seed if absent.")] = None,
    final: Annotated[
        int | None, typer.Option(min=1, help="Instead of the search: the final training of so many configurations.")
    ] = None,
    assume: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Change an assumption, e.g. `node_mtbf_hours=5000`; docs/simulate.md."),
    ] = (),
    allow_code: AllowCode = (),
    overrides: Overrides = (),
) -> "SimulationResult":
    """Simulate a campaign on many nodes with faults.

    It lasts 6 ``hours``; a ``final`` training lasts until it is done.
    """
    from hydragnn.hpo.settings import campaign_settings
    from hydragnn.hpo.simulation import Assumptions, scenario_of
    from hydragnn.scripts.simulated import simulation_of

    if final is not None and hours is not None:
        raise InputError(
            "hours are those of a search, and a final training is simulated to its end; leave them out, or final"
        )
    settings = campaign_settings(*_table(campaign, overrides))
    table = with_overrides({}, assume, option="--assume", example="node_mtbf_hours=5000")
    refuse_idle(assumptions := Assumptions.parse(table, source="--assume"), "--assume")
    seed = settings.search.seed if seed is None else seed
    scenario = scenario_of(settings, assumptions, nodes=nodes, seed=seed)
    return simulation_of(scenario, 6.0 if hours is None else hours, final)


@check_arguments
def status(
    campaign: Annotated[Path | str, Path, typer.Argument(help="A campaign folder made by `hydragnn search`.")],
) -> "CampaignStatus":
    """Return the state of a campaign from its journal."""
    from hydragnn.hpo.status import campaign_status

    return campaign_status(as_path(campaign))


@check_arguments
def build_ensemble(
    source: Annotated[
        Path | str | Sequence[Path | str],
        list[Path],
        typer.Argument(
            metavar="CAMPAIGN | RUN...",
            help="A campaign folder made by `hydragnn search`, or finished run folders made by `hydragnn train`.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | str, Path, typer.Option("--out", help="Folder of the ensemble; must not exist yet.")],
    *,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Number of members of a campaign; given runs are all.", show_default="5"),
    ] = None,
    from_front: Annotated[
        bool, typer.Option("--from-front", help="Members are trials of the front of several objectives.")
    ] = False,
    at_most: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option(
            "--at-most", metavar="OBJECTIVE=NUMBER", help="With --from-front: a bound, such as cost/ms_per_graph=2."
        ),
    ] = (),
    train: Annotated[
        bool,
        typer.Option("--train", help="Train the chosen configurations anew to the full budget, as one balanced job."),
    ] = False,
    final_seeds: Annotated[
        int, typer.Option(min=0, help="As --train, every configuration with so many seeds; 0 keeps the trials.")
    ] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="As --train, for so many epochs.")] = None,
    workers: Annotated[
        Workers | None, Any, workers_option("With --train: runs at once, one thread each, or auto.")
    ] = None,
    quiet: bool = True,
    false_alarms: Annotated[
        float, typer.Option(help="Share of graphs like those of training that may be flagged as unlike them.")
    ] = 0.02,
    baselines: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="MODULE:NAME",
            help="A function that returns a calculator of ASE, which the report compares; --allow-code.",
        ),
    ] = (),
    branch: Branch = "",
    store: Store = None,
    allow_code: AllowCode = (),
) -> "Evaluation":
    """Build a calibrated ensemble from a campaign or from finished runs.

    Gives its evaluation. Of a campaign ``top_k`` (5) best trials are chosen, or with ``from_front`` those of the front of several
    objectives, all or ``top_k``, within bounds such as ``"cost/ms_per_graph=2"`` (``at_most``); with ``train``, ``final_seeds`` or
    ``epochs`` they are first trained anew, all at once. Given runs all become members, and none of
    these means anything: InputError. So it is for runs that did not finish or do not fit together. Interrupted by a signal.
    Validation graphs set weights of members per field; ``false_alarms`` is about the domain (docs/domain.md). With ``store``, where the
    data of the runs lie now, their configurations name this place. ``baselines`` names functions ``package.module:name`` that return
    calculators of ASE (docs/foreign.md), which are evaluated beside the simple predictors; their modules are in ``allow_code``.
    """
    sources = [as_path(one) for one in source] if isinstance(source, list | tuple) else [as_path(source)]
    for one in sources:
        places.check_kind(one, "a campaign", "a run")
    from hydragnn.ensemble import build_ensemble as ensemble_of_runs
    from hydragnn.ensemble.building.build import check_out
    from hydragnn.hpo import campaign_records
    from hydragnn.runs.folder import name_store
    from hydragnn.scripts.ensembles import bounds_from, campaign_or_runs, members_of

    check_references(baselines)
    campaign = campaign_or_runs(sources)
    check_out(as_path(out))
    if store is not None:
        runs = campaign if isinstance(campaign, list) else [folder for _, _, folder in campaign_records(campaign)]
        name_store(runs, as_path(store), branch)
    training: Table = {"train": train, "seeds": final_seeds, "epochs": epochs, "workers": workers}
    training |= {"from_front": from_front, "at_most": bounds_from(at_most)}
    choice = members_of(campaign, as_path(out), top_k, quiet, **training)
    return ensemble_of_runs(
        choice.folders,
        as_path(out),
        by_field=True,
        selection=choice.selection,
        branch=branch,
        false_alarms=false_alarms,
        baselines=baselines,
    )


@overload
def predict(
    model: "Path | str | Ensemble", source: Any, out: None = None, *, branch: str = "", allow_code: Sequence[str] = ()
) -> "Predictions": ...


@overload
def predict(
    model: Path | str,
    source: "Path | str | Sequence[Path | str] | GraphStore",
    out: Path | str,
    *,
    resume: bool = False,
    workers: Workers = 1,
    quiet: bool = True,
    branch: str = "",
    keep_parts: bool = False,
    graph_ranks: int = 1,
    allow_code: Sequence[str] = (),
) -> "PredictionResult | None": ...


@check_arguments
def predict(
    model: Annotated[
        "Path | str | Ensemble", Path, typer.Argument(help="An ensemble, run or campaign folder (its best trial).")
    ],
    source: Annotated[
        Any,
        list[Path],
        typer.Argument(
            help="A store, or files like those of training, structures that ASE reads, a BUILD.toml, a folder, a pattern."
        ),
    ],
    out: Annotated[
        Path | str | None, Path, typer.Option("--out", help="Predictions: .h5, .csv, .parquet or .xyz.")
    ] = None,
    *,
    resume: Resume = False,
    workers: Annotated[
        Workers, Any, workers_option("Local processes, or auto; mpirun, srun and torchrun bring their own.")
    ] = 1,
    quiet: bool = True,
    branch: Branch = "",
    keep_parts: Annotated[
        bool, typer.Option("--parts", help="Keep part files in OUT.parts; the .h5 file is a view.")
    ] = False,
    graph_ranks: Annotated[
        int, typer.Option(help="Ranks that share every batch, for graphs that exceed one device.")
    ] = 1,
    allow_code: AllowCode = (),
) -> "PredictionResult | Predictions | None":
    """Predict every graph of ``source``, into the file ``out`` or in memory.

    ``source`` is a store, a file that becomes graphs as those of training did (labels need not be there), any file of
    structures that ASE reads, a BUILD.toml, a folder or pattern of such files, or a list of paths. Without ``out`` it may also be what a model takes (atoms, graphs, ``Data`` of
    torch_geometric, lists of them), and the predictions come back; a file gives counts and speed.

    A run with several branches predicts with the one that is named, else with the one that was trained on ``source``.
    With ``keep_parts`` the part files stay in ``OUT.parts`` and ``out``, an .h5 file, is a view of them.

    Under mpirun, srun or torchrun all ranks predict; the one that writes the file gives the result, the others None. With ``graph_ranks`` so many of
    them share every batch (docs/predict.md).
    """
    if out is None:
        if resume or keep_parts or workers != 1 or graph_ranks != 1:
            raise InputError(
                "resume, workers, keep_parts and graph_ranks are about a file; name it (out=), or leave them out"
            )
        return _predict_in_memory(model, source, branch)
    place = getattr(source, "path", source)  # of a store
    for what, value in {"model": model, "source": place}.items():
        if not isinstance(value, str | PathLike) and not (what == "source" and _are_paths(value)):
            problem = f"{what}: a {type(value).__name__} in memory is predicted in memory"
            raise InputError(f"{problem}; leave out= away, or give the path of a {what}")
    folder = as_path(model)
    alone = this_launch().size == 1
    with nullcontext() if alone else suppress(InputError):  # of which rank 0 tells
        folder = model_folder(folder)
    if alone:
        places.check_suffix(as_path(out))
        places.source_paths(place)
    from hydragnn.ensemble import predict_to_file

    processes = workers_here(workers)
    return predict_to_file(
        folder,
        place,
        as_path(out),
        resume=resume,
        workers=processes,
        keep_parts=keep_parts,
        quiet=quiet,
        branch=branch,
        graph_ranks=graph_ranks,
    )


def _predict_in_memory(model: Any, source: Any, branch: str) -> "Predictions":
    from hydragnn.datasets import open_store
    from hydragnn.ensemble import Ensemble
    from hydragnn.ensemble.prediction.job import branch_for
    from hydragnn.ensemble.prediction.rules import rules_for

    paths = places.source_paths(source) if isinstance(source, str | PathLike) or _are_paths(source) else []
    if not isinstance(model, Ensemble):
        folder = model_folder(as_path(model))
        model = load(folder, branch_for(folder, paths, branch) if paths else branch)
    if not paths or places.is_store(paths[0]):
        return model.predict(open_store(paths) if paths else source)
    rules = rules_for(paths, model)
    return model.predict_made(make for rule in rules for block in rule.blocks() for make in rule.makers(block))


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(one, str | PathLike) for one in source)


@check_arguments
def report(
    source: Annotated[Path | str, Path, typer.Argument(help="A campaign, ensemble or run folder.")],
    out: Annotated[
        Path | str | None, Path | None, typer.Option("--out", help="The HTML file; SOURCE/report.html if absent.")
    ] = None,
    *,
    store: Store = None,
    allow_code: AllowCode = (),
) -> Path:
    """Write a report as one self-contained HTML page; return its path.

    `hydragnn report ENSEMBLE` shows data, search, members, errors, calibration, worst cases, and how to repeat it. Other graphs in ``store`` are refused.
    """
    place = as_path(source)
    place = own if ((own := place / "ensemble") / "import.json").is_file() else place  # of imported runs
    places.check_kind(place, *places.MADE_BY)
    from hydragnn.scripts.report import write_report

    return write_report(place, as_path(out) if out else None, store=as_path(store) if store else None)


@check_arguments
def load(path: Path | str, branch: str = "", *, allow_code: Sequence[str] = ()) -> "Ensemble":
    """Load a model, which predicts and can be trained.

    ``path`` is the folder of an ensemble, of a run or of its model, or of a campaign, of which the best trial is loaded. A run is an ensemble of one.
    InputError for anything else.
    """
    folder = model_folder(as_path(path))
    from hydragnn.ensemble import Ensemble

    return Ensemble.load(folder, branch=branch)


@check_arguments
def save(module: Any, out: Path | str, *, data: Path | str | None = None) -> RunRecord:
    """Write a module of your own loop as a run folder.

    ``module`` is what ``load(RUN).trainable()`` gave. Fields, normalisation and configuration are those of that run. Errors are measured on
    the validation part of its store, or of ``data``. Ensembles, prediction, calculators, exports and fine-tuning take the folder.
    InputError for modules of several runs, for weights that are not finite, and for an ``out`` that holds something.
    """
    from hydragnn.ensemble.uses.outside import save_outside

    return save_outside(module, as_path(out), None if data is None else as_path(data))


@check_arguments
def export(
    model: Annotated[
        "Path | str | Ensemble",
        Path,
        typer.Argument(help="An ensemble, run or campaign folder with an energy of atoms."),
    ],
    out: Annotated[
        Path | str,
        Path,
        typer.Option("--out", help="File: .pt2 of torch and aoti, .pt of metatomic; a folder of lammps."),
    ],
    to: Annotated[str, Literal["torch", "aoti", "metatomic", "lammps"], typer.Option(help="Format.")] = "torch",
    *,
    branch: Branch = "",
    allow_code: AllowCode = (),
) -> "ExportResult":
    """Write a model as a file that other programs run without this project.

    ``hydragnn export ENSEMBLE --to torch --out potential.pt2``

    Energy, forces, stress and the spread of the members. docs/export.md has what each format is for. ``model`` is what ``load``
    takes, or gives. InputError where the model cannot be such a file.
    """
    from hydragnn.ensemble import Ensemble, export_ensemble

    return export_ensemble(model if isinstance(model, Ensemble) else load(model, branch), as_path(out), to)


@check_arguments
def evaluate(
    ensemble: "Path | str | Ensemble", store: "Path | str | GraphStore", *, allow_code: Sequence[str] = ()
) -> "Evaluation":
    """Evaluate an ensemble on the labelled graphs of a store.

    InputError where the store lacks an input or a label. The trivial predictor is not asked: it belongs to training data.
    """
    from hydragnn.datasets import is_graph_store, open_store
    from hydragnn.ensemble import Ensemble, evaluate_ensemble

    model = ensemble if isinstance(ensemble, Ensemble) else load(ensemble)
    return evaluate_ensemble(model, store if is_graph_store(store) else open_store(store))


def doctor() -> "Installation":
    """Return packages, MPI, GPUs, Triton, ADIOS2 and scheduler of this machine."""
    from hydragnn.scripts.doctor import installation

    return installation()


def _noted(store: Path | str, notes: Iterable[str]) -> "StoreInfo":
    """Return the contents of a store with further notes."""
    info = store_info(store)
    return replace(info, notes=(*info.notes, *notes))


def _table(source: Path | str | Table, overrides: Sequence[str]) -> tuple[Table, Path]:
    """The parsed table and the file that relative paths count from."""
    if isinstance(source, dict):
        return with_overrides(source, list(overrides)), Path.cwd() / "configuration"
    path = as_path(source)
    if path.name == CONFIG:
        return with_overrides(read_json(path), list(overrides), own=False), path
    return with_overrides(read_toml(path), list(overrides)), path
