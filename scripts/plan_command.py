"""Command ``hydragnn plan``: layouts, critical batch, and what a budget buys."""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.machine import bytes_of, free_memory, in_words
from hydragnn.base.settings import read_toml, with_overrides
from hydragnn.hpo.status.facts import values_line
from hydragnn.scripts.options import Overrides
from hydragnn.scripts.plan_curves import check_picture, curve_rows, curves_line, draw_curves, layout_words
from hydragnn.scripts.showing import Result

if TYPE_CHECKING:
    import torch

    from hydragnn.config import AnyConfig
    from hydragnn.distributed.ranks import Ranks
    from hydragnn.parallel import ParallelSettings
    from hydragnn.runs.assembly import Assembly
    from hydragnn.runs.extrapolation import Extrapolation
    from hydragnn.runs.plan import RunPlan
    from hydragnn.runs.rank_steps import Interconnect, OnStep, Steps

SHOWN = 12
"""Layouts on a terminal; ``--json`` has all."""

FAR = 0.1
"""Share of a bound's speed below which no bound limits a step."""

OF_CAMPAIGNS = ("search", "job", "runs")
"""Sections of a campaign that its trainings do not have."""

QUIET = 2.0
"""Seconds before progress is shown."""

SITES: Mapping[str, tuple[float, int, str]] = {
    "frontier": (50e9, 8, "docs.olcf.ornl.gov/systems/frontier_user_guide.html"),
    "lumi": (50e9, 8, "docs.lumi-supercomputer.eu/hardware/lumig"),
    "perlmutter": (100e9, 4, "docs.nersc.gov/systems/perlmutter/architecture"),
}
"""Stated bytes per second between devices of a node, and how many it has.

Each node has four network cards of 25 GB/s.
"""

LATENCY, INSIDE = 20.8e-6, 2.5e-6
"""Seconds of a message between nodes and inside one, in trees, as RCCL counts them (github.com/ROCm/rccl, src/graph/tuning.cc, tuning_model_0)."""


def site_network(name: str) -> "Interconnect":
    """Return the stated network of a machine; InputError names the nearest."""
    from hydragnn.runs.rank_steps import Interconnect

    if name not in SITES:
        hint = nearest(name, list(SITES))
        raise InputError(f"--site {name}: no figures of this machine; {hint}, or measure by starting ranks")
    within, devices, page = SITES[name]
    source = f"{page}: 4 network cards of 25 GB/s per node, {within / 1e9:g} GB/s between its {devices} devices; {1e6 * LATENCY:g} microseconds a message, {1e6 * INSIDE:g} in a node, RCCL's tuning.cc"
    return Interconnect(latency=LATENCY, inside=INSIDE, within=within, between=4 * 25e9, source=source)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMachine:
    """Machine of a plan; what is not stated is measured."""

    nodes: Annotated[int, typer.Option(min=1, help="Nodes on which the run would train.")] = 1
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks on each. Default: started ranks, those of --site, this machine's GPUs, or 1."),
    ] = None
    site: Annotated[
        str,
        typer.Option(metavar="NAME", help="Stated network of frontier, lumi or perlmutter, instead of a measured one."),
    ] = ""
    latency: Annotated[
        float | None, typer.Option(min=0, max=1e6, help="Microseconds of a message between nodes, instead.")
    ] = None
    bandwidth: Annotated[float | None, typer.Option(min=1e-3, max=1e6, help="GB/s of a node's network, instead.")] = (
        None
    )
    memory: Annotated[str, typer.Option(help='Memory of a device, such as "64 GB". Default: that of this machine.')] = (
        ""
    )

    def network(self) -> "Interconnect | None":
        """Return the network that options state; None without any."""
        if self.latency is None and self.bandwidth is None:
            return site_network(self.site) if self.site else None
        base = site_network(self.site or "frontier")
        seconds = base.latency if self.latency is None else 1e-6 * self.latency
        between = base.between if self.bandwidth is None else 1e9 * self.bandwidth
        stated = {f"{1e6 * seconds:g} microseconds": self.latency, f"{between / 1e9:g} GB/s of a node": self.bandwidth}
        words = f"{', '.join(text for text, own in stated.items() if own is not None)}, as options say"
        words = f"{words}; else {base.source}"
        return replace(base, latency=seconds, inside=min(seconds, base.inside), between=between, source=words)


