"""Exact copies among the graphs of a store, found by their digests."""

from dataclasses import dataclass

import numpy as np

from hydragnn.datasets.split import PARTS, WORDS, Split, copy_labels
from hydragnn.datasets.store import GraphStore, stored_label


@dataclass(frozen=True, slots=True)
class Copies:
    """Graphs that are copies of graphs in an earlier part, with one example."""

    count: int
    of: int
    """Graphs outside the training part."""
    copy: int = -1
    original: int = -1


def copies_across(store: GraphStore, split: Split) -> Copies:
    """Count the graphs outside training that are copies across parts."""
    labels = copy_labels(store)
    part = np.full(len(store), len(PARTS), dtype=np.int64)
    for number, name in enumerate(PARTS):
        part[getattr(split, name)] = number
    first = np.full(int(labels.max(initial=0)) + 1, len(PARTS), dtype=np.int64)
    np.minimum.at(first, labels, part)
    copies = np.flatnonzero((part < len(PARTS)) & (part > first[labels]))
    of = sum(split.counts.values()) - len(split.train)
    if not len(copies):
        return Copies(0, of)
    copy = int(copies[0])
    original = int(np.flatnonzero((labels == labels[copy]) & (part == first[labels[copy]]))[0])
    return Copies(len(copies), of, copy, original)


def sentence_on_copies(store: GraphStore, split: Split, copies: Copies) -> str:
    """Return a sentence on copies in a split that has some."""
    same = stored_label(store, copies.copy) == stored_label(store, copies.original)  # as copies often are called

    def where(graph: int) -> str:
        (name,) = [name for name in PARTS if graph in getattr(split, name)]
        number = f"number {graph}, " if same else ""
        return f"{stored_label(store, graph)} ({number}{WORDS.get(name, name)})"

    return (
        f"{copies.count} of {copies.of} graphs outside the training part are exact copies of graphs in another part, such as "
        f"{where(copies.copy)} of {where(copies.original)}, so that errors there are too small; "
        'set split.group = "duplicates", which keeps copies together'
    )
