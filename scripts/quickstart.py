"""Data, search, top-3 ensemble, ablation and report on three scales."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.files import check_target, read_json, read_sealed, write_sealed
from hydragnn.base.settings import read_toml
from hydragnn.base.terminal import PlainConsole
from hydragnn.scripts import api

TOP_K = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """One demonstration with its store and the fields of its ablation."""

    name: str
    description: str
    make: Callable[[Path], None]
    ablation: bool = False


def scales() -> dict[str, Scale]:
    """The three demonstrations by name; the solvers are imported only here."""
    from hydragnn.scripts.demo.alloys import make_alloys
    from hydragnn.scripts.demo.plates import make_plates
    from hydragnn.scripts.demo.polycrystals import make_polycrystals

    listed = (
        Scale(name="alloys", description="atomic: alloys, energy and forces labelled by ASE's EMT", make=make_alloys),
        Scale(
            name="polycrystals",
            description="mesoscale: conductivity and grain fluxes labelled by finite elements or volumes",
            make=make_polycrystals,
            ablation=True,
        ),
        Scale(
            name="plates", description="continuum: fields on irregular meshes labelled by scikit-fem", make=make_plates
        ),
    )
    return {scale.name: scale for scale in listed}


def run_quickstart(
    out: Annotated[Path, typer.Option("--out", help="Folder for data, campaigns, ensembles and reports.")] = Path(
        "quickstart"
    ),
    *,
    scale: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option("--scale", help="Only this scale: alloys, polycrystals or plates; repeatable."),
    ] = (),
    workers: Annotated[int, typer.Option(min=1, help="Trials at once, one thread each; no more than GPUs.")] = 2,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the demonstrations into ``out``, or resume them, and print tables."""
    from hydragnn.base.machine import visible_gpus

    selected = _select_scales(scale)
    _check_out(out)
    console = PlainConsole(quiet=quiet)
    started = perf_counter()
    most = min(workers, visible_gpus() or workers)  # each worker has a GPU of its own, where there are any
    summary = {scale.name: _one_scale(scale, out, most, console, quiet) for scale in selected}
    seconds = perf_counter() - started
    console.rule("Summary")
    for name in summary:
        _print_table(console, name, out / name / "ensemble")
    for name, result in summary.items():
        console.print(f"report ({name}): {result['report']}", soft_wrap=True)
    console.print(f"finished in {seconds / 60:.1f} minutes")
    return {"seconds": seconds, "scales": summary}


def _check_out(out: Path) -> None:
    """Raise InputError where ``out`` holds anything but what an earlier call left."""
    check_target(out, list(scales()))
    for name in scales():
        own = (f"{name}.h5", "campaign", "ensemble", "report.html", "no-edges", "no-edges-evaluation")
        check_target(out / name, own)


def _select_scales(names: Sequence[str]) -> list[Scale]:
    demonstrations = scales()
    for name in names:
        if name not in demonstrations:
            raise InputError(f"--scale {name}: no such demonstration; {nearest(name, list(demonstrations))}")
    return [demonstrations[name] for name in names or demonstrations]


def _one_scale(scale: Scale, out: Path, workers: int, console: Console, quiet: bool) -> dict[str, Any]:
    folder = out / scale.name
    store, campaign, ensemble = folder / f"{scale.name}.h5", folder / "campaign", folder / "ensemble"
    console.rule(f"{scale.name}  ({scale.description})")
    if not store.exists():
        scale.make(store)
    table = read_toml(Path(__file__).parent / "demo" / f"{scale.name}.toml")
    table["data"]["store"] = str(store.resolve())
    api.search(table, campaign, resume=campaign.exists(), workers=workers, quiet=quiet)
    if not ensemble.exists():
        api.build_ensemble(campaign, ensemble, top_k=TOP_K)
    if scale.ablation and not (ensemble / "ablation.json").exists():
        write_sealed(ensemble / "ablation.json", _without_edges(ensemble, folder / "no-edges"))
    page = api.report(ensemble, folder / "report.html")
    return {"report": str(page), "test": read_sealed(ensemble / "evaluation.json")["parts"]["test"]}


def _without_edges(ensemble: Path, run: Path) -> dict[str, Any]:
    """Train the best member's configuration on the same graphs without edges."""
    config = read_json(ensemble / "members" / "0" / "config.json")
    config["data"]["edges"] = False
    api.train(config, run, resume=run.exists())
    alone = run.with_name("no-edges-evaluation")
    if not alone.exists():
        api.build_ensemble(run, alone)
    with_edges = read_sealed(ensemble / "evaluation.json")["parts"]["test"]
    without = read_sealed(alone / "evaluation.json")["parts"]["test"]
    return {
        field: {
            "unit": metrics["unit"],
            "with_edges": metrics["members"][0]["rmse"],
            "without_edges": without[field]["members"][0]["rmse"],
            "trivial": metrics["trivial"]["rmse"],
        }
        for field, metrics in with_edges.items()
    }


def _print_table(console: Console, name: str, ensemble: Path) -> None:
    from hydragnn.scripts.report.page import summary_table

    console.print(summary_table(ensemble, title=f"{name}: mean absolute errors on the test part"))
    if (ensemble / "ablation.json").exists():
        for field, row in read_sealed(ensemble / "ablation.json").items():
            console.print(
                f"  {field}: RMSE with edges {row['with_edges']:.3g}, without edges {row['without_edges']:.3g}, "
                f"trivial predictor {row['trivial']:.3g} {row['unit']}"
            )
