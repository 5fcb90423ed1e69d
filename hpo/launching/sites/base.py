"""Site: everything that the program knows of one scheduler."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from hydragnn.hpo.launching.allocation import Allocation, Run

NodeState = Literal["well", "silent", "lost"]
"""State of a node; silent: it does not answer at the moment."""

NodeStates = dict[str, NodeState]
"""States by short names of nodes; a node without news is missing."""

PACK_NODES = 128  # nodes of one resident step at most; 9,408 nodes are 74 steps


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
    """Ranks are independent, and all read the launcher's standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Evidence in a launcher's own messages about the end of a step."""

    suspects: tuple[str, ...] = ()
    started: bool = True
    unreachable: bool = False
    """It did not start because the scheduler did not answer."""
    out_of_memory: bool = False
    code: int | None = None
    """Exit code of the first rank that failed."""
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Machine of a scheduler, as far as batch jobs depend on it."""

    storage: str = "/tmp"
    """Folder in which nodes keep copies of environment and data."""
    directives: str = ""
    """Further directives of its jobs, as a Jinja template."""
    setup: tuple[tuple[str, str], ...] = ()
    """Lines of bash after those of ``job.setup``, each with the address of the page that says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Batch jobs of a scheduler: commands, and blocks of the job's script."""

    directive: str
    """Beginning of a line that the scheduler reads."""
    account: str
    """Beginning of the option that says who is billed."""
    queue: str
    submit: tuple[str, ...]
    submit_from_job: tuple[str, ...]
    """The same from within a job."""
    after: str
    """Options that make a job wait for the end of job ``{}``."""
    script: str
    """Jinja template that extends ``job.sh.j2``."""
    inherited: str = ""
    """Pattern of variables that a job must not inherit from another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site(ABC):
    """Scheduler; name your own class in ``search.launcher`` and ``job.site``.

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
    """Variable with the name of a rank's node; empty without one."""
    rank_variables: ClassVar[tuple[str, ...]] = ()
    """Variables with a rank's number in the step; the first counts."""
    local_rank_variables: ClassVar[tuple[str, ...]] = ()
    """Variables with a rank's number on its node; the first counts."""
    contradicting: ClassVar[tuple[str, ...]] = ()
    """Beginnings of variables that override a step's command line."""
    own_steps: ClassVar[bool] = False
    """Allocations manage their steps themselves, and can carry more of them."""
    pack_nodes: int = PACK_NODES
    """Nodes of one resident step at most. 1 where a launcher feeds its input to the first rank only."""

    @classmethod
    @abstractmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return this process's allocation; InputError where the scheduler does not answer."""

    @classmethod
    def here(cls, run: Run) -> "Site":
        """Return the site with what its programs say of themselves."""
        return cls()

    @abstractmethod
    def command(self, step: Step) -> list[str]:
        """Return the command that starts a step and stays until it ends."""

    def signal(self, name: str, signal: str) -> list[str] | None:
        """Return the command that signals all ranks; None without one."""
        return None

    def steps(self, job: str) -> list[str] | None:
        """Return the command that prints ``number name`` of steps; None without one."""
        return None

    def end(self, numbers: Sequence[str]) -> list[str]:
        """Return the command that kills steps by the numbers that ``steps`` prints."""
        raise NotImplementedError(f"{type(self).__name__} has steps but no end, which kills them")

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """Return the command that prints states of nodes; None without one."""
        return None

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """Return the states of nodes that the output of ``look`` has."""
        return {}

    def look_at_job(self, job: str) -> list[str] | None:
        """Return the command that prints the job's state; None without one."""
        return None

    def job_over(self, printed: str) -> str | None:
        """Return how a job ended, from the output of ``look_at_job``.

        Empty where it has its nodes, None for no news.
        """
        return None

    def evidence(self, log: str) -> Evidence:
        """Return what the launcher wrote about a step into its log."""
        return Evidence()


def short_name(node: str) -> str:
    """Return a node's name without its domain.

    >>> short_name("x1001.hsn.site")
    'x1001'
    """
    return node.partition(".")[0]