def plan(
    config: Annotated[
        Path, typer.Argument(help="CONFIG.toml of the run, CAMPAIGN.toml, or with --budget the folder of a campaign.")
    ],
    machine: PlannedMachine,
    *,
    overrides: Overrides = (),
    budget: Annotated[
        float | None, typer.Option(metavar="NODE_HOURS", help="Which size and how many epochs they buy, by a campaign.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Also weak and strong scaling of [parallel] to 65,536 devices.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw these curves as .svg, .png or .pdf, beside published ones."),
    ] = None,
    quiet: bool = False,
) -> Result | None:
    """Plan a run: memory, time and losses of every layout, best first.

    `torchrun --nproc-per-node 4 -m hydragnn plan CONFIG.toml --nodes 128 --site frontier`

    Started ranks take steps of every layout together, and memory is measured with them. Layouts that were measured stand in the order of their times.
    All else is extrapolated: computation by graphs, imbalance by the packing of the run, bytes and latency by a network that is stated (`--site`) or
    measured, and bubbles of stages. One process alone measures one device. Efficiency is the time of one device over the time of all devices
    together. The batch is the configuration's, over all ranks. The section `[parallel]` of the best layout is what the run needs to use it.

    Above the critical batch training hardly pays in devices. It follows from the gradient's noise after a short training.

    `hydragnn plan CAMPAIGN --budget 40` shows how many epochs of every finished trial 40 node-hours buy, and the error to expect.
    """
    if budget is not None or config.is_dir():
        if machine != PlannedMachine() or overrides or curves or picture:
            raise InputError("--budget goes by a campaign; leave --set, --curves and options of the machine out")
        return budget_result(config, budget)
    check_picture(picture)
    from hydragnn.config import config_from_table
    from hydragnn.parallel import ParallelSettings

    table = with_overrides(read_toml(config), overrides)
    settings = config_from_table({name: section for name, section in table.items() if name not in OF_CAMPAIGNS}, config)
    if len(settings.branches) > 1:
        raise InputError(f"{config} has several data sets; plan the largest one, in a file without [[branches]]")
    layout = settings.parallel or ParallelSettings() if curves or picture else None
    extrapolation = measured(settings, machine, config.absolute().parent, quiet, layout)
    if extrapolation is None:
        return None
    result = plan_values(extrapolation, machine.nodes, layout)
    rows = [
        {
            "layout": layout_words(one["parallel"]),
            "parts": str(one["parallel"]["micro_batches"]),
            "memory": in_words(one["memory"]["total"]),
            "ms a step": f"{'' if one['measured'] else '~ '}{1e3 * one['seconds']['step']:,.3g}",
            "graphs/s": f"{one['graphs_per_second']:,.0f}",
            "efficiency": f"{one['efficiency']:.1%}",
            "limited by": one["limited_by"] if one["fits"] else "memory: does not fit",
        }
        for one in result["layouts"][:SHOWN]
    ]
    if not layout:
        return Result(value=result, table=rows, lines=plan_lines(result))
    if picture:
        draw_curves(result, picture)
    tables = {"layouts": rows, "curves": curve_rows(result["curves"])}
    return Result(value=result, table=tables, lines=[*plan_lines(result), curves_line(result)])


def plan_values(extrapolation: "Extrapolation", nodes: int, layout: "ParallelSettings | None") -> dict[str, Any]:
    """Return the figures of a plan, with the curves of ``layout``."""
    each = extrapolation.per_node
    values: dict[str, Any] = {
        "nodes": nodes,
        "ranks_per_node": each,
        "graphs_per_batch": extrapolation.graphs,
        "memory_of_a_device": extrapolation.memory,
        "network": extrapolation.network.source,
        "measured_layouts": len(extrapolation.layouts),
        "warning": extrapolation.warning,
        "roofline": extrapolation.roofline,
        "critical_batch": extrapolation.noise,
        "layouts": extrapolation.best_first(nodes * each, extrapolation.graphs),
    }
    return values | {"curves": extrapolation.curves(layout)} if layout else values


