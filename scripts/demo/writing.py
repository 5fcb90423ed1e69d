"""Samples made one by one, written into a store in blocks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import GraphBatch
from hydragnn.scripts.showing import graphs_made


def write_samples(
    out: Path, sample: Callable[[int], GraphBatch], samples: int, *, title: str, attributes: Mapping[str, Any]
) -> None:
    """Make a store of ``sample(0)``, ``sample(1)``, ... and show progress.

    InputError for fewer than one sample, and where the store cannot be written.
    """
    if samples < 1:
        raise InputError(f"{title}: {samples} samples; give at least 1")
    first = sample(0)
    fields = list(first.fields.values())
    with graphs_made() as tell, StoreWriter(out, fields, dim=first.dim, attributes=attributes) as writer:
        for number in range(samples):
            writer.write(sample(number) if number else first)
            tell(number + 1)
