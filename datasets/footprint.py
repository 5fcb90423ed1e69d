"""Memory of batches as a function of their sizes, and its limit."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.datasets.store import Sizes

Form = tuple[float, ...]
"""Bytes: fixed, and for every graph, node, edge, and square of the number of nodes of a graph."""

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Peak memory of a batch: the largest of several linear functions.

    No coefficient is negative, so that a part of a batch never needs more than the whole.
    """

    forms: tuple[Form, ...]
    kept: Form
    """What a batch holds while another is computed: its tensors, and those of its parts."""

    def bytes(self, sizes: Sizes, graphs: Int64[ndarray, " chosen"]) -> float:
        """Return the peak memory of a batch of these graphs."""
        amounts = amounts_of(sizes, graphs).sum(axis=0)
        return float(np.max(np.array(self.forms) @ np.concatenate([[1.0], amounts])))

    def alone(self, sizes: Sizes, graphs: Int64[ndarray, " chosen"]) -> Float64[ndarray, " chosen"]:
        """Return the peak memory of each graph as a batch."""
        forms, amounts = np.array(self.forms), amounts_of(sizes, graphs)
        return np.max([form[0] + amounts @ form[1:] for form in forms], axis=0)

    def held(self, sizes: Sizes, graphs: Int64[ndarray, " chosen"]) -> float:
        """Return the memory that a batch holds while another is computed."""
        return float(self.each_held(sizes, graphs).sum())

    def each_held(self, sizes: Sizes, graphs: Int64[ndarray, " chosen"]) -> Float64[ndarray, " chosen"]:
        """The same for each of the graphs."""
        return amounts_of(sizes, graphs) @ np.array(self.kept[1:])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"forms": [list(form) for form in self.forms], "kept": list(self.kept)}


def footprint_from_json(value: dict[str, Any]) -> Footprint:
    """The footprint that ``to_json`` gave."""
    return Footprint(forms=tuple(tuple(form) for form in value["forms"]), kept=tuple(value["kept"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimit:
    """Limit of memory in bytes, with the footprint of batches."""

    footprint: Footprint
    size: int

    def check(self, sizes: Sizes, graphs: Int64[ndarray, " chosen"], *, beside: float = 0.0) -> None:
        """Raise InputError for the first graph that does not fit alone."""
        needed = self.footprint.alone(sizes, graphs) + beside
        if len(needed) and needed.max() > self.size:
            place = int(needed.argmax())
            graph = int(graphs[place])
            raise InputError(
                f"graph {graph} ({sizes.nodes[graph]} nodes, {sizes.edges[graph]} edges) takes {in_words(needed[place])} of memory, "
                f"more than the limit of {in_words(self.size)}; give more memory, take a smaller model or leave the graph out"
            )


def amounts_of(sizes: Sizes, graphs: Int64[ndarray, " chosen"]) -> Float64[ndarray, "chosen 4"]:
    """Return 1, nodes, edges and squared nodes of every graph."""
    nodes = sizes.nodes[graphs].astype(np.float64)
    return np.stack([np.ones(len(nodes)), nodes, sizes.edges[graphs].astype(np.float64), nodes**2], axis=1)


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as ``"4 GB"`` or ``"512 MiB"``.

    InputError for anything else.

    >>> bytes_of("4 GB"), bytes_of("1.5MiB"), bytes_of("4096")
    (4000000000, 1572864, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in UNITS or not float(match[1]):
        raise InputError(f"{text!r} is no amount of memory; write for example 4 GB or 512 MiB")
    return int(float(match[1]) * UNITS[match[2]])


def in_words(size: int | float) -> str:
    """Bytes as people write them.

    >>> in_words(4_200_000_000), in_words(900)
    ('4.2 GB', '900 bytes')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
