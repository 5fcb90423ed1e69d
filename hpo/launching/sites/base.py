"""Site: everything that the program knows of one scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from hydragnn.hpo.launching.allocation import Allocation, Run

NodeState = Literal["well", "silent", "lost"]
"""State of a node; silent: it does not answer at the moment."""

NodeStates = dict[str, NodeState]
"""States by short names of nodes; a node without news is missing."""

PACK_NODES = 128
"""Nodes of one resident step: 9,408 nodes are 74 steps, below what a job may have, and a step that breaks takes few with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Job step: the same program, ``ranks`` times on each of its nodes."""

    name: str
    nodes: tuple[str, ...]
    program: tuple[str, ...]
    cores: int = 1
    """Cores that the step takes of each node."""
    gpus: int = 0
    """GPUs that the step takes of each node."""
    ranks: int = 1
    """Ranks per node."""
    resident: bool = False
    """Ranks are independent, outlive each other and the loss of nodes, and all read the launcher's standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a launcher's own messages reveal about the end of a step."""

    suspects: tuple[str, ...] = ()
    started: bool = True
    unreachable: bool = False
    """It did not start because the scheduler did not answer, which says nothing about its nodes."""
    out_of_memory: bool = False
    code: int | None = None
    """Exit code of the first rank that failed; launchers themselves return that of the last, or of the signal they sent."""
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Machine that a scheduler serves, as far as batch jobs depend on it."""

    storage: str = "/tmp"
    """Folder in which nodes keep copies of environment and data."""
    directives: str = ""
    """Further directives of its jobs, as a Jinja template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Batch jobs of a scheduler: commands, and blocks of the job's script."""

    directive: str
    """Beginning of a line that the scheduler reads."""
    submit: tuple[str, ...]
    submit_from_job: tuple[str, ...]
    """The same from within a job; Flux would else give the job's own nodes to its successor."""
    after: str
    """Options that make a job wait for the end of job ``{}``, however it ends."""
    script: str
    """Jinja template that extends ``job.sh.j2``."""
    inherited: str = ""
    """Pattern of variables that a job must not inherit from the job that submitted it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One scheduler; derive from it, and name the class in ``search.launcher`` and ``job.site``.

    What a scheduler's tool cannot say (``unknown``, an error, nothing) is no news, and no method takes it for bad news.
    """

    name: ClassVar[str]
    """Value of ``search.launcher``."""
    mark: ClassVar[str] = ""
    """Variable of the environment that is set in every allocation."""
    machines: ClassVar[Mapping[str, Machine]] = {}
    """Machines by the values of ``job.site``."""
    batch: ClassVar[Batch | None] = None
    """Batch jobs; None where they cannot be submitted."""
    node_variable: ClassVar[str] = ""
    """Variable that gives a rank the name of its node; empty where ranks are in the order of the nodes."""
    rank_variables: ClassVar[tuple[str, ...]] = ()
    """Variables that give a rank its number in the step, the first that is set."""
    local_rank_variables: ClassVar[tuple[str, ...]] = ()
    """Variables that give a rank its number on its node, the first that is set."""
    contradicting: ClassVar[tuple[str, ...]] = ()
    """Beginnings of variables by which a job's own options override a step's command line."""
    own_steps: ClassVar[bool] = False
    """Allocations manage their steps themselves, and can carry more of them."""
    pack_nodes: int = PACK_NODES
    """Nodes of one resident step at most; 1 where a launcher feeds its input to the first rank only."""

    @classmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return the allocation that this process runs in; InputError where the scheduler does not answer."""
        raise NotImplementedError

    @classmethod
    def here(cls, run: Run) -> "Site":
        """Return the site with what its programs say of themselves."""
        return cls()

    def command(self, step: Step) -> list[str]:
        """Return the command that starts a step and stays until it ends."""
        raise NotImplementedError

    def signal(self, name: str, signal: str) -> list[str] | None:
        """Return the command that signals all ranks of a step; None where the process of ``command`` passes signals on."""
        return None

    def steps(self, job: str) -> list[str] | None:
        """Return the command that prints ``number name`` of a job's steps; None where a step is its process and no more."""
        return None

    def end(self, numbers: Sequence[str]) -> list[str]:
        """Return the command that kills steps by the numbers that ``steps`` prints."""
        raise NotImplementedError

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """Return the command that prints states of nodes; None where there is no cheap one."""
        return None

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """Return the states of nodes in the output of ``look(nodes)``, without nodes of which it has no news."""
        return {}

    def look_at_job(self, job: str) -> list[str] | None:
        """Return the command that prints whether a job still has its nodes; None where there is none."""
        return None

    def job_over(self, printed: str) -> str | None:
        """Return how a job ended, from the output of ``look_at_job`` with errors; empty where it has its nodes, None for no news."""
        return None

    def evidence(self, log: str) -> Evidence:
        """Return what the launcher wrote about a step into its log."""
        return Evidence()


def short_name(node: str) -> str:
    """Return a node's name without its domain, which not all tools of a scheduler print.

    >>> short_name("x1001.hsn.site")
    'x1001'
    """
    return node.partition(".")[0]
