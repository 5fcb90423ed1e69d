"""The Python face: one function for each command, imported lazily as ``hydragnn.train`` and its like."""

from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn.config import AnyConfig, config_from_table
from hydragnn.errors import InputError, Interrupted, OutOfWalltime
from hydragnn.record import RunRecord
from hydragnn.settings import read_toml, with_overrides

if TYPE_CHECKING:
    from hydragnn.ensemble import Ensemble

Table = dict[str, Any]


def build_store(source: Path | str | Table, out: Path | str, *, overrides: Sequence[str] = ()) -> Table:
    """Make a store at ``out`` from a BUILD.toml (or its table); gives what ``hydragnn data info`` prints."""
    from hydragnn.datasets import build_store as build
    from hydragnn.datasets import store_info
    from hydragnn.datasets.build import read_build_settings

    table, origin = _table(source, overrides)
    build(read_build_settings(table, origin), Path(out))
    return store_info(Path(out))


def train(
    config: Path | str | Table | AnyConfig,
    out: Path | str,
    *,
    resume: bool = False,
    overrides: Sequence[str] = (),
    quiet: bool = True,
) -> RunRecord:
    """Train one model into the folder ``out``; with ``resume`` continue a run that was interrupted."""
    from hydragnn.runs import console_progress
    from hydragnn.runs import train as run

    if not isinstance(config, AnyConfig):
        config = config_from_table(*_table(config, overrides))
    return run(config, Path(out), resume=resume, progress=None if quiet else console_progress())


