"""Plans of layouts follow from costs of small steps and a fabric."""

from dataclasses import replace

import numpy as np
import pytest

from hydragnn.datasets import Sizes
from hydragnn.datasets.footprint import Footprint
from hydragnn.distributed.fabric import SITES, Fabric, Link, _line, alike, group_along, site_fabric
from hydragnn.distributed.pipeline_schedule import stage_schedule
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.costs import Curve, Exchange, LayerCosts, RankSteps, RunCosts, StepCosts, Vectors, Workload
from hydragnn.runs.layout_plan import MachineSize, planned, planned_layouts, scaling_curve, stages_on
from hydragnn.runs.stage_plan import makespan
from hydragnn.scripts.plan_command import disturbance
from tests.hydragnn.distributed.virtual_clock import course_of

GRAPHS = 64
STEP = StepCosts(
    vectors=Vectors(weights=4 * 10**6, states=12 * 10**6, moments=8 * 10**6),
    footprint=Footprint(forms=((0.0, 0.0, 0.0, 1000.0, 0.0),), kept=(0.0, 0.0, 0.0, 100.0, 0.0)),
    valid=64_000,
    part=Curve(costs=(0.0, 1000.0), values=(0.01, 0.02)),
    load=Curve(costs=(0.0, 1000.0), values=(0.0, 0.0)),
    backward=0.5,
    update=0.001,
)
GATHERS = Exchange(axis="shard", kind="all-gather", count=10, size=Curve(costs=(0.0, 1.0), values=(4e7, 4e7)))
COSTS = RunCosts(
    workload=Workload(
        sizes=Sizes(nodes=np.full(GRAPHS, 0), edges=np.full(GRAPHS, 100)), batches=(np.arange(GRAPHS),), node_cost=8
    ),
    kinds={(1, 1, 1, 1): STEP, (2, 1, 1, 1): replace(STEP, exchanges=(GATHERS,))},
    accelerator=True,
)
"""A step of 10 ms and 1 ms per graph, with 100 kB of activations per graph."""
SLOW = Fabric(within=alike(Link(latency=1e-3, bandwidth=1e9)), between=Link(latency=1e-3, bandwidth=1e9), source="test")


def test_replicas_divide_work_and_pay_sums_and_latency() -> None:
    one, four = (planned(COSTS, ParallelSettings(), MachineSize(nodes=1, ranks_per_node=n), SLOW) for n in (1, 4))
    assert one.seconds == pytest.approx(0.01 + 0.064 + 0.001)
    assert one.efficiency == pytest.approx(1.0)
    assert four.compute == pytest.approx(0.01 + 0.016 + 0.001)
    assert four.communication == pytest.approx(1.5 * 4e6 / 1e9)  # one bucket, which nothing hides
    assert four.latency == pytest.approx(3 * 4 * 1e-3)  # gradients, labels and signals
    assert four.efficiency == pytest.approx(one.seconds / (4 * four.seconds))
    assert four.limited_by == "compute"


def test_the_backward_pass_hides_all_buckets_but_the_last() -> None:
    large = replace(STEP, vectors=replace(STEP.vectors, weights=40 * 2**20))
    costs = replace(COSTS, kinds={(1, 1, 1, 1): large})
    machine = MachineSize(nodes=1, ranks_per_node=2)
    fast = Fabric(within=alike(Link(latency=0.0, bandwidth=40e9)), between=Link(latency=0.0, bandwidth=40e9), source="")
    one = planned(costs, ParallelSettings(), machine, fast)
    half = 20 * 2**20 / 40e9  # seconds of a reduction to shares, and of a gathering
    assert one.hidden == pytest.approx(0.9 * half)
    assert one.communication == pytest.approx(0.1 * half + half)  # moved weights are gathered after the step
    assert one.memory.optimizer == 4 * 10**6  # each copy has half of the states
    crowded = planned(costs, ParallelSettings(), replace(machine, cores=2), fast)
    assert crowded.hidden == 0.0  # no core is free


def test_turns_give_the_least_times_and_a_least_time_is_seen_twice() -> None:
    slow, quick = (
        replace(STEP, part=Curve(costs=(0.0, 1000.0), values=(0.01, last)), update=last, repeats=(last,))
        for last in (0.05, 0.02)
    )
    both = slow.least(quick)
    assert both.part.values == (0.01, 0.02) and both.update == 0.02
    assert not both.agrees
    assert both.least(quick).agrees and STEP.agrees


