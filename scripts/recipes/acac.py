"""Acetylacetone: energy and forces, trained at 300 K.

Tested at 300 K and, out of distribution, at 600 K.
"""

import tomllib
from pathlib import Path
from typing import Any

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.ensemble import build_ensemble
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import train_recipe

MEMBERS = 3
GOALS = {"300K": {"energy": 5.0, "forces": 32.0}, "600K": {"energy": 25.0, "forces": 100.0}}
MACE = {"300K": {"energy": 0.9, "forces": 5.1}, "600K": {"energy": 4.6, "forces": 22.4}}  # arXiv:2206.07697, table 3
UNITS = {"energy": "meV", "forces": "meV/A"}


def run(data: Path, out: Path, epochs: int | None) -> None:
    """Stores, three members from three seeds, one ensemble, and its errors at both temperatures."""
    stores = {kelvin: _store(data, out, kelvin) for kelvin in ("300K", "600K")}
    runs = [out / "members" / str(seed) for seed in range(MEMBERS)]
    records = [
        train_recipe("acac", stores["300K"], folder, f"train.seed={seed}", epochs=epochs)
        for seed, folder in enumerate(runs)
    ]
    ensemble = out / "ensemble"
    if not ensemble.exists():
        build_ensemble(runs, ensemble, others={"600K": open_store(stores["600K"])})
    parts = evaluation_of(ensemble)["parts"]
    figures = [*_errors("300K", parts["test"]), *_errors("600K", parts["600K"]), *_honesty(parts)]
    show_figures("acac", figures, records, out, epochs=epochs)
    hydragnn.report(ensemble, out / "report.html")


def _store(data: Path, out: Path, kelvin: str) -> Path:
    """The frames at one temperature as a store: `hydragnn data build acac-build.toml` says the same."""
    store = out / f"acac-{kelvin}.h5"
    if not store.exists():
        table = tomllib.loads(Path(__file__).with_name("acac-build.toml").read_text())
        hydragnn.build_store({**table, "files": [str((data / f"train_{kelvin}.xyz.gz").resolve())]}, store)
    return store


def _errors(kelvin: str, part: dict[str, Any]) -> list[Figure]:
    """The first member's and the ensemble's RMSE; the promise is the single model's."""
    figures = []
    for field, unit in UNITS.items():
        beside = f"trivial {1e3 * part[field]['trivial']['rmse']:.4g}; MACE on a GPU {MACE[kelvin][field]}"
        one, all_of_them = 1e3 * part[field]["members"][0]["rmse"], 1e3 * part[field]["ensemble"]["rmse"]
        figures.append(
            Figure(
                what=f"{kelvin} {field} RMSE, one model",
                value=one,
                unit=unit,
                goal=GOALS[kelvin][field],
                beside=beside,
            )
        )
        figures.append(Figure(what=f"{kelvin} {field} RMSE, ensemble", value=all_of_them, unit=unit))
    return figures


def _honesty(parts: dict[str, Any]) -> list[Figure]:
    """Return what the ensemble adds: error, spread and intervals."""
    figures = []
    for name, part in (("300K", parts["test"]), ("600K", parts["600K"])):
        forces = part["forces"]
        best = min(member["rmse"] for member in forces["members"])
        gain = 100 * (1 - forces["ensemble"]["rmse"] / best)
        figures.append(
            Figure(what=f"{name} force RMSE below the best member's", value=gain, unit="%", goal=8.0, at_least=True)
        )
        spearman = forces["ensemble"]["spearman"]
        figures.append(
            Figure(what=f"{name} Spearman of force spread and error", value=spearman, unit="", goal=0.5, at_least=True)
        )
    for field in UNITS:
        inside, outside = (100 * parts[part][field]["ensemble"]["coverage"] for part in ("test", "600K"))
        floor = 87.0 if field == "forces" else None
        figures.append(
            Figure(
                what=f"300K {field} coverage (90 nominal, 87 to 93)", value=inside, unit="%", goal=floor, at_least=True
            )
        )
        low = 82.0 if field == "forces" else None
        figures.append(Figure(what=f"600K {field} coverage", value=outside, unit="%", goal=low, at_least=True))
    return figures