def budget_result(campaign: Path, node_hours: float | None) -> Result:
    """Return what node-hours buy by a campaign; InputError where nothing tells it."""
    from hydragnn.hpo.records import bought

    if node_hours is None or not 0 < node_hours < 1e12:
        raise InputError(f"{campaign}: give --budget with node-hours above 0 and below 1e12, such as --budget 40")
    rows, table = bought(campaign, node_hours), []
    for row in rows[:SHOWN]:
        value, interval = row["expected"], row["interval"]
        by = row["basis"] if value is None else f"{row['basis']}, {row['after']:,} epochs"
        table.append(
            {
                "trial": str(row["trial"]),
                "configuration": values_line(row["values"]),
                "parameters": f"{row['parameters']:,}",
                "node-hours/epoch": f"{'~ ' * row['estimated']}{row['node_hours_per_epoch']:.3g}",
                "epochs": f"{row['epochs']:,}",
                "expected": "unknown" if value is None else f"{value:.4g}",
                "by": by if interval is None else f"{by}: {interval[0]:.4g} to {interval[1]:.4g}",
            }
        )
    first, interval = rows[0], rows[0]["interval"]
    best = f"trial {first['trial']} has the lowest expected {first['objective']}"
    best = "nothing tells an error" if first["expected"] is None else best
    if interval:
        close = sum(row["expected"] is not None and row["expected"] < interval[1] for row in rows[1:])
        best += f", {close} other{'s' * (close != 1)} within its interval"
    line = f"{node_hours:g} node-hours, as {campaign} shared its nodes: {best}; curves without a law tell nothing beyond their epochs"
    return Result(value={"node_hours": node_hours, "trials": rows}, table=table, lines=[line])