def test_times_of_a_busy_machine_have_a_warning() -> None:
    machine, none = MachineSize(nodes=1, ranks_per_node=1), (1, 1, 1, 1)
    quiet = planned_layouts(COSTS, machine, SLOW)
    assert disturbance(COSTS, quiet) is None
    assert "efficiency is 280 %" in str(disturbance(COSTS, [replace(quiet[0], efficiency=2.8)]))
    busy = replace(COSTS, kinds={none: replace(STEP, repeats=(0.1, 0.2, 0.3))})
    assert "differ by more than a half" in str(disturbance(busy, quiet))


def test_a_layout_takes_as_many_micro_batches_as_memory_asks_for() -> None:
    state = 20e6 + 64_000
    for memory, parts in ((state + 6.5e6, 1), (state + 4e6, 2), (state + 2.5e6, 4)):
        (one,) = planned_layouts(COSTS, MachineSize(nodes=1, ranks_per_node=1, memory=memory), SLOW)
        assert one.fits
        assert one.layout.micro_batches == parts
    (none,) = planned_layouts(COSTS, MachineSize(nodes=1, ranks_per_node=1, memory=1e6), SLOW)
    assert (none.fits, none.limited_by) == (False, "memory")


def test_shards_divide_weights_and_states_and_pay_for_gathers() -> None:
    machine = MachineSize(nodes=1, ranks_per_node=4)
    one = planned(COSTS, ParallelSettings(shard=4, micro_batches=2), machine, SLOW)
    assert (one.memory.parameters, one.memory.optimizer, one.memory.average_and_best) == (10**6, 2 * 10**6, 10**6)
    assert one.communication == pytest.approx(2 * 0.75 * 4e7 / 1e9)  # in every micro-batch
    assert one.latency == pytest.approx(2 * 10 * 2e-3 + 3 * 4e-3)


def test_all_layouts_of_measured_kinds_are_planned_once() -> None:
    layouts = planned_layouts(COSTS, MachineSize(nodes=2, ranks_per_node=4), SLOW)
    assert sorted(one.layout.shard for one in layouts) == [1, 2, 4, 8]
    assert [one.seconds for one in layouts] == sorted(one.seconds for one in layouts)


def test_ranks_that_share_cores_take_their_time_together() -> None:
    measured_alone = MachineSize(nodes=1, ranks_per_node=4, cores=2, measured=1)
    assert measured_alone.slowdown == 2.0
    assert replace(measured_alone, measured=4).slowdown == 1.0


def test_groups_across_nodes_share_the_network_of_a_node() -> None:
    sizes = {"replicate": 4, "shard": 1, "pipeline": 1, "graph": 1, "tensor": 4}
    replicas, channels = (group_along(sizes, (axis,), 8) for axis in ("replicate", "tensor"))
    assert (replicas.size, replicas.nodes, replicas.sharing) == (4, 2, 4)
    assert (channels.size, channels.nodes) == (4, 1)
    fabric = site_fabric("frontier")
    assert fabric.seconds("all-reduce", 4e9, replicas) == pytest.approx(4 * 20e-6 + 1.5 * 4e9 / (100e9 / 4))
    assert fabric.seconds("all-reduce", 4e9, channels) == pytest.approx(4 * 20e-6 + 1.5 * 4e9 / 50e9)


def test_a_line_through_times_gives_latency_and_bandwidth_back() -> None:
    sizes = np.array([4e3, 3e5, 4e6])
    link = _line(sizes, 4 * 1e-4 + 1.5 * sizes / 1e9, 4, 1.5)
    assert (link.latency, link.bandwidth) == (pytest.approx(1e-4), pytest.approx(1e9))


def test_curves_begin_at_one_and_do_not_rise_with_devices() -> None:
    machine = MachineSize(nodes=1, ranks_per_node=8)
    rows = scaling_curve(COSTS, machine, SITES["frontier"], (8, 64, 3072), 8)
    assert (rows[0].strong, rows[0].weak) == (1.0, 1.0)
    for values in ([row.strong for row in rows], [row.weak for row in rows]):
        assert values == sorted(values, reverse=True)


TWO_SHARDS = {"replicate": 1, "shard": 2, "pipeline": 1, "graph": 1, "tensor": 1}


