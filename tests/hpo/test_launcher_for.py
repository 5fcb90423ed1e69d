"""Which launcher a campaign gets in which allocation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigns import Settings

from hydragnn.base.errors import InputError
from hydragnn.base.machine import ROOM, ProcessMachine
from hydragnn.hpo import LocalLauncher
from hydragnn.hpo.campaign import launcher_for, local_launcher, local_note
from hydragnn.hpo.launching import local
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.job_step import STEPS_AT_ONCE
from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.rank import gpu_variables
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.preflight import check_campaign, plan_on
from hydragnn.hpo.space.points import space_of


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda: 0)


def allocation(nodes: int = 4, gpus: int = 0) -> Allocation:
    return Allocation(by="slurm", nodes=alike(tuple(f"n{k}" for k in range(nodes)), 8, gpus), deadline=9.0)


MANY = {"trials": 1000, "nodes_per_trial": [2, 128]}


@pytest.mark.parametrize(
    ("search", "of", "expected"),
    [
        ({"trials_per_node": 2}, allocation(2), PackLauncher),
        ({}, allocation(STEPS_AT_ONCE), StepLauncher),
        ({}, allocation(STEPS_AT_ONCE + 1), PackLauncher),  # trials of one process, more than a job may have steps
        ({}, allocation(STEPS_AT_ONCE + 1, gpus=8), StepLauncher),
        ({"trials": 90, "nodes_per_trial": 2}, allocation(9408), StepLauncher),
        (MANY, replace(allocation(900), managed=True), StepLauncher),
        ({"workers": 3}, Allocation(by="local", nodes=alike(("here",), 4)), LocalLauncher),
        (MANY, allocation(9408), "set nodes_per_trial to at least 105"),
    ],
)
def test_a_campaign_gets_the_launcher_of_its_allocation_or_a_sentence(
    settings: Settings, tmp_path: Path, search: dict[str, Any], of: Allocation, expected: Any
) -> None:
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            launcher_for(settings(**search), of, tmp_path)
        return
    launcher = launcher_for(settings(**search), of, tmp_path)
    assert isinstance(launcher, expected)
    if search == {"trials_per_node": 2}:
        assert launcher.slots == ("n0/0", "n1/0", "n0/1", "n1/1"), "few trials spread over many nodes"
    if expected is LocalLauncher:
        assert len(launcher.slots) == 3


@pytest.mark.parametrize(
    ("search", "gpus", "devices", "sharing"),
    [
        ({"trials_per_device": 2}, 4, ["0", "1", "2", "3"] * 2, 2),
        ({"trials_per_device": 3}, 1, ["0", "0", "0"], 3),
        ({"trials_per_device": 2}, 0, [None, None], 2),
        ({"trials_per_node": 4}, 4, ["0", "1", "2", "3"], 1),
        ({"trials_per_node": 6}, 2, ["0", "1"] * 3, 3),
    ],
)
def test_trials_that_share_a_gpu_are_spread_over_all_gpus_first_and_know_how_many_share_its_memory(
    settings: Settings, tmp_path: Path, search: dict[str, int], gpus: int, devices: list[str | None], sharing: int
) -> None:
    launcher = launcher_for(settings(**search), allocation(nodes=1, gpus=gpus), tmp_path)
    assert isinstance(launcher, PackLauncher)
    parts = [int(slot.partition("/")[2]) for slot in launcher.slots]
    seen = [gpu_variables({}, part, len(parts), gpus).get("CUDA_VISIBLE_DEVICES") for part in parts]
    assert seen == devices
    task = Task(trial=0, attempt=1, until=1, folder=tmp_path, slots=launcher.slots[:1])
    assert (f'"--sharing", "{sharing}"' in launcher._request(task)) == (sharing > 1)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (
            {"trials_per_device": 4, "nodes_per_trial": 2},
            "trials_per_device = 4 gives each trial one process on a part of a GPU",
        ),
        ({"trials_per_device": 4, "ranks_per_node": 2}, "a part of a GPU; leave out nodes_per_trial, ranks_per_node"),
        ({"trials_per_device": 4, "trials_per_node": 2}, "trials_per_device = 4 gives each trial"),
        (
            {"trials_per_node": 2, "nodes_per_trial": 2},
            "trials_per_node = 2 gives each trial one process on a part of a node",
        ),
        ({"trials_per_node": 2, "ranks_per_node": 2}, "a part of a node; leave out nodes_per_trial, ranks_per_node"),
    ],
)
def test_a_part_of_a_gpu_or_a_node_is_for_one_process(settings: Settings, search: dict[str, int], words: str) -> None:
    campaign = settings(**search)
    with pytest.raises(InputError, match=words):
        check_campaign(campaign, space_of(campaign.search.space))


@pytest.mark.parametrize(
    ("search", "batch", "wanted", "slots"),
    [
        ({}, {}, None, 12),
        ({}, {"memory": ""}, None, 12),  # as complete configurations of records have it
        ({}, {"memory": "3 GB"}, None, 3),
        ({}, {}, 2, 2),
        ({"trials_per_device": 3}, {}, None, 4 * 3),
        ({"ranks_per_node": 2}, {}, None, 6),
        ({"ranks_per_node": 16}, {}, None, 1),
        ({"ranks_per_node": 4}, {}, 3, 3),
    ],
)
def test_a_search_on_auto_leaves_every_worker_its_memory_and_every_rank_its_core(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, search: dict[str, int], batch: Any, wanted: Any, slots: int
) -> None:
    machine, ranks = ProcessMachine(cores=16, memory=12 * ROOM, gpus=0), search.get("ranks_per_node", 1)
    monkeypatch.setattr("hydragnn.base.machine.this_machine", lambda: machine)
    campaign = settings(workers="auto", launcher="local", **search)
    launcher = local_launcher(replace(campaign, base={**campaign.base, "batch": batch}), wanted)
    assert (len(launcher.slots), launcher.ranks) == (slots, ranks)
    turns = "ranks take turns" in local_note(launcher, replace(machine, cores=8), chosen=False)
    assert turns == (ranks > 1 and slots * ranks > 8)
    assert plan_on(launcher, settings(nodes_per_trial=[1, 4], **search)).max_slots == 1
    launcher.close()


def test_nodes_carry_what_they_can(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (*alike(["n1"], 8, 4), *alike(["n2", "n3"], 4, 2), *alike(["n4"], 64))
    unequal = Allocation(by="slurm", nodes=nodes)
    launcher = launcher_for(settings(nodes_per_trial=[1, 2]), unequal, tmp_path)
    assert isinstance(launcher, StepLauncher) and launcher.slots == ("n1", "n2", "n3")
    assert launcher.sizes == {"n1": 1.0, "n2": 0.5, "n3": 0.5}
    said = (
        "1 node with 8 cores and 4 GPUs, 2 nodes with 4 cores and 2 GPUs; idle, having no GPU: n4; 3 slots for trials"
    )
    assert launcher.note == f"nodes differ: {said}"
    for slots, cores, gpus in ((("n1",), 8, 4), (("n1", "n2"), 4, 2), (("n2", "n3"), 4, 2)):
        step = launcher._step_on("trial-0-1", slots, ["program"])
        assert (step.cores, step.gpus, step.ranks) == (cores, gpus, gpus)
        line = Slurm().command(step)
        assert {f"--gpus-per-node={gpus}", f"--ntasks={gpus * len(slots)}", "--cpus-per-task=2"} < set(line)
    packs = launcher_for(settings(trials_per_node=4), unequal, tmp_path)
    assert isinstance(packs, PackLauncher) and packs.sizes == {}
    assert packs.slots == ("n1/0", "n2/0", "n3/0", "n1/1", "n2/1", "n3/1", "n1/2", "n1/3")
    started = list[tuple[str, ...]]()
    monkeypatch.setattr(packs, "_new_pack", started.append)
    packs._start_packs("n1")
    assert started == [("n1",), ("n2", "n3")]
