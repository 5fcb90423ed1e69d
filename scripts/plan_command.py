"""Command ``hydragnn plan``: memory, time and efficiency of layouts."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.base.settings import read_toml, with_overrides
from hydragnn.base.terminal import PlainConsole
from hydragnn.scripts.devices import Device

if TYPE_CHECKING:
    import torch

    from hydragnn.config import AnyConfig
    from hydragnn.distributed.fabric import Fabric
    from hydragnn.distributed.ranks import Ranks
    from hydragnn.parallel import ParallelSettings
    from hydragnn.runs.assembly import Assembly
    from hydragnn.runs.costs import RunCosts
    from hydragnn.runs.layout_plan import MachineSize, PlannedLayout
    from hydragnn.runs.plan import RunPlan
    from hydragnn.runs.step_costs import OnStep

SHOWN = 12
"""Layouts on a terminal; ``--json`` has all."""

OF_CAMPAIGNS = ("search", "job", "runs")
"""Sections of a campaign that its trainings do not have."""

QUIET = 2.0
"""Seconds before progress is shown."""

PUBLISHED = (
    "published for language models on Frontier (Dash et al. 2023, arXiv:2312.12705): weak scaling 100 % on 1,024 (175 B parameters) and 3,072 GPUs (1 T); "
    "strong scaling 89 % and 87 %"
)


def plan(
    config: Annotated[Path, typer.Argument(help="CONFIG.toml of the run, or CAMPAIGN.toml without its search.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes on which the run would train.")] = 1,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks on each. Default: this machine's GPUs, or the ranks that were started, or 1."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a configuration value.")
    ] = None,
    site: Annotated[
        str,
        typer.Option(metavar="NAME", help="Stated network of frontier, lumi or perlmutter, instead of a measured one."),
    ] = "",
    latency: Annotated[float | None, typer.Option(min=0, help="Microseconds of a message, instead.")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=1e-3, help="GB/s of a node's network, instead.")] = None,
    memory: Annotated[
        str, typer.Option(help='Memory of a device, such as "64 GB". Default: that of this machine.')
    ] = "",
    curves: Annotated[bool, typer.Option("--curves", help="Also weak and strong scaling to 3,072 devices.")] = False,
    device: Device = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")] = False,
) -> None:
    """Plan a run: memory, time and efficiency of every layout, best first.

    `hydragnn plan CONFIG.toml --nodes 128 --ranks-per-node 8 --site frontier`

    Some small steps of the model are measured here, on one device like those of the run. The network is stated (`--site`), or measured where ranks
    are started: `torchrun --nproc-per-node 4 -m hydragnn plan CONFIG.toml`. From both follow the time of a step in every layout and what limits it: compute,
    communication (bytes), latency (waiting without bytes) or memory. Efficiency is the time of one device over the time of all devices
    together. The batch is the configuration's, over all ranks. The section `[parallel]` of the best layout is what the run needs to use it.
    """
    from hydragnn.config import config_from_table
    from hydragnn.distributed import leave
    from hydragnn.distributed.fabric import measured_fabric, site_fabric
    from hydragnn.distributed.ranks import join_ranks
    from hydragnn.runs.rank_steps import steps_of_ranks
    from hydragnn.runs.session import own_device, select_device

    table = with_overrides(read_toml(config), assignments or [])
    training = {name: section for name, section in table.items() if name not in OF_CAMPAIGNS}
    settings = config_from_table(training, config)
    check_plannable(settings, str(config))
    begin, place = time.monotonic(), select_device(None)
    fabric, folder = stated(site, latency, bandwidth), config.absolute().parent
    with join_ranks(folder, place) as ranks:
        own = own_device(place, ranks)
    together = fabric is None and ranks.size > 1
    machine = machine_of(ranks, own, nodes, ranks_per_node, memory or settings.batch.memory)

    def show(what: str, left: float | None) -> None:
        if ranks.first and not as_json and time.monotonic() - begin > QUIET:
            more = "" if left is None else f", about {left:.0f} s left"
            print(f"measuring {what}{more}", file=sys.stderr, flush=True)

    run_plan, run = prepared(settings, machine, own, show)
    costs = measured(run, run_plan, machine, show, together=together)
    if together:
        with join_ranks(folder, place) as ranks:
            fabric = measured_fabric(ranks, own)
            layouts = started_layouts(run_plan, machine, ranks)
            costs = replace(costs, steps=steps_of_ranks(run, run_plan, layouts, ranks, show))
    if ranks.first:
        fabric = fabric or site_fabric("frontier")
        result = result_of(costs, machine, fabric, curves)
        print(json.dumps(result)) if as_json else show_plan(result)
    leave(0)


def check_plannable(config: "AnyConfig", source: str) -> None:
    """Raise InputError for several data sets, or batches that fill memory."""
    if len(config.branches) > 1:
        raise InputError(
            f"{source} has several data sets; plan the largest one, with its data and heads at the top of a file"
        )
    if config.batch.budget == "auto":
        raise InputError(
            f'{source}: batch.budget = "auto" fills memory, so that every layout has another batch; plan with --set batch.budget=given '
            "--set batch.max_graphs=256"
        )


def stated(site: str, latency: float | None, bandwidth: float | None) -> "Fabric | None":
    """Return the fabric that options state; None without any."""
    from hydragnn.distributed.fabric import Fabric, Link, site_fabric

    if not site and latency is None and bandwidth is None:
        return None
    base = site_fabric(site or "frontier")
    seconds = base.between.latency if latency is None else 1e-6 * latency
    between = Link(latency=seconds, bandwidth=base.between.bandwidth if bandwidth is None else 1e9 * bandwidth)
    within = {kind: Link(latency=seconds, bandwidth=link.bandwidth) for kind, link in base.within.items()}
    changed = latency is not None or bandwidth is not None
    given = f"{1e6 * seconds:g} microseconds, {between.bandwidth / 1e9:g} GB/s of a node, as options say; else "
    return Fabric(within=within, between=between, source=(given if changed else "") + base.source)


def prepared(
    config: "AnyConfig", machine: "MachineSize", device: "torch.device", show: "OnStep"
) -> "tuple[RunPlan, Assembly]":
    """Return plan and run of a process with all data."""
    from hydragnn.distributed.ranks import Ranks
    from hydragnn.parallel import ParallelSettings
    from hydragnn.runs.assembly import assemble
    from hydragnn.runs.plan import plan_run
    from hydragnn.runs.session import DTYPES
    from hydragnn.training.data import DevicePlacement

    show("data", None)
    run_plan = replace(plan_run(config), parallel=ParallelSettings())
    placement = DevicePlacement(device=device, dtype=DTYPES[config.train.precision])
    return run_plan, assemble(run_plan, placement, Ranks(), lambda: None, shared=machine.measured > 1)


def measured(run: "Assembly", plan: "RunPlan", machine: "MachineSize", show: "OnStep", *, together: bool) -> "RunCosts":
    """Return costs of all layouts, by processes without peers.

    Ranks measure the same at the same time, since they were together just now.
    """
    from hydragnn.runs.layer_costs import costs_of_layers
    from hydragnn.runs.layout_plan import layouts_on
    from hydragnn.runs.step_costs import costs_of_layouts, is_possible

    layouts = [layout for layout in layouts_on(machine) if is_possible(plan, layout)]
    costs = costs_of_layouts(run, plan, layouts, show, followed=together)
    return replace(costs, layers=costs_of_layers(run, plan, show) if machine.ranks > 1 else ())


def started_layouts(plan: "RunPlan", machine: "MachineSize", ranks: "Ranks") -> "list[ParallelSettings]":
    """Return the layouts that the ranks of this command can have."""
    from hydragnn.runs.layout_plan import layouts_on, stages_on
    from hydragnn.runs.step_costs import is_possible

    if machine.measured != machine.ranks_per_node:
        return []
    own = replace(machine, nodes=ranks.nodes)
    layers = plan.branches[0].model.model.num_layers
    every = [*layouts_on(own), *stages_on(own, layers)]
    return [layout for layout in every if is_possible(plan, layout)]


def machine_of(
    ranks: "Ranks", device: "torch.device", nodes: int, ranks_per_node: int | None, memory: str
) -> "MachineSize":
    """Return the machine that is planned: nodes like this one."""
    import torch

    from hydragnn.base.machine import cores, free_memory
    from hydragnn.datasets.footprint import bytes_of
    from hydragnn.runs.layout_plan import MachineSize
    from hydragnn.training.memory import DEVICE_SHARE

    started = max(1, ranks.size // ranks.nodes)
    gpu = device.type == "cuda"
    each = ranks_per_node or (torch.cuda.device_count() if gpu and started == 1 else started)
    has = DEVICE_SHARE * torch.cuda.get_device_properties(device).total_memory if gpu else free_memory() / each
    return MachineSize(
        nodes=nodes,
        ranks_per_node=each,
        cores=0 if gpu else cores(),
        measured=started,
        memory=bytes_of(memory) if memory else has,
    )


def result_of(costs: "RunCosts", machine: "MachineSize", fabric: "Fabric", curves: bool) -> dict[str, Any]:
    """Return the plan as plain JSON."""
    from hydragnn.runs.layout_plan import planned_layouts, scaling_curve

    layouts = planned_layouts(costs, machine, fabric)
    graphs = layouts[0].graphs
    devices = [count for count in (8, 64, 512, 1024, 3072) if count % machine.ranks_per_node == 0]
    curve = scaling_curve(costs, machine, fabric, devices, max(1, round(graphs / machine.ranks))) if curves else []
    return {
        "simulated": True,
        "nodes": machine.nodes,
        "ranks_per_node": machine.ranks_per_node,
        "graphs_per_batch": graphs,
        "memory_of_a_device": machine.memory,
        "network": fabric.source,
        "steps_of_ranks": len(costs.steps),
        "warning": disturbance(costs, layouts),
        "layouts": [one.to_json() for one in layouts],
        **({"curves": [asdict(one) for one in curve], "published": PUBLISHED} if curves else {}),
    }


def disturbance(costs: "RunCosts", layouts: "Sequence[PlannedLayout]") -> str | None:
    """Return why times are not to be trusted; None where they are."""
    most = max(one.efficiency for one in layouts)
    if round(most, 3) > 1.0:
        reason = f"an efficiency is {100 * most:.0f} %"
    elif not all(one.agrees for one in costs.kinds.values()):
        reason = "repeated steps differ by more than a half"
    else:
        return None
    return f"the machine was busy while steps were measured ({reason}): do not trust these times, and plan again when it is idle"


def show_plan(result: dict[str, Any]) -> None:
    """Print layouts, memory of the best, and sources of figures."""
    from hydragnn.datasets.footprint import in_words

    console = PlainConsole()
    nodes, devices, graphs = result["nodes"], result["nodes"] * result["ranks_per_node"], result["graphs_per_batch"]
    counts = f"{devices:,} device{'s' * (devices > 1)} on {nodes:,} node{'s' * (nodes > 1)}, {graphs:,.0f} graph{'s' * (graphs > 1)} a step"
    title = f"{counts}; from steps measured here"
    table = Table(
        "layout",
        "parts",
        "memory",
        "ms a step",
        "graphs/s",
        "efficiency",
        "limited by",
        title=title,
        box=None,
        pad_edge=False,
    )
    for one in result["layouts"][:SHOWN]:
        table.add_row(
            layout_words(one["parallel"]),
            str(one["parallel"]["micro_batches"]),
            in_words(one["memory"]["total"]),
            f"{1e3 * one['seconds']['step']:,.3g}",
            f"{one['graphs_per_second']:,.0f}",
            f"{one['efficiency']:.1%}",
            one["limited_by"] if one["fits"] else "memory: does not fit",
        )
    console.print(table)
    if result["warning"]:
        console.print(f"warning: {result['warning']}")
    best = result["layouts"][0]
    parts = ", ".join(f"{name.replace('_', ' ')} {in_words(size)}" for name, size in best["memory"].items() if size)
    times = ", ".join(f"{name} {1e3 * value:.3g} ms" for name, value in best["seconds"].items())
    console.print(f"the first takes: {parts}")
    console.print(f"and: {times}")
    console.print(f"network: {result['network']}")
    if result["steps_of_ranks"]:
        console.print(f"steps of {result['steps_of_ranks']} layouts were measured with these ranks")
    for row in result.get("curves", ()):
        words = [
            f"{name} {row[name]:.1%} by {layout_words(row[f'{name}_layout'])} ({row[f'{name}_limit']})"
            for name in ("strong", "weak")
        ]
        console.print(f"simulated, {row['devices']:,} devices: scaling {', '.join(words)}")
    if "published" in result:
        console.print(result["published"])


def layout_words(parallel: dict[str, int]) -> str:
    """Return a layout in words.

    >>> layout_words({"replicate": 4, "shard": 2, "tensor": 1, "micro_batches": 3})
    'replicate 4 x shard 2'
    """
    sizes = [
        f"{axis} {size}" for axis, size in parallel.items() if size > 1 and axis not in ("micro_batches", "chunks")
    ]
    sizes += [f"chunks {parallel['chunks']}"] if parallel.get("chunks", 1) > 1 else []
    return " x ".join(sizes) or "one device"
