"""Samples made one by one, written into a store in blocks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import GraphBatch, concatenate

_BLOCK = 64


def write_samples(
    out: Path, sample: Callable[[int], GraphBatch], samples: int, *, title: str, attributes: Mapping[str, Any]
) -> None:
    """Make a store of ``sample(0)``, ``sample(1)``, ... with a progress bar.

    InputError for fewer than one sample, and where the store cannot be written.
    """
    if samples < 1:
        raise InputError(f"{title}: {samples} samples; give at least 1")
    first = sample(0)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns) as progress,
        StoreWriter(out, list(first.fields.values()), dim=first.dim, attributes=attributes) as writer,
    ):
        task = progress.add_task(title, total=samples)
        for start in range(0, samples, _BLOCK):
            block = [first] if start == 0 else []
            for number in range(start + len(block), min(start + _BLOCK, samples)):
                block.append(sample(number))
                progress.update(task, completed=number + 1)
            writer.write(concatenate(block))
        progress.update(task, completed=samples)