def search(
    campaign: Path | str | Table,
    out: Path | str,
    *,
    resume: bool = False,
    workers: int | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Table:
    """Run the campaign that a CAMPAIGN.toml (or its table) describes; gives the best trials.

    Interrupted by a signal, OutOfWalltime at the end of the allocation; InputError where no trial has a result at the end.
    """
    from hydragnn.hpo import run_campaign

    result = run_campaign(*_table(campaign, overrides), Path(out), resume=resume, workers=workers, quiet=quiet)
    done = f"{result.finished} of {result.trials} trials are done"
    if result.ending == "walltime":
        raise OutOfWalltime(f"the allocation has ended; {done}; {out} continues with --resume in a new one")
    if result.ending == "stopped":
        raise Interrupted(f"{done}; {out} continues with --resume")
    if result.best_trial is None:  # a budget of [search] is spent
        raise InputError(f"{result.summary()['ending']} ({out} has no trial with a result)")
    return result.summary()


def submit(
    campaign: Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    workers: int | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
) -> Table:
    """Submit the first of a chain of batch jobs that carry a campaign as its [job] says; gives the job and its script."""
    from time import time

    from hydragnn.hpo.submit import submit_campaign

    submission = submit_campaign(
        Path(campaign), Path(out), resume=resume, workers=workers, overrides=overrides, dry_run=dry_run, now=time()
    )
    return {**submission.summary(), "text": submission.text}


def simulate(
    campaign: Path | str | Table,
    *,
    nodes: int = 9408,
    hours: float = 6.0,
    seed: int | None = None,
    from_campaign: Path | str | None = None,
    policies: Sequence[str] = ("adaptive", "static"),
    final: int | None = None,
    assume: Sequence[str] = (),
    out: Path | str | None = None,
    overrides: Sequence[str] = (),
) -> Table:
    """Simulate a campaign on many nodes with their faults, one policy beside the other; every figure is simulated."""
    from hydragnn.scripts.simulated import run_simulation

    return run_simulation(
        *_table(campaign, overrides),
        nodes=nodes,
        hours=hours,
        seed=seed,
        recorded=Path(from_campaign) if from_campaign else None,
        policies=policies,
        final=final,
        assume=assume,
        out=Path(out) if out else None,
    )


def status(campaign: Path | str) -> Table:
    """How the campaign in a folder stands, from its journal: trials, rungs, nodes, goodput, faults, budget, forecast."""
    from hydragnn.hpo import campaign_status

    return campaign_status(Path(campaign)).to_json()


def build_ensemble(
    campaign: Path | str,
    out: Path | str,
    *,
    top_k: int = 5,
    method: str = "top-k",
    train: bool = False,
    final_seeds: int = 0,
    epochs: int | None = None,
    workers: int | None = None,
    quiet: bool = True,
    branch: str = "",
) -> Table:
    """One calibrated ensemble of the best runs of a campaign, of several branches for the one named; gives its evaluation.

    With ``train``, ``final_seeds`` or ``epochs`` the chosen configurations are first trained anew, all at once.
    """
    from hydragnn.ensemble import ensemble_from_runs
    from hydragnn.hpo import finished_runs
    from hydragnn.scripts.final import trained_ensemble

    if train or final_seeds or epochs:
        return trained_ensemble(
            Path(campaign),
            Path(out),
            top_k=top_k,
            method=method,
            seeds=max(1, final_seeds),
            epochs=epochs,
            workers=workers,
            quiet=quiet,
            branch=branch,
        )
    return ensemble_from_runs(
        finished_runs(Path(campaign)), Path(out), top_k=top_k, method=method, campaign=Path(campaign), branch=branch
    )


def predict(
    model: Path | str,
    source: Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    workers: int = 1,
    quiet: bool = True,
    branch: str = "",
) -> Table:
    """Predict every graph of ``source`` with an ensemble or run folder into the file ``out``; gives counts and speed.

    A run with several branches predicts with the one that is named, else with the one that was trained on ``source``.

    Under mpirun, srun or torchrun all ranks predict, and the one that writes the file gives the counts.
    """
    from hydragnn.ensemble import predict_to_file

    return predict_to_file(
        Path(model), Path(source), Path(out), resume=resume, workers=workers, quiet=quiet, branch=branch
    )


def report(source: Path | str, out: Path | str | None = None) -> Path:
    """Write the HTML report of a campaign, ensemble or run folder; gives its path."""
    from hydragnn.scripts.report import write_report

    return write_report(Path(source), Path(out) if out else None)


def load(folder: Path | str, branch: str = "") -> "Ensemble":
    """The ensemble in a folder, ready for ``predict``; a run folder is an ensemble of one, of several branches the one named."""
    from hydragnn.ensemble import Ensemble

    return Ensemble.load(Path(folder), branch=branch)


def run_summary(record: RunRecord, out: Path | str) -> Table:
    """A run in a few lines: how it ended, its best validation errors and the trivial predictor's."""
    errors = {name: value for name, value in record.best.items() if name.startswith("valid/")}
    return {
        "run": str(out),
        "status": record.status,
        "failure": None if record.failure is None else f"{record.failure.kind}: {record.failure.message}",
        "epochs": record.epochs,
        "parameters": record.parameters,
        **({"inputs that the model does not see": ", ".join(record.unseen_inputs)} if record.unseen_inputs else {}),
        "best epoch": record.best.get("epoch"),
        "best": errors,
        "trivial predictor": record.trivial,
        "graphs per second": record.cost.graphs_per_second,
        "seconds": record.cost.seconds,
    }


def doctor() -> Table:
    """What this machine has; a missing part is named with the way to get it, nothing fails."""
    import torch

    return {
        "hydragnn": metadata.version("hydragnn-ensemble") if _is_installed("hydragnn-ensemble") else "bare checkout",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads, distributed: {_backends(torch)}",
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "triton": _version_of("triton"),
        "mpi": _mpi(),
        "adios2": _adios2(),
        "h5py": _version_of("h5py"),
        "optuna": _version_of("optuna"),
        "scheduler": _scheduler(),
        "optional": {name: _version_of(name) for name in ("scikit-fem", "tensorboard", "optuna-dashboard")},
    }


def _table(source: Path | str | Table, overrides: Sequence[str]) -> tuple[Table, Path]:
    """The parsed table and the file that relative paths count from."""
    if isinstance(source, dict):
        return with_overrides(source, list(overrides)), Path.cwd() / "configuration"
    path = Path(source)
    return with_overrides(read_toml(path), list(overrides)), path


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _version_of(name: str) -> str:
    return metadata.version(name) if _is_installed(name) else "not installed"


def _backends(torch: Any) -> str:
    distributed = torch.distributed
    present = [n for n in ("gloo", "nccl", "mpi", "ucc") if getattr(distributed, f"is_{n}_available", bool)()]
    return ", ".join(present) or "none"


def _mpi() -> str:
    try:
        mpi = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        return f"not usable ({str(error).splitlines()[0]}); on a laptop: pip install 'hydragnn-ensemble[mpi]'"
    return str(mpi.Get_library_version()).splitlines()[0].strip("\x00 ")


def _adios2() -> str:
    try:
        adios2 = import_module("adios2")
    except ImportError as error:
        return f"not usable ({error}); pip install adios2"
    return f"{adios2.__version__}, MPI {'on' if adios2.is_built_with_mpi else 'off (one part file per writer)'}"


def _scheduler() -> str:
    from shutil import which

    schedulers = [name for name, command in (("slurm", "srun"), ("pbs", "qsub"), ("flux", "flux")) if which(command)]
    return ", ".join(schedulers) or "none: trials run as local processes"


__all__ = [
    "InputError",
    "build_ensemble",
    "build_store",
    "doctor",
    "load",
    "predict",
    "report",
    "run_summary",
    "search",
    "simulate",
    "status",
    "submit",
    "train",
]
