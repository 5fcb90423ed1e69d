"""Allocation: nodes, cores and GPUs that a search may use."""

import math
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product, zip_longest

from hydragnn.base.errors import InputError

Run = Callable[[Sequence[str]], str]  # runs a program and returns its output; InputError where it fails

ANSWER = 30.0  # seconds that a scheduler may take to answer
MOST = 100_000  # names that one entry of a list of nodes may stand for
ALIKE = 0.1
"""Part of a share that may be missing. Memory of nodes that are alike differs by some MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Machine of an allocation, as far as it belongs to the job."""

    name: str
    cores: int
    """Cores as the scheduler counts them."""
    gpus: int = 0
    memory: int | None = None
    """Bytes; None where the scheduler does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Nodes that belong to this search, each of its own size."""

    by: str = ""
    """Name of the site that gave it."""
    nodes: tuple[Node, ...]
    deadline: float | None = None
    """End in seconds since 1970; None where there is no end."""
    job: str = ""
    """The scheduler's name for it."""
    unused: tuple[str, ...] = ()
    """Names of further nodes, which take no part."""
    managed: bool = False
    """Steps are managed inside the job (``sbatch --stepmgr``)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, in the scheduler's order."""
        return tuple(node.name for node in self.nodes)

    @property
    def sizes(self) -> dict[str, int]:
        """GPUs of every node, or cores where no node has a GPU."""
        has_gpus = any(node.gpus for node in self.nodes)
        return {node.name: node.gpus if has_gpus else node.cores for node in self.nodes}

    def fastest_kind(self) -> "Allocation":
        """Return the allocation without nodes that lack the GPU that others have."""
        slow = tuple(node.name for node in self.nodes if not node.gpus)
        if not slow or len(slow) == len(self.nodes):
            return self
        return replace(self, nodes=tuple(node for node in self.nodes if node.gpus), unused=slow)

    def least(self, names: Collection[str]) -> tuple[int, int]:
        """Return the fewest cores and GPUs among these nodes."""
        name_set = set(names)
        nodes = [node for node in self.nodes if node.name in name_set] or self.nodes
        return min(node.cores for node in nodes), min(node.gpus for node in nodes)

    def shares(self, of_largest: int) -> dict[str, int]:
        """Return the number of shares of each node.

        Every share is about as large as those of the largest node, in GPUs or cores and in memory, where it is known.

        >>> nodes = (Node(name="a", cores=8), Node(name="b", cores=4), Node(name="c", cores=3))
        >>> Allocation(by="slurm", nodes=nodes).shares(8)
        {'a': 8, 'b': 4, 'c': 3}
        """
        sizes = self.sizes
        largest = max(self.nodes, key=lambda node: (sizes[node.name], -(node.memory or math.inf)))
        shares: dict[str, int] = {}
        for node in self.nodes:
            ratio = sizes[node.name] / max(1, sizes[largest.name])
            if node.memory and largest.memory:
                ratio = min(ratio, node.memory / largest.memory)
            shares[node.name] = max(1, int(of_largest * ratio + ALIKE)) if node is not largest else of_largest
        return shares

    def __str__(self) -> str:
        """Sizes of the nodes, in words.

        >>> str(Allocation(by="slurm", nodes=(*alike(["a"], 8, 4), *alike(["b", "c"], 4))))
        '1 node with 8 cores and 4 GPUs, 2 nodes with 4 cores and 0 GPUs'
        """
        counts = Counter((node.cores, node.gpus) for node in self.nodes)
        has_gpus = any(node.gpus for node in self.nodes)
        return ", ".join(
            f"{count} node{'s' * (count > 1)} with {cores} cores{f' and {gpus} GPUs' if has_gpus else ''}"
            for (cores, gpus), count in counts.items()
        )


def alike(names: Iterable[str], cores: int, gpus: int = 0) -> tuple[Node, ...]:
    """Return nodes of one size."""
    return tuple(Node(name=name, cores=cores, gpus=gpus) for name in names)


def output_of(command: Sequence[str], *, seconds: float = ANSWER, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a program.

    InputError where it is missing, fails or does not answer within so many ``seconds``.
    """
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except FileNotFoundError as error:
        raise InputError(f"{command[0]} is not on the PATH; load the scheduler's module, or go where it is") from error
    except OSError as error:
        raise InputError(f"{command[0]} cannot be run: {error.strerror or error}; try again later") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{' '.join(command)} did not answer within {seconds:.0f} s; is the scheduler up?") from error
    if process.returncode:
        raise InputError(f"{' '.join(command)} failed: {(process.stderr or process.stdout).strip()[-500:]}")
    return process.stdout


def hosts(text: str) -> tuple[str, ...]:
    """Return the names that a compressed list stands for.

    What is no such list, or one of more than ``MOST`` names, stands for itself.

    >>> hosts("n[08-10,12],login1")
    ('n08', 'n09', 'n10', 'n12', 'login1')
    >>> hosts("rack[0-1]_blade[0-1]")
    ('rack0_blade0', 'rack0_blade1', 'rack1_blade0', 'rack1_blade1')
    """
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        pieces = re.split(r"\[([^\[\]]*)\]", item)  # every other one stands in brackets
        lists = [_ranges(one) for one in pieces[1::2]]
        if 0 < math.prod(sum(len(span) for _, span in one) for one in lists) <= MOST:
            numbered = ([f"{number:0{width}d}" for width, span in one for number in span] for one in lists)
            rows = product(*numbered)
            names += ["".join(chain(*zip_longest(pieces[::2], row, fillvalue=""))) for row in rows]
        else:
            names.append(item)
    return tuple(names)


def _ranges(text: str) -> list[tuple[int, range]]:
    """Return the digits and numbers of ranges; none if one is none."""
    ends = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part) for part in text.split(",")]
    return [(len(end[1]), range(int(end[1]), int(end[2] or end[1]) + 1)) for end in ends if end] if all(ends) else []