def test_steps_of_ranks_count_and_the_model_gives_what_larger_groups_change() -> None:
    steps = RankSteps(
        sizes=TWO_SHARDS,
        first=Curve(costs=(100.0, 400.0), values=(0.5, 0.8)),
        further=Curve(costs=(100.0, 400.0), values=(0.4, 0.7)),
    )
    costs, machine = replace(COSTS, steps=(steps,)), MachineSize(nodes=1, ranks_per_node=2, measured=2)
    here = planned(costs, ParallelSettings(shard=2), machine, SLOW)
    assert here.seconds == pytest.approx(0.5 + 0.3 / 300 * (3200 - 100))  # half of a batch of 6400 edges
    parts = planned(costs, ParallelSettings(shard=2, micro_batches=2), machine, SLOW)
    assert parts.seconds == pytest.approx(0.5 + 1.5 + 0.4 + 1.5)
    alone = planned(COSTS, ParallelSettings(shard=2), machine, SLOW)
    assert here.compute == alone.compute and here.latency > alone.latency  # what is not computed is waited for
    wide = replace(machine, nodes=2)
    far, modelled = (planned(one, ParallelSettings(shard=2), wide, SLOW) for one in (costs, COSTS))
    grown = far.seconds - steps.seconds(1600.0, 1)
    same_shares = replace(COSTS, workload=replace(COSTS.workload, batches=(np.arange(GRAPHS // 2),)))
    assert grown == pytest.approx(
        modelled.seconds - planned(same_shares, ParallelSettings(shard=2), machine, SLOW).seconds
    )
    fewer = planned(costs, ParallelSettings(shard=2), replace(machine, measured=1), SLOW)
    assert fewer.seconds == alone.seconds  # as many ranks as nodes will have were not started


def test_the_time_of_stages_is_that_of_their_schedule() -> None:
    for stages, chunks, parts in ((2, 1, 4), (4, 1, 6), (2, 2, 6), (3, 2, 7)):
        orders = [stage_schedule(stage, stages, chunks, parts) for stage in range(stages)]
        even = {(stage, chunk): (1.0, 2.0) for stage in range(stages) for chunk in range(chunks)}
        other = course_of(orders, chunks, forward=1.0, backward=2.0, latency=0.25).seconds
        assert makespan(stages, chunks, parts, even, message=0.25) == pytest.approx(
            other - 0.25
        )  # its inputs arrive, too


LAYERS = tuple(
    LayerCosts(
        steps=replace(
            STEP,
            vectors=Vectors(weights=10**6, states=3 * 10**6, moments=2 * 10**6),
            part=Curve(costs=(0.0, 1000.0), values=(0.004, 0.0065)),
            backward=2 / 3,
        ),
        waiting=Footprint(forms=((0.0, 0.0, 0.0, 200.0, 0.0),), kept=(0.0, 0.0, 0.0, 100.0, 0.0)),
        sent={},
    )
    for _ in range(4)
)
"""Four layers of 4 ms and 0.25 ms per graph: 2 ms of every layer but one are repeated."""


def test_stages_divide_layers_and_wait_in_bubbles() -> None:
    costs, machine = replace(COSTS, layers=LAYERS), MachineSize(nodes=1, ranks_per_node=2)
    fast = replace(SLOW, within=alike(Link(latency=0.0, bandwidth=1e12)))
    one = planned(costs, ParallelSettings(pipeline=2, micro_batches=4), machine, fast)
    each = 2 * (0.004 + 0.004) - 0.002  # two layers of 16 graphs; what both make anew is made once
    assert one.bubble == pytest.approx(each)  # 1 / (4 + 1) of the step
    assert one.compute == pytest.approx(4 * each + 0.002)
    assert (one.memory.parameters, one.memory.optimizer) == (2 * 10**6, 4 * 10**6)
    assert one.limited_by == "compute"
    (best, *_) = [p for p in planned_layouts(costs, machine, fast) if (p.layout.pipeline, p.layout.chunks) == (2, 1)]
    assert best.layout.micro_batches == 2 and best.seconds < one.seconds  # smaller parts take more time together


def test_the_first_stage_keeps_the_activations_of_as_many_parts_as_there_are_stages() -> None:
    costs, machine = replace(COSTS, layers=LAYERS), MachineSize(nodes=1, ranks_per_node=4)
    few, many = (
        planned(costs, ParallelSettings(pipeline=4, micro_batches=parts), machine, SLOW).memory.activations
        for parts in (1, 16)
    )
    # a part of 4 graphs: 1000 bytes per edge of all layers while it is computed, 100 of them its tensors
    assert many == 4 * 100 * 900 + 3 * 4 * 100 * 100
    assert few == 64 * 100 * 900


def test_no_more_stages_than_layers_are_planned() -> None:
    machine = MachineSize(nodes=2, ranks_per_node=4)
    assert [(one.pipeline, one.chunks) for one in stages_on(machine, 5)] == [(2, 1), (2, 2), (4, 1)]
    assert not list(stages_on(machine, 0))
