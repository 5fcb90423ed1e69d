"""Assumptions about a simulated machine and its trials, with their reasons."""

from typing import ClassVar

from pydantic import Field

from hydragnn.base.settings import ActsWith, Settings


def _where(*keys: str) -> ActsWith:
    """Return the condition that one of these assumptions is set."""
    words = " or ".join(keys)
    return ActsWith(
        words=f"with {words}",
        remedy=f"set {words}",
        holds=lambda assumptions: any(getattr(assumptions, key) for key in keys),
    )


class Assumptions(Settings):
    """Fault model and costs of a simulation; 0 switches a fault off."""

    acts_with: ClassVar = {
        "transient": _where("node_mtbf_hours"),
        **dict.fromkeys(("cabinet_nodes", "cabinet_back_minutes"), _where("cabinet_minutes")),
        "late_failure_minutes": _where("late_failures"),
        **dict.fromkeys(("storm_first_hours", "storm_every_hours", "storm_probes"), _where("storm_minutes")),
        **dict.fromkeys(("slow_factor", "slow_after_hours"), _where("slow_nodes")),
        "probe_misses": _where("black_holes"),
        "straggler_factor": _where("stragglers"),
        "queue_hours": _where("walltime_hours"),
    }

    median_node_hours: float = Field(default=128.0, gt=0)
    """Median node-hours of one full training; 128 is one hour on 128 nodes."""

    cost_sigma: float = Field(default=0.8, ge=0)
    """Spread of the logarithm of costs."""

    scaling_nodes: float = Field(default=6826.0, gt=0)
    """Parallel efficiency of an epoch on p slots.

    It takes ``work / p * (1 + (p - 1) / scaling_nodes)``; 98 % at 128, 87 % at 1,024.
    """

    estimate_error: float = Field(default=0.3, ge=0)
    """Spread of the logarithm of cost estimates against true costs."""

    first_estimates: int = Field(default=4, ge=0)
    """Trials past a rung before costs are estimated at all."""

    measured_error: float = Field(default=0.05, ge=0)
    """The same for the final training, whose configurations were measured."""

    startup_seconds: float = Field(default=60.0, ge=0)
    """Mean time from an attempt's start to its first step. Single attempts take half to one and a half of it."""

    checkpoint_seconds: float = Field(default=1.0, ge=0)
    """Writing the checkpoint after every epoch."""

    save_seconds: float = Field(default=5.0, ge=0)
    """Mean time to save and leave. Single attempts take half to one and a half of it."""

    node_mtbf_hours: float = Field(default=23520.0, ge=0)
    """Mean time between failures of a node. With 9,408 nodes the system is interrupted every 2.5 h."""

    transient: float = Field(default=0.5, ge=0, le=1)
    """Part of node failures after which the node works again."""

    cabinet_nodes: int = Field(default=64, ge=1)
    """Nodes of a cabinet, which fail together."""

    cabinet_minutes: float = Field(default=0.0, ge=0)
    """Mean time between losses of a cabinet; 0: none."""

    cabinet_back_minutes: float = Field(default=30.0, ge=0)
    """After so long the nodes of a lost cabinet work again."""

    late_failures: float = Field(default=0.0, ge=0, le=1)
    """Part of nodes whose attempts fail late, and whose probes succeed."""

    late_failure_minutes: float = Field(default=20.0, ge=0)
    """From the start of an attempt on such a node to its failure."""

    notice_seconds: float = Field(default=30.0, ge=0)
    """Time from a node's failure to its step's end; Slurm: 25-33 s."""

    suspect_known: float = Field(default=0.8, ge=0, le=1)
    """Probability that the failing node is named."""

    launch_failure: float = Field(default=0.005, ge=0, le=1)
    """Probability that a launch fails although its nodes are sound."""

    launch_failure_seconds: float = Field(default=60.0, ge=0)
    """From a failing launch to its report."""

    storm_minutes: float = Field(default=0.0, ge=0)
    """Length of a storm of failing launches; 0: none."""

    storm_first_hours: float = Field(default=1.0, ge=0)
    """From the beginning of an allocation to its first storm."""

    storm_every_hours: float = Field(default=6.0, gt=0)
    """From the beginning of one storm to that of the next."""

    storm_probes: float = Field(default=1.0, ge=0, le=1)
    """Probability that a probe fails in a storm; it is a launch, too."""

    black_holes: float = Field(default=0.001, ge=0, le=1)
    """Part of the nodes on which every launch fails."""

    probe_misses: float = Field(default=0.2, ge=0, le=1)
    """Probability that the probe of such a node finds nothing."""

    probe_seconds: float = Field(default=20.0, ge=0)
    """Duration of a probe."""

    slow_nodes: float = Field(default=0.0, ge=0, le=1)
    """Part of nodes that become slow, and stay so."""

    slow_factor: float = Field(default=3.0, ge=1)
    """Factor of their slowness, and of their probes' time."""

    slow_after_hours: float = Field(default=1.0, ge=0)
    """From the beginning of an allocation."""

    stragglers: float = Field(default=0.02, ge=0, le=1)
    """Part of attempts that are slow from beginning to end."""

    straggler_factor: float = Field(default=1.5, ge=1)
    """Factor of their slowness."""

    hangs: float = Field(default=0.02, ge=0)
    """Attempts that hang, per 1,000 node-hours of training."""

    preemptions: float = Field(default=0.0, ge=0)
    """Attempts that the machine preempts, per 1,000 node-hours of training."""

    diverged: float = Field(default=0.03, ge=0, le=1)
    """Part of the configurations that diverge, at an epoch drawn uniformly."""

    out_of_memory: float = Field(default=0.02, ge=0, le=1)
    """Part of configurations whose batches only fit in two parts."""

    starts_per_second: float = Field(default=20.0, gt=0)
    """Limit of the machine's launcher; measured on Slurm: 20 to 70."""

    walltime_hours: float | None = Field(default=None, gt=0)
    """Longest allocation; the hours are cut. None: one allocation."""

    queue_hours: float = Field(default=1.0, ge=0)
    """Wait between two allocations; not counted as allocated."""

    best_of: int = Field(default=100, ge=1)
    """Number of first configurations whose best defines the time to the best."""
