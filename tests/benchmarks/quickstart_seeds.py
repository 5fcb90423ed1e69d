"""Ensembles of the quickstart's scales beside their best model and their best simple predictor, over seeds.

    python -m tests.benchmarks.quickstart_seeds OUT [--scale plates] [--seeds 2 3 4] [--small]

The seed is that of data, split, weights and configurations: three of the scale's search space, trained in full. ``--small``: on 96 graphs, with 60 that validate, 24 that calibrate and 60 that test.

Printed are mean absolute errors of the test part over those of the model that is best there (with the standard error of this ratio), of the model that is best on validation graphs, and of the simple predictor that is best on the test part; and the weights.
"""

import argparse
from itertools import islice
from pathlib import Path

import numpy as np

from hydragnn.base.files import read_sealed
from hydragnn.base.settings import read_toml
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.trial_configs import valid_configs
from hydragnn.runs import train
from hydragnn.scripts import demo

SCALES = {"alloys": demo.make_alloys, "polycrystals": demo.make_polycrystals, "plates": demo.make_plates}
SMALL = {"train": 0.4, "valid": 0.25, "calibration": 0.1}


def make(scale: str, seed: int, folder: Path, small: bool) -> None:
    """Make the data, three runs and the ensemble of a scale and a seed."""
    SCALES[scale](folder / "store.h5", seed=seed, **({"samples": 240} if small else {}))
    path = Path(demo.__file__).with_name(f"{scale}.toml")
    table = read_toml(path)
    table["data"]["store"] = str(folder.resolve() / "store.h5")
    table["split"] = {**(SMALL if small else table["split"]), "seed": seed}
    settings = campaign_settings(table, path)
    for number, config in enumerate(
        islice(valid_configs(settings, space_of(settings.search.space)), 3 * seed, 3 * seed + 3)
    ):
        own = config.train.model_copy(update={"seed": 3 * seed + number})
        train(config.model_copy(update={"train": own}), folder / f"{number}")
    build_ensemble([folder / f"{number}" for number in range(3)], folder / "ensemble")


def show(folder: Path) -> None:
    """Print the ratios of every field."""
    parts, ensemble = read_sealed(folder / "ensemble" / "evaluation.json")["parts"], Ensemble.load(folder / "ensemble")
    for field, own in parts["test"].items():
        test, valid = ([one["mae"] for one in part[field]["members"][:3]] for part in (parts["test"], parts["valid"]))
        simple = [one["mae"] for one in own.get("baselines", {}).values()] or [float("nan")]
        ratios = [own["ensemble"]["mae"] / one for one in (min(test), test[valid.index(min(valid))], min(simple))]
        weights = [f"{one:.2f}" for one in ensemble.weights_of(field)]
        first, *others = (f"{one:.3f}" for one in ratios)
        error = f"({standard_error(folder, field):.3f})"
        print(folder.name, field, first, error, *others, "weights", *weights, flush=True)


def standard_error(folder: Path, field: str) -> float:
    """Return that of the ratio to the best model, over 400 bootstraps of test graphs."""
    rows, random = np.load(folder / "ensemble" / "evaluation.npz"), np.random.default_rng(0)
    target, mean, members, graph = (rows[f"test/{field}/{name}"] for name in ("target", "mean", "members", "graph"))
    _, owners = np.unique(graph, return_inverse=True)
    errors = np.array([np.bincount(owners, np.abs(one - target)) for one in (mean, *members[:3])])
    best = 1 + errors[1:].sum(axis=1).argmin()
    draws = errors[:, random.integers(0, errors.shape[1], (400, errors.shape[1]))].sum(axis=2)
    return float((draws[0] / draws[best]).std())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", nargs="+", default=list(SCALES), choices=list(SCALES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for seed in options.seeds:
        for scale in options.scale:
            folder = options.out / f"{scale}-{seed}"
            if not folder.exists():
                folder.mkdir(parents=True)
                make(scale, seed, folder, options.small)
            show(folder)
