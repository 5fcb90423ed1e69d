"""The simulator keeps its books, is a function of its seed, and drives the real scheduler through storms of faults."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import tomli_w
from campaigns import campaign_table
from clockwork import CALM, LawfulCampaign
from typer.testing import CliRunner

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.hpo.scheduling.events import Cancel, Failed, Launched, Plan, Progressed, Reached, Start, Tick
from hydragnn.hpo.simulation import Assumptions, Course, Scenario, figures_of, final_scenario
from hydragnn.hpo.simulation.courses import drawn_courses
from hydragnn.hpo.simulation.figures import campaign_figures
from hydragnn.hpo.simulation.machine import fate_of, node_faults
from hydragnn.hpo.simulation.world import World
from hydragnn.scripts.cli import app

STORM = Assumptions(
    median_node_hours=0.5,
    node_mtbf_hours=60,
    launch_failure=0.1,
    black_holes=0.02,
    hangs=20,
    preemptions=400,
    stragglers=0.1,
    walltime_hours=2,
    best_of=10,
)
"""A machine on which something fails all the time."""


def scenario(assumptions: Assumptions, *, nodes: int = 64, seed: int = 1, **plan: Any) -> Scenario:
    asked = {"trials": 10_000, "rungs": (2, 6, 18), "retries": 8, "max_slots": 8, **plan}
    return Scenario(
        plan=Plan(**asked),
        course_of=drawn_courses(assumptions, asked["rungs"][-1], seed),
        assumptions=assumptions,
        nodes=nodes,
        shares=1,
        seed=seed,
        hang_seconds=300.0,
    )


def test_equal_seeds_give_equal_figures_and_other_seeds_others() -> None:
    machines = (scenario(STORM, nodes=16, seed=seed) for seed in (1, 1, 2))
    first, again, other = (figures_of(machine, 0.7) for machine in machines)
    assert first.to_json() == again.to_json() != other.to_json()


def test_on_a_perfect_machine_only_the_end_is_idle() -> None:
    result = figures_of(scenario(CALM, nodes=8, max_slots=1), 4.0)
    assert all(
        hours < 1e-6
        for cause, hours in result.node_hours.items()
        if cause not in ("useful", "idle", "start-up and saving")
    )
    assert result.goodput > 0.98
    assert result.faults == {}


TROUBLED: dict[str, dict[str, float]] = {
    "cabinets": {"cabinet_minutes": 10, "cabinet_nodes": 16},
    "a storm": {"storm_minutes": 10, "storm_first_hours": 0.5},
    "a storm at the beginning": {"storm_minutes": 10, "storm_first_hours": 0.0},
    "nodes that fail late": {"late_failures": 0.03},
}
MACHINES: dict[str, Scenario] = {
    f"{name}, reduction {reduction}": scenario(
        machine.model_copy(update={"median_node_hours": 0.5, "walltime_hours": 0.4}), nodes=16, reduction=reduction
    )
    for name, machine in (("calm", CALM), ("everything", STORM))
    for reduction in (3, 1)
} | {
    name: scenario(Assumptions(median_node_hours=1.0, best_of=1).model_copy(update=troubles), nodes=96, retries=3)
    for name, troubles in TROUBLED.items()
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_node_hour_is_accounted_for_once_and_no_trial_is_lost(name: str) -> None:
    campaign = LawfulCampaign(MACHINES[name])
    campaign.run(1.0 if name in TROUBLED else 0.7)
    result = campaign_figures(campaign, math.inf)
    assert sum(result.node_hours.values()) == pytest.approx(MACHINES[name].nodes * result.hours)
    assert all(hours >= -1e-6 for hours in result.node_hours.values()), result.node_hours
    assert result.goodput <= result.utilisation + 1e-9 <= 1 + 2e-9
    assert (result.lost, result.finished > 0) == (0, True)


def test_on_slow_nodes_everything_takes_longer() -> None:
    world = lone_world(CALM.model_copy(update={"slow_nodes": 0.5, "slow_after_hours": 0.1}))
    for trial in range(2):
        world.start(start(trial=trial, slots=(f"n{trial}",)))
    ends = [until(world, Reached) and world.now for _ in range(2)]
    assert ends == pytest.approx([1000, 360 + 3 * 640])
    assert world.ledger.wasted["start-up and saving"] == pytest.approx(2 * 640)


def test_a_campaign_goes_on_in_the_next_allocation_until_its_trials_are_done() -> None:
    storm = STORM.model_copy(update={"walltime_hours": 0.25})
    campaign = LawfulCampaign(replace(scenario(storm, nodes=8), plan=Plan(trials=20, rungs=(3, 9))))
    campaign.run(100.0)
    assert campaign.state.ending == "finished"
    result = campaign_figures(campaign, math.inf)
    assert result.trials == 20 == result.finished + result.pruned + result.failed + result.lost
    assert result.hours < 100


def test_a_budget_of_node_hours_is_used_and_not_overrun() -> None:
    plan = Plan(trials=1000, rungs=(2, 6, 18), max_node_seconds=16 * 3600 * 1.0)
    campaign = LawfulCampaign(replace(scenario(STORM, nodes=16), plan=plan))
    campaign.run(6.0)
    assert campaign.state.ending == "node_hours"
    assert 0.9 < campaign.world.now / 3600 <= 1.0


def test_nodes_fail_at_the_stated_rate() -> None:
    assumptions = Assumptions(node_mtbf_hours=23520)
    times = [next(node_faults(assumptions, 9408, seed, 0)).time for seed in range(4000)]
    assert fmean(times) / 3600 == pytest.approx(2.5, rel=0.05)  # 1.6 % is one standard error
    assert next(node_faults(Assumptions(node_mtbf_hours=0), 9408, 0, 0), None) is None


def test_fates_come_with_the_stated_probabilities_whatever_else_is_switched_off() -> None:
    assumptions = Assumptions(launch_failure=0.2, stragglers=0.1, hangs=1.0)
    fates = [fate_of(assumptions, 0, trial, 1) for trial in range(4000)]
    assert fmean(fate.launch_fails for fate in fates) == pytest.approx(0.2, abs=0.03)
    assert fmean(fate.slowness > 1 for fate in fates) == pytest.approx(0.1, abs=0.02)
    assert fmean(fate.hangs_after for fate in fates) == pytest.approx(3.6e6, rel=0.1)
    calm = [fate_of(assumptions.model_copy(update={"stragglers": 0.0}), 0, trial, 1) for trial in range(100)]
    assert [replace(fate, slowness=1.0) for fate in fates[:100]] == calm


def lone_world(assumptions: Assumptions, *, nodes: int = 2, work: float = 100.0) -> World:
    """A machine with one kind of trial: ten epochs of ``work`` seconds on one slot."""
    course = Course(work=work, scaling=math.inf, curve=tuple(1 / (epoch + 1) for epoch in range(10)))
    machine = scenario(assumptions, nodes=nodes, seed=0)
    world = World(replace(machine, course_of=lambda _: course))
    world.open(0, 0.0)
    return world


def until(world: World, kind: type[Any]) -> Any:
    while True:
        for event in world.advance():
            if isinstance(event, kind):
                return event
            assert isinstance(event, Tick | Launched | Progressed)


def start(trial: int = 0, attempt: int = 1, end: int = 10, slots: tuple[str, ...] = ("n0",)) -> Start:
    return Start(trial=trial, attempt=attempt, until=end, slots=slots)


def test_twice_the_slots_take_half_the_time() -> None:
    world = lone_world(CALM)
    world.start(start())
    assert until(world, Reached).value == 1 / 10
    assert world.now == pytest.approx(1000)
    world.start(start(trial=1, slots=("n0", "n1")))
    assert until(world, Reached).epochs == 10
    assert world.now == pytest.approx(1500)


def test_a_lost_node_costs_what_followed_the_last_epoch_and_a_cancelled_attempt_keeps_its_step() -> None:
    world = lone_world(CALM.model_copy(update={"save_seconds": 1.0}))
    world.start(start())
    while world.now < 250:
        world.advance()
    world.cancel(Cancel(trial=0, attempt=1, reason="test"))
    failed = until(world, Failed)
    assert (failed.kind, failed.epochs) == ("preempted", 2)
    stopped = world.now
    world.start(start(attempt=2))
    assert until(world, Reached).epochs == 10
    assert world.now == pytest.approx(stopped + 750, abs=1.5)  # the half epoch was kept
    assert world.ledger.useful[0] == pytest.approx(1000)

    world = lone_world(CALM.model_copy(update={"node_mtbf_hours": 1.0, "notice_seconds": 0.0}), work=1000.0)
    world.start(start(slots=("n0", "n1")))
    failed = until(world, Failed)
    assert failed.kind == "lost_node"
    assert failed.epochs == int(world.now / 500)
    assert world.ledger.useful[0] == pytest.approx(1000 * failed.epochs)
    assert world.ledger.wasted["lost in failures"] == pytest.approx(2 * (world.now - 500 * failed.epochs))


def test_attempts_show_how_far_they_have_come_ever_more_seldom() -> None:
    world, shown = lone_world(CALM), []
    world.start(start())
    while world.attempts:
        shown += [(world.now, event.epochs) for event in world.advance() if isinstance(event, Progressed)]
    assert shown == [(60.0, 0.6), (120.0, 1.2), (240.0, 2.4), (480.0, 4.8), (780.0, 7.8)]


def test_starts_queue_at_the_launcher() -> None:
    world = lone_world(CALM.model_copy(update={"starts_per_second": 0.1}), nodes=5)
    for trial in range(5):
        world.start(start(trial=trial, slots=(f"n{trial}",)))
    launched = [(until(world, Launched).trial, world.now) for _ in range(5)]
    assert launched == [(trial, pytest.approx(10 * trial)) for trial in range(5)]


def test_a_launch_on_a_dead_node_or_a_black_hole_fails() -> None:
    world = lone_world(CALM.model_copy(update={"black_holes": 1.0}))
    world.start(start())
    assert until(world, Failed).kind == "launch"
    assert world.ledger.useful[0] == 0


def test_the_scheduler_is_never_told_the_true_cost() -> None:
    campaign = LawfulCampaign(scenario(Assumptions(first_estimates=0), trials=5, rungs=(1,)))
    for trial in range(50):
        proposal = campaign._proposal(trial)
        assert 0.001 < abs(math.log(proposal.work / campaign.world.course_of(trial).work)) < 1.5


def test_a_final_training_of_unequal_members_keeps_the_nodes_busy() -> None:
    result = figures_of(final_scenario(scenario(CALM, nodes=640, rungs=(100,)), 5), 100.0)
    assert result.finished == 5
    assert result.utilisation > 0.9


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    table = campaign_table(Path("nowhere.h5"))
    table["search"] |= {"trials": 1000, "rungs": [2, 6], "nodes_per_trial": [1, 8]}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**table, "train": {"epochs": 18}}))
    return tmp_path / "c.toml"


def test_the_command_says_simulated_wherever_it_shows_a_figure(campaign_file: Path) -> None:
    options = ["--nodes", "128", "--hours", "2", "--assume", "median_node_hours=64"]
    command = ["simulate", str(campaign_file), *options]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    for table in ("simulated campaign, 128 nodes, 2 h", "simulated node-hours"):
        assert table in shown.output
    value = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert value["simulated"] is True
    assert value["title"].startswith("simulated")


def test_bad_input_is_one_sentence_with_the_next_move(campaign_file: Path) -> None:
    with pytest.raises(InputError, match="unknown key node_mtbf_hour; did you mean node_mtbf_hours"):
        hydragnn.simulate(campaign_file, nodes=10, hours=0.1, assume=["node_mtbf_hour=3"])
    with pytest.raises(InputError, match="the machine has 4; raise --nodes"):
        hydragnn.simulate(campaign_file, nodes=4, hours=0.1, overrides=["search.nodes_per_trial=8"])
