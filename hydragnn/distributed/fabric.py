"""Time of collectives: latency and bandwidth of a fabric, measured or stated."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.base.errors import InputError, nearest
from hydragnn.distributed.ranks import Ranks
from hydragnn.parallel import AXES, Axis

Collective = Literal["all-reduce", "all-gather", "all-to-all"]
"""A reduce-scatter takes as long as an all-gather."""

SIZES = (4 * 2**10, 256 * 2**10, 4 * 2**20)
"""Bytes of the tensors that are measured."""

REPEATS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Straight line of the time of a message."""

    latency: float
    """Seconds of a message without bytes."""
    bandwidth: float
    """Bytes per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks of a collective, beside others that do the same."""

    size: int
    nodes: int = 1
    """Nodes on which they are."""
    sharing: int = 1
    """Groups that share the network of a node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """Network of ranks, inside nodes and between them.

    Rings move bytes and trees hide latency (Thakur et al. 2005, doi:10.1177/1094342005051521): n ranks take log2(n) messages and (n - 1) / n of the bytes,
    an all-reduce both twice; an all-to-all takes n - 1 messages.
    """

    within: Mapping[Collective, Link]
    """Links of one rank inside a node."""
    between: Link
    """Of a whole node with the network."""
    source: str
    """Where the figures are from."""

    def seconds(self, kind: Collective, size: float, group: Group) -> float:
        """Return the time of a collective over ``size`` bytes.

        That is the tensor reduced, the tensor after gathering, or what one rank sends.
        """
        if group.size == 1:
            return 0.0
        link = self.within[kind]
        latency, bandwidth = link.latency, link.bandwidth
        if group.nodes > 1:
            latency = max(latency, self.between.latency)
            bandwidth = min(bandwidth, self.between.bandwidth / group.sharing)
        messages, share = work_of(kind, group.size)
        return messages * latency + share * size / bandwidth


def work_of(kind: Collective, ranks: int) -> tuple[int, float]:
    """Return consecutive messages, and the share of bytes that moves.

    >>> work_of("all-reduce", 4), work_of("all-gather", 4), work_of("all-to-all", 4)
    ((4, 1.5), (2, 0.75), (3, 0.75))
    """
    share = (ranks - 1) / ranks
    messages = ceil(log2(ranks))
    return {"all-reduce": (2 * messages, 2 * share), "all-gather": (messages, share)}.get(kind, (ranks - 1, share))


def group_along(sizes: Mapping[Axis, int], axes: tuple[Axis, ...], ranks_per_node: int) -> Group:
    """Return the ranks of a mesh that differ along some axes.

    >>> group_along({"replicate": 4, "shard": 1, "pipeline": 1, "graph": 1, "tensor": 2}, ("replicate",), 4)
    Group(size=4, nodes=2, sharing=2)
    """
    members = np.zeros(1, dtype=np.int64)
    stride = 1
    for axis in reversed(AXES):
        if axis in axes:
            members = (members[:, None] + stride * np.arange(sizes[axis])).ravel()
        stride *= sizes[axis]
    nodes = len(np.unique(members // ranks_per_node))
    return Group(size=len(members), nodes=nodes, sharing=max(1, ranks_per_node * nodes // len(members)))


def alike(link: Link) -> dict[Collective, Link]:
    """Return one link for all collectives."""
    return {"all-reduce": link, "all-gather": link, "all-to-all": link}


LATENCY = 20e-6
"""Seconds of a message between accelerators, assumed: of the order of a kernel's launch and a network's round trip."""


def _slingshot(within: float, source: str) -> Fabric:
    """Return the fabric of nodes with four Slingshot cards of 25 GB/s."""
    return Fabric(
        within=alike(Link(latency=LATENCY, bandwidth=within)),
        between=Link(latency=LATENCY, bandwidth=4 * 25e9),
        source=f"{source}: 4 network cards of 25 GB/s per node, {within / 1e9:g} GB/s between devices; 20 microseconds of latency are assumed",
    )


SITES: Mapping[str, Fabric] = {
    "frontier": _slingshot(50e9, "docs.olcf.ornl.gov/systems/frontier_user_guide.html"),
    "lumi": _slingshot(50e9, "docs.lumi-supercomputer.eu/hardware/lumig"),
    "perlmutter": _slingshot(100e9, "docs.nersc.gov/systems/perlmutter/architecture"),
}
"""Figures of vendors and sites; no collective reaches all of a bandwidth."""


def site_fabric(name: str) -> Fabric:
    """Return the stated fabric of a machine; InputError names the nearest."""
    if name not in SITES:
        hint = nearest(name, list(SITES))
        raise InputError(f"--site {name}: no figures of this machine; {hint}, or measure by starting ranks")
    return SITES[name]


def measured_fabric(ranks: Ranks, device: torch.device) -> Fabric:
    """Return the fabric of these ranks, by small collectives.

    All ranks call it together. Ranks of several nodes measure the network, which then stands for links inside nodes too.
    """
    within = {kind: _fitted(kind, ranks, device) for kind in WORK}
    one = within["all-reduce"]
    between = Link(latency=one.latency, bandwidth=one.bandwidth * ranks.size / ranks.nodes)
    return Fabric(within=within, between=between, source=f"measured with {ranks.size} ranks on {ranks.nodes} node(s)")


WORK: Mapping[Collective, Callable[[Tensor], object]] = {
    "all-reduce": dist.all_reduce,
    "all-gather": lambda rows: dist.all_gather(list(rows), rows[0].clone()),
    "all-to-all": lambda rows: dist.all_to_all_single(torch.empty_like(rows), rows),
}
"""Collectives of a tensor with a row for every rank."""


def _fitted(kind: Collective, ranks: Ranks, device: torch.device) -> Link:
    """Return the line through the least times; equal on all ranks."""
    times = torch.zeros(len(SIZES), dtype=torch.float64)
    for number, size in enumerate(SIZES):
        rows = torch.zeros(ranks.size, max(1, size // 4 // ranks.size), device=device)
        WORK[kind](rows)
        seconds = []
        for _ in range(REPEATS):
            ranks.wait()
            begin = time.perf_counter()
            WORK[kind](rows)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - begin)
        times[number] = min(seconds)
    mean = ranks.sum_in_place(times.to(device)).cpu().numpy() / ranks.size
    messages, share = work_of(kind, ranks.size)
    return _line(np.array(SIZES, dtype=np.float64), mean, messages, share)


def _line(sizes: NDArray[np.float64], times: NDArray[np.float64], messages: int, share: float) -> Link:
    """Return the link by least squares of relative errors, never negative."""
    from scipy.optimize import nnls

    columns = np.stack([np.full(len(sizes), float(messages)), share * sizes], axis=1) / times[:, None]
    (latency, per_byte), _ = nnls(columns, np.ones(len(sizes)))
    return Link(latency=float(latency), bandwidth=1.0 / max(float(per_byte), 1e-15))