def measured(
    settings: "AnyConfig", machine: PlannedMachine, folder: Path, quiet: bool, curve: "ParallelSettings | None" = None
) -> "Extrapolation | None":
    """Return measured steps, extrapolated to a machine; None on other ranks.

    InputError before they are measured where ``curve``, a layout, has no curves.
    """
    from hydragnn.distributed.ranks import Ranks, join_ranks
    from hydragnn.parallel import ParallelSettings
    from hydragnn.runs.assembly import assemble
    from hydragnn.runs.extrapolation import Extrapolation, check_curves, layouts_on
    from hydragnn.runs.plan import plan_run
    from hydragnn.runs.rank_steps import measured_network, measured_steps, possible
    from hydragnn.runs.session import DTYPES, own_device, select_device
    from hydragnn.training.data import DevicePlacement

    place, network, limit = select_device(None), machine.network(), machine.memory or settings.batch.memory
    most = bytes_of(limit) if limit else None
    with join_ranks(folder, place) as ranks:
        own, show = own_device(place, ranks), progress(quiet or not ranks.first)
        run_plan = replace(plan_run(settings), parallel=ParallelSettings())
        placement = DevicePlacement(device=own, dtype=DTYPES[settings.train.precision])
        run = assemble(run_plan, placement, Ranks(), lambda: None, shared=ranks.size > 1)
        loader, model = run.data.branches[0].train.loader, run_plan.branches[0].model.model
        each = devices_of_node(machine, ranks, own)
        devices = machine.nodes * each
        started = layouts_on(ranks.size, ranks.size // ranks.nodes, model.num_layers)
        layouts = list(possible(run_plan, started)) if ranks.size > 1 else []
        batch = min(loader.budget.max_graphs, len(loader.indices)) or len(loader.indices) / len(loader)
        if curve is not None:
            check_curves(curve, layouts, each, round(batch), len(loader.indices))
        graphs = round(batch * ranks.size / devices)
        alone, together = measured_steps(run, run_plan, layouts, ranks, graphs, show)
        if network is None and ranks.size > 1:
            network = measured_network(ranks)
        roofline = roofline_of(run, graphs // ranks.size, settings.train.precision) if ranks.first else {}
        noise = noise_of(run, alone, round(batch), devices, show) if ranks.first else {}  # peers wait
    if not ranks.first:
        return None
    return Extrapolation(
        loader=loader,
        alone=alone,
        layouts=together,
        network=network or site_network("frontier"),
        ranks=devices,
        per_node=each,
        sent=float(model.hidden_dim * placement.dtype.itemsize),
        accelerator=own.type == "cuda",
        memory=float(most or memory_of(own, each)),
        roofline=roofline,
        noise=noise,
        **model_facts(run, run_plan),
    )


def progress(quiet: bool) -> "OnStep":
    """Return a function that shows what is measured, once it takes long."""
    begin = time.monotonic()

    def show(what: str, seconds: float | None) -> None:
        if not quiet and time.monotonic() - begin > QUIET:
            more = "" if seconds is None else f", about {seconds:.0f} s left"
            print(f"measuring {what}{more}", file=sys.stderr, flush=True)

    return show


def model_facts(run: "Assembly", run_plan: "RunPlan") -> dict[str, Any]:
    """Return the weights of a model, their blocks, and layers of stages."""
    from hydragnn.parallel import WHOLE_WEIGHTS, ParallelSettings
    from hydragnn.runs.rank_steps import possible
    from hydragnn.training.buckets import blocks_of
    from hydragnn.training.parameters import SHARDED_BLOCKS

    parameters, built = list(run.state.model.parameters()), run_plan.branches[0].model
    sizes = [one.numel() for one in parameters]
    staged = list(possible(run_plan, [ParallelSettings(pipeline=2)]))
    return {
        "weights": sum(one.nbytes for one in parameters),
        "layers": built.model.num_layers if staged else 0,
        "shared_weights": run_plan.training.optimizer not in WHOLE_WEIGHTS,
        "blocks": len(blocks_of(sizes, sum(sizes) / SHARDED_BLOCKS, 1, 1)[0]),
        "derives": built.has_derivatives,
    }


def devices_of_node(machine: PlannedMachine, ranks: "Ranks", own: "torch.device") -> int:
    """Return the devices of a planned node."""
    import torch

    if machine.ranks_per_node or ranks.size > 1:
        return machine.ranks_per_node or max(1, ranks.size // ranks.nodes)
    gpus = torch.cuda.device_count() if own.type == "cuda" else 0
    return SITES[machine.site][1] if machine.site else max(1, gpus)


def noise_of(run: "Assembly", alone: "Steps", batch: int, devices: int, on_step: "OnStep") -> dict[str, Any]:
    """Return the gradient's noise scale, or why it is not measured."""
    import torch

    from hydragnn.runs.rank_steps import measured_noise
    from hydragnn.training.context import Diverged

    try:
        return measured_noise(run, alone, batch, devices, on_step)
    except (Diverged, torch.OutOfMemoryError) as error:
        return {"not_measured": str(error)}


def memory_of(own: "torch.device", each: int) -> float:
    """Return the bytes of a device for tensors, of a CPU those of one of ``each`` ranks."""
    import torch

    from hydragnn.runs.memory import DEVICE_SHARE

    if own.type == "cuda":
        return float(DEVICE_SHARE * torch.cuda.get_device_properties(own).total_memory)
    return free_memory() / each


def roofline_of(run: "Assembly", graphs: int, precision: str) -> dict[str, Any]:
    """Return operations, bytes and time of a step of a device, with its peaks."""
    from hydragnn.base.peaks import peaks_of
    from hydragnn.distributed.ranks import Ranks
    from hydragnn.kernels.counting import Counter
    from hydragnn.runs.rank_steps import LONG, seconds_of, step_of

    alone = Ranks()
    graphs = max(1, min(graphs, int(LONG / seconds_of(step_of(run, 1)[0], alone))))
    step, *_ = step_of(run, graphs)
    with Counter() as counter:
        step()
    flops, moved = counter.totals
    if math.isnan(flops + moved):
        return {}
    peaks, seconds = peaks_of(run.context.device, precision), min(seconds_of(step, alone) for _ in range(3))
    known = ("arithmetic", flops, peaks.flops), ("memory", moved, peaks.bytes)
    bounds = {name: amount / peak for name, amount, peak in known if peak}
    nearer = max(bounds, key=lambda name: bounds[name], default="")
    return {
        "graphs": graphs,
        "flops": flops,
        "bytes": moved,
        "flops_per_byte": flops / moved,
        "peak_flops": peaks.flops,
        "peak_bytes": peaks.bytes,
        "peaks": peaks.source,
        "bound": nearer,
        "seconds_at_bound": bounds.get(nearer),
        "seconds": seconds,
        "ops": [
            {"name": name, "flops": own, "bytes": traffic}
            for name, (own, traffic) in sorted(counter.by_op.items(), key=lambda one: -one[1][1])
        ],
    }


def roofline_lines(roofline: Mapping[str, Any]) -> list[str]:
    """Return operations, bytes, the nearer bound and its share of the time.

    >>> ops = [{"name": "mm", "flops": 6e9, "bytes": 5e8}, {"name": "add", "flops": 1e8, "bytes": 1e8}]
    >>> table = {"graphs": 4, "flops": 8e9, "bytes": 1e9, "flops_per_byte": 8.0, "peak_flops": 4e10, "peak_bytes": 1e10, "ops": ops}
    >>> for line in roofline_lines({**table, "peaks": "measured", "bound": "arithmetic", "seconds_at_bound": 0.2, "seconds": 0.5}):
    ...     print(line)
    a step of 4 graphs on one device has 8 GFLOP and moves 1 GB (2 GFLOP and 250 MB a graph): 8.0 FLOP per byte
    most bytes: mm 50%, add 10%
    arithmetic is the nearer bound, of 40 GFLOP/s and 10 GB/s (measured): 200 ms at it, 500 ms measured, 40% of its speed
    """
    if not roofline:
        return ["operations and bytes of a step are unknown: a call could not be counted"]
    moved, graphs, unit = roofline["bytes"], roofline["graphs"], "FLOP"
    total, each = (
        f"{in_words(one).removesuffix('B')}{unit}" for one in (roofline["flops"], roofline["flops"] / graphs)
    )
    heaviest = ", ".join(f"{one['name']} {one['bytes'] / moved:.0%}" for one in roofline["ops"][:5])
    lines = [
        f"a step of {graphs:,} graph{'s' * (graphs > 1)} on one device has {total} and moves {in_words(moved)} "
        f"({each} and {in_words(moved / graphs)} a graph): {roofline['flops_per_byte']:.1f} {unit} per byte",
        f"most bytes: {heaviest}",
    ]
    if not roofline["bound"]:
        return [*lines, f"no bound: {roofline['peaks']}"]
    share = roofline["seconds_at_bound"] / roofline["seconds"]
    peaks = f"{roofline['peak_flops'] / 1e9:,.0f} G{unit}/s and {roofline['peak_bytes'] / 1e9:,.0f} GB/s ({roofline['peaks']})"
    times = f"{1e3 * roofline['seconds_at_bound']:,.3g} ms at it, {1e3 * roofline['seconds']:,.3g} ms measured"
    far = "; calls and waits take the time, which larger batches share" if share < FAR else ""
    far = "; caches serve a part, or other work slowed the measured peak" if share > 1 else far
    return [*lines, f"{roofline['bound']} is the nearer bound, of {peaks}: {times}, {share:.0%} of its speed{far}"]


def plan_lines(result: dict[str, Any]) -> list[str]:
    """Return the machine, losses of the best layout, and sources of figures."""
    nodes, devices, graphs = result["nodes"], result["nodes"] * result["ranks_per_node"], result["graphs_per_batch"]
    best = result["layouts"][0]
    return [
        f"{devices:,} device{'s' * (devices > 1)} on {nodes:,} node{'s' * (nodes > 1)}, {graphs:,} graph{'s' * (graphs > 1)} a step",
        *([f"warning: {result['warning']}"] if result["warning"] else []),
        f"the first has {in_words(best['memory']['state'])} of weights and states and {in_words(best['memory']['step'])} of a step",
        f"and loses {losses_in_words(best)}",
        f"~ extrapolated; network: {result['network']}",
        *roofline_lines(result["roofline"]),
        critical_words(result["critical_batch"], devices),
    ]


def critical_words(noise: dict[str, Any], devices: int) -> str:
    """Return where training stops to pay in devices, beside the configured batch."""
    if "not_measured" in noise:
        return f"critical batch not measured: {noise['not_measured']}"
    own, scale = noise["batch"], noise["graphs"]
    ending = f"yours has {own:,}; by the gradient's noise after {noise['warm_up']} steps of training, which grows as errors fall"
    if scale is None:
        hidden = f"noise hides the mean gradient of {noise['graphs_per_step']:,} graphs a step"
        return f"critical batch: above {max(1, round(noise['at_least'])):,} graphs, {ending}; {hidden}"
    most = max(1, round(min(scale, noise["training_graphs"]) * devices / own))
    pays = f"up to {most:,} device{'s' * (most > 1)} with {own / devices:,.3g} graphs each pay"
    pays += f", which have all {noise['training_graphs']:,} training graphs" * (scale > noise["training_graphs"])
    now, then = noise["learning_rates"]
    rates = f"the rule of base_batch makes your learning rate of {now:.3g} one of {then:.3g} there"
    return f"critical batch: {max(1.0, scale):,.3g} graphs, standard error {noise['standard_error']:,.2g}, {ending}; {pays}; {rates}"


def losses_in_words(layout: dict[str, Any]) -> str:
    """Return the shares of a step that are lost.

    >>> losses_in_words({"losses": {"fixed work": 0.0, "communication": 0.25, "latency": 0.125}})
    'communication 25.0%, latency 12.5%'
    """
    lost = [f"{name} {share:.1%}" for name, share in layout["losses"].items() if round(share, 3) > 0]
    return ", ".join(lost) or "nothing"
