"""Campaigns of the simulator on a machine that does what a test says, to the second."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hydragnn.hpo.scheduling.events import Event, Plan, Probed, Start
from hydragnn.hpo.simulation import Assumptions, Course, Scenario, VirtualCampaign
from hydragnn.hpo.simulation.world import Outcome, VirtualAttempt, World

CALM = Assumptions(
    median_node_hours=1.0,
    estimate_error=0,
    first_estimates=0,
    startup_seconds=0,
    checkpoint_seconds=0,
    save_seconds=0,
    node_mtbf_hours=0,
    launch_failure=0,
    black_holes=0,
    stragglers=0,
    hangs=0,
    diverged=0,
    out_of_memory=0,
    seconds_per_proposal=0,
    starts_per_second=1e9,
    probe_seconds=1,
    best_of=1,
)
"""A perfect machine."""

FAILING = 20.0
"""Seconds that a launch takes to fail."""


class Machine(World):
    """Bad nodes break attempts, launches fail in storms, and those of some trials always."""

    bad: tuple[str, ...] = ()
    passes_probe = names_suspects = True
    storms: tuple[tuple[float, float], ...] = ()
    """Times between which all launches and probes fail."""
    blind = False
    """True where probes find nothing in a storm."""
    hopeless: frozenset[int] = frozenset()

    @property
    def is_storm(self) -> bool:
        return any(begin <= self.now < end for begin, end in self.storms)

    def _failing_launch(self, attempt: VirtualAttempt) -> Outcome | None:
        fails = self.is_storm or attempt.action.trial in self.hopeless
        return Outcome(stops=self.now, reported=self.now + FAILING, kind="launch") if fails else None

    def _endings(self, attempt: VirtualAttempt) -> Iterator[Outcome]:
        yield from super()._endings(attempt)
        if culprits := tuple(sorted(attempt.nodes.intersection(self.bad))):
            named = culprits if self.names_suspects else ()
            yield Outcome(stops=self.now, reported=self.now + 5.0, kind="lost_node", suspects=named)

    def _on_probed(self, node: str) -> list[Event]:
        well = (self.passes_probe or node not in self.bad) and (self.blind or not self.is_storm)
        return [Probed(node=node, healthy=well)]


class Clockwork(VirtualCampaign):
    """Campaign whose trials need ``work`` seconds per epoch on one node; other names are those of ``Machine``."""

    def __init__(
        self,
        plan: Plan,
        nodes: int,
        *,
        work: Callable[[int], float] = lambda trial: 10.0,
        hours: float = 100.0,
        assume: dict[str, float] | None = None,
        **machine: Any,
    ) -> None:
        def course_of(trial: int) -> Course:
            return Course(work=work(trial), scaling=math.inf, curve=(1.0 / (1 + trial),) * plan.rungs[-1])

        scenario = Scenario(
            plan=plan,
            course_of=course_of,
            assumptions=CALM.model_copy(update=assume or {}),
            nodes=nodes,
            shares=1,
            seed=0,
            hang_seconds=300.0,
        )
        super().__init__(scenario)
        self.world: Machine = Machine(scenario)
        for name, value in machine.items():
            setattr(self.world, name, value)
        self.starts: list[tuple[float, Start]] = []
        self.run(hours)

    @property
    def outcomes(self) -> "Counter[str]":
        return Counter(self.settled.values())

    @property
    def disturbed(self) -> list[Start]:
        """Attempts on bad nodes."""
        return [start for _, start in self.starts if set(self.world.bad) & set(start.slots)]

    def _act(self, action: Any) -> list[Event]:
        if isinstance(action, Start):
            self.starts.append((self.world.now, action))
        return super()._act(action)
