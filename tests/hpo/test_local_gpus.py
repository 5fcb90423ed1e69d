"""Workers of one machine and its GPUs: one each, counted through the one function that counts devices."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from polling import ends, reports_until

from hydragnn.base.errors import InputError
from hydragnn.hpo import CampaignSettings, campaign
from hydragnn.hpo.campaign import launcher_of
from hydragnn.hpo.launching import local
from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.local import gpus_of_workers, own_gpus

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
SAYS = """import os, pathlib, sys
shared = sys.argv[sys.argv.index("--sharing") :] if "--sharing" in sys.argv else []
pathlib.Path(sys.argv[1], "gpu").write_text(" ".join([os.environ.get("CUDA_VISIBLE_DEVICES", "any"), *shared]))
"""
"""A training that notes which GPU it would use, and its options."""

Machine = Callable[..., None]
REAL = local.LocalLauncher


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this machine one of so many NVIDIA GPUs whose environment has no other variables than these."""

    def make(gpus: int, **environment: str) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(local.torch.version, "hip", None)

    return make


@pytest.mark.parametrize(
    ("gpus", "environment", "workers", "devices"),
    [
        (4, {}, 4, ["0", "1", "2", "3"]),
        (4, {}, 2, ["0", "1"]),
        (3, {"CUDA_VISIBLE_DEVICES": "6, GPU-b,MIG-c", "SLURM_JOB_ID": "7"}, 3, ["6", "GPU-b", "MIG-c"]),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, 3, [None] * 3),
    ],
    ids=["each", "some", "narrowed already", "no GPU"],
)
def test_each_worker_sees_one_gpu_that_no_other_sees(
    machine: Machine, gpus: int, environment: dict[str, str], workers: int, devices: list[str | None]
) -> None:
    machine(gpus, **environment)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in gpus_of_workers(workers)] == devices


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, {"ROCR_VISIBLE_DEVICES": "5"}),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "0,2"}, {"HIP_VISIBLE_DEVICES": "2"}),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {"CUDA_VISIBLE_DEVICES": "3"}),
    ],
    ids=["nothing is narrowed", "by the runtime", "twice", "as on NVIDIA"],
)
def test_on_amd_the_variable_that_narrows_last_names_the_gpu(
    environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert own_gpus(environment, 1, on_amd=True) == expected


@pytest.mark.parametrize("workers", [None, 3], ids=["of the campaign", "of the command line"])
def test_more_workers_than_gpus_are_refused_with_the_ways_out(
    machine: Machine, settings: Callable[..., CampaignSettings], tmp_path: Path, workers: int | None
) -> None:
    machine(2)
    with pytest.raises(
        InputError, match=r"3 workers, but .* 2 GPU.*at most 2 .*trials_per_device.*export CUDA_VISIBLE_DEVICES="
    ):
        launcher_of(settings(workers=3, launcher="local"), tmp_path, workers)


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        (1, ["5", "7", "5", "7"]),
        (2, ["5 --sharing 2", "7 --sharing 2", "5 --sharing 2", "7 --sharing 2"]),
        (3, ["5 --sharing 3", "7 --sharing 3"] * 3),
    ],
)
def test_trials_at_once_run_on_different_gpus_or_share_one_and_the_next_trial_of_a_worker_runs_on_its_own(
    machine: Machine,
    settings: Callable[..., CampaignSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sharing: int,
    expected: list[str],
) -> None:
    machine(2, CUDA_VISIBLE_DEVICES="5,7", PYTHONPATH=str(tmp_path))
    (tmp_path / "noting").mkdir()
    (tmp_path / "noting" / "__init__.py").touch()
    (tmp_path / "noting" / "training.py").write_text(SAYS)
    monkeypatch.setattr(
        campaign, "LocalLauncher", lambda *words, **named: REAL(*words, module="noting.training", **named)
    )
    launcher = launcher_of(settings(launcher="local", trials_per_device=sharing), tmp_path, 2)
    at_once = len(launcher.slots)
    assert at_once == 2 * sharing
    folders = [tmp_path / str(number) for number in range(len(expected))]
    try:
        for first in range(0, len(expected), at_once):
            for number, slot in enumerate(launcher.slots):
                folders[first + number].mkdir()
                task = Task(trial=first + number, attempt=1, until=1, folder=folders[first + number], slots=(slot,))
                launcher.start(task)
            ended = ends(reports_until(launcher, lambda found: len(ends(found)) == at_once))
            assert {end.code for end in ended} == {0}
    finally:
        launcher.close()
    assert [(folder / "gpu").read_text() for folder in folders] == expected
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"
