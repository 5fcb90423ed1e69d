"""Data, search, top-3 ensemble and report on three scales."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.files import check_target, read_sealed
from hydragnn.base.settings import read_toml
from hydragnn.base.terminal import PlainConsole
from hydragnn.scripts import api
from hydragnn.scripts.showing import Result

TOP_K = 3


def scales() -> dict[str, tuple[str, Callable[[Path], None]]]:
    """Return descriptions and makers of the stores by name; solvers are imported only here."""
    from hydragnn.scripts.demo import make_alloys, make_plates, make_polycrystals

    return {
        "alloys": ("atomic: alloys, energy and forces labelled by ASE's EMT", make_alloys),
        "polycrystals": (
            "mesoscale: conductivity and grain fluxes labelled by finite elements or volumes",
            make_polycrystals,
        ),
        "plates": ("continuum: fields on irregular meshes labelled by scikit-fem", make_plates),
    }


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
) -> Result:
    """Run search, top-3 ensemble and report on demo data of three scales.

    Continues where an earlier call was interrupted.
    """
    from hydragnn.base.machine import visible_gpus
    from hydragnn.scripts.report.page import summary

    demonstrations = scales()
    for name in scale:
        if name not in demonstrations:
            raise InputError(f"--scale {name}: no such demonstration; {nearest(name, list(demonstrations))}")
    check_target(out, list(demonstrations))
    for name in demonstrations:
        check_target(out / name, (f"{name}.h5", "campaign", "ensemble", "report.html"))
    console = PlainConsole(quiet=quiet)
    started = perf_counter()
    most = min(workers, visible_gpus() or workers)  # each worker has a GPU of its own, where there are any
    results: dict[str, dict[str, Any]] = {}
    for name in scale or demonstrations:
        (description, make), folder = demonstrations[name], out / name
        store, campaign, ensemble = folder / f"{name}.h5", folder / "campaign", folder / "ensemble"
        console.rule(f"{name}  ({description})")
        if not store.exists():
            make(store)
        table = read_toml(Path(__file__).parent / "demo" / f"{name}.toml")
        table["data"]["store"] = str(store.resolve())
        api.search(table, campaign, resume=campaign.exists(), workers=most, quiet=quiet)
        if not ensemble.exists():
            api.build_ensemble(campaign, ensemble, top_k=TOP_K)
        page = api.report(ensemble, folder / "report.html")
        results[name] = {"report": str(page), "test": read_sealed(ensemble / "evaluation.json")["parts"]["test"]}
    seconds = perf_counter() - started
    lines = [f"report ({name}): {result['report']}" for name, result in results.items()]
    lines.append(f"finished in {seconds / 60:.1f} minutes")
    tables = {name: summary(out / name / "ensemble").table for name in results}
    return Result(value={"seconds": seconds, "scales": results}, table=tables, lines=lines)
