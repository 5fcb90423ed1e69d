"""A distribution of one file is trained, scored, calibrated, written and read."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.distributions import Laplace as Reference

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.graphs import Field
from hydragnn.models import Distribution, Point, Target, concatenate_distributions, load_model
from hydragnn.runs import train
from tests.forked import Forked
from tests.hydragnn.training.conftest import ENERGY, STORE, Trained, environment, make_config
from tests.laplace import Laplace, LaplaceHead
from tests.once import shared

HEAD = {"kind": "tests.laplace:LaplaceHead", "field": "charge"}


@shared
def runs(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("laplace") / f"run{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        config = make_config("schnet", [ENERGY, HEAD], data__store=str(stored), train__seed=seed)
        record = train(config, folder)
        assert record.status == "finished" and record.best is not None
        assert np.isfinite([record.best["valid/loss"], record.best["valid/charge/mae"]]).all()
    build_ensemble(folders, folders[0].with_name("ensemble"))
    return folders


@pytest.fixture
def ensemble(runs: list[Path]) -> Path:
    return runs[0].with_name("ensemble")


def test_the_loss_is_the_likelihood_per_label(runs: list[Path]) -> None:
    model, batch = load_model(runs[0] / "model", torch.float64), STORE.read(range(40))
    prediction, labels = model.predict(batch)["charge"], batch["charge"].double()
    assert isinstance(prediction, Laplace)
    expected = -Reference(prediction.mean, prediction.scale).log_prob(labels) - np.log(2)
    torch.testing.assert_close(prediction.nll(labels), expected)
    factor = torch.full((), 2.0, dtype=torch.float64)
    torch.testing.assert_close(prediction.nll(labels, factor), prediction.scale_by(1 / factor).nll(labels / factor))


def test_an_ensemble_is_the_mixture_everywhere(runs: list[Path], ensemble: Path, stored: Path, tmp_path: Path) -> None:
    batch = STORE.read(range(40))
    members = [load_model(run / "model", torch.float64).predict(batch)["charge"] for run in runs]
    mean, variance = (torch.stack([getattr(one, what) for one in members]) for what in ("mean", "variance"))
    estimate = Ensemble.load(ensemble, dtype=torch.float64).predict(batch)["charge"]
    np.testing.assert_allclose(estimate["mean"], mean.mean(0), rtol=1e-9)
    ratio = estimate["epistemic"] ** 2 / estimate["aleatoric"] ** 2
    np.testing.assert_allclose(ratio, mean.var(0, correction=0) / variance.mean(0), rtol=1e-6)
    evaluation = json.loads((ensemble / "evaluation.json").read_text())
    assert {"crps", "nll", "coverage"} <= evaluation["parts"]["valid"]["charge"]["ensemble"].keys()
    hydragnn.predict(ensemble, stored, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        for quantity in estimate.quantities:
            np.testing.assert_allclose(file[f"fields/charge/{quantity}"][:], estimate[quantity], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "ensemble.json: distribution = .*add --allow-code tests.laplace"), (["--allow-code", "tests.laplace"], "")],
)
def test_another_process_needs_its_code(
    options: list[str], words: str, ensemble: Path, stored: Path, tmp_path: Path
) -> None:
    command = ["-m", "hydragnn", "predict", str(ensemble), str(stored), "--out", str(tmp_path / "out.h5")]
    process = Forked([*command, "--workers", "2", *options], environment())
    output, _ = process.communicate(timeout=120)
    assert (process.returncode == 0) == (not words) and re.search(words, " ".join(output.split()))


def test_points_join_it() -> None:
    one = Laplace(mean=torch.ones(2), scale=torch.ones(2))
    joined = concatenate_distributions([Point(mean=torch.zeros(1)), one])
    assert joined.tensors()["variance"].tolist() == [0.0, 2.0, 2.0]


class Foreign(Distribution):
    kind = f"{__name__}:Foreign"


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (
            type("Nameless", (Laplace,), {"kind": "point"}),
            "head charge: 'point' names another distribution than Nameless",
        ),
        (Foreign, "lacks the methods blank, denormalise"),
    ],
)
def test_a_useless_distribution_is_refused(
    distribution: type[Distribution], words: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def targets(head: LaplaceHead, fields: Mapping[str, Field]) -> tuple[Target, ...]:
        return (Target(field=fields["charge"], loss="nll", distribution=distribution),)

    monkeypatch.setattr(LaplaceHead, "targets", targets)
    with pytest.raises(InputError, match=words):
        trained(heads=[ENERGY, HEAD])
