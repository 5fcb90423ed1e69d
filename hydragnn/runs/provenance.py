"""First run record: configuration, data, versions, machine."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.architectures import GeometricSettings
from hydragnn.base.files import digest
from hydragnn.datasets import GraphStore
from hydragnn.datasets.manifest import CHANGED_BY, cutoff_of, transform_of
from hydragnn.datasets.split import PARTS, Copies, Split, copies_across, sentence_on_copies, sentence_on_files
from hydragnn.distributed.launch import host_name
from hydragnn.distributed.sharing import shared_rows
from hydragnn.graphs.batch import edge_vectors
from hydragnn.graphs.parts import PART
from hydragnn.models import HeadSettings, ModelDescription
from hydragnn.record import BranchRecord, RunRecord
from hydragnn.runs.cutoff import ROUNDING
from hydragnn.runs.plan import BranchPlan, RunPlan, head_factors
from hydragnn.runs.statistics_cache import Caches, StatisticsCache, digest_of, training_rows
from hydragnn.training.data import RunData


def first_record(
    plan: RunPlan, data: RunData, parameters: int, device: torch.device, notes: Sequence[str]
) -> RunRecord:
    """Return the record before the first step."""
    hashes = {branch.name: branch.store.fingerprint for branch in data.branches}
    parts = {branch.name: branch.split.counts for branch in data.branches}
    unseen = [name for branch in plan.branches for name in branch.unseen_inputs]
    return RunRecord(
        config=plan.table,
        config_hash=digest(plan.table),
        data_hash=next(iter(hashes.values())) if len(hashes) == 1 else digest(hashes),
        seed=plan.training.seed,
        parameters=parameters,
        parts={part: sum(counts[part] for counts in parts.values()) for part in next(iter(parts.values()))},
        labels={name: dict(counts) for branch in data.branches for name, counts in branch.labels.items()},
        branches={name: BranchRecord(data_hash=hashes[name], parts=parts[name]) for name in hashes if name},
        trivial=dict(data.trivial),
        unseen_inputs=list(dict.fromkeys(unseen)),
        notes=list(notes),
        versions=versions(),
        hardware=hardware(device),
    )


def notes_on(plan: RunPlan, data: RunData, caches: Caches) -> list[str]:
    """Return notes on what limits the results of a run; collective."""
    notes = []
    for branch, branch_data, cache in zip(plan.branches, data.branches, caches):
        of = f"{branch.subject}: " if branch.subject else ""
        notes += [of + sentence for sentence in (*branch_data.notes, *_notes(branch, cache))]
    return notes


def _notes(branch: BranchPlan, cache: StatisticsCache) -> Iterator[str]:
    """Return notes on the data and the model of a branch; collective."""
    model, store, encoder, kind = branch.model, branch.store, branch.model.model, branch.settings.split.kind
    derived = any(head.derivatives for head in model.heads)
    for head in model.heads:
        yield from _conversions(head, model, store)
    if transform := transform_of(store.attributes):
        yield f"{CHANGED_BY}{transform}"
    if PART in store.fields() and kind != "given":
        yield (
            "the store has a graph for each mask of nodes, and this split draws them: labels of test nodes train the model; say kind = "
            f'"given" and field = "{PART.name}" under [split]'
        )
    if kind == "random" and (sentence := cache.value({"what": "files"}, partial(sentence_on_files, store))):
        yield sentence
    copies = _copies(cache, branch.split)
    if copies.count:
        yield sentence_on_copies(store, branch.split, copies)
    if derived and encoder.kinks:
        yield f"forces and stress of {encoder.kind} are not smooth: {encoder.kinks}"
    most = store.attributes.get("max_neighbours")
    if derived and model.edges and isinstance(most, int) and not isinstance(most, bool):
        yield (
            f"energies jump and forces are not smooth where another neighbour becomes one of the {most} nearest, which are all that "
            f"the store keeps (max_neighbours = {most}); a store built without max_neighbours keeps every neighbour within its cutoff"
        )
    if not model.edges or not isinstance(encoder, GeometricSettings) or encoder.cutoff is None:
        return
    limit = cutoff_of(store.attributes)
    if derived and encoder.envelope == "none":
        where = (
            "wherever edges come and go" if limit is None else f"where neighbours cross the store's cutoff of {limit:g}"
        )
        yield (
            f"energies jump and forces are not smooth {where}, since there is no envelope; envelope = "
            '"polynomial" ends messages smoothly at model.cutoff'
        )
    if encoder.envelope != "none" and (limit is None or encoder.cutoff * ROUNDING < limit):
        silenced, edges = silenced_edges(cache, branch.split.train, encoder.cutoff)
        if silenced:
            yield (
                f"the envelope silences {silenced} of the {edges} edges of the training part ({silenced / edges:.1%}): they are as "
                f'long as model.cutoff = {encoder.cutoff:g} or longer; raise it, or say envelope = "none" where edges do not come from a cutoff'
            )


def _conversions(head: HeadSettings, model: ModelDescription, store: GraphStore) -> Iterator[str]:
    """Return notes on labels in other units or of other parity."""
    for what, factor in head_factors(head, model, store).items():
        field = model.fields[head.derivatives[what]]
        stored = next(one for one in store.fields() if one.name == field.name)
        if stored.parity != field.parity:
            yield (
                f'{field.name} is taken as a {field.parity}, since it is a derivative of {head.field}; say parity = "{field.parity}" in the '
                "build file"
            )
        if factor != 1.0:
            yield (
                f"{field.name} is learned and predicted in {field.unit}: {factor:.8g} times the derivative of {head.field} in "
                f"{model.fields[head.field].unit or 'its unit'}"
            )


def silenced_edges(cache: StatisticsCache, train: NDArray[np.int64], cutoff: float) -> list[int]:
    """Return how many edges are silenced, of how many; collective."""

    def counts(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        lengths = edge_vectors(cache.store.read(graphs, [])).norm(dim=1)
        return np.array([float((lengths >= cutoff).sum()), float(len(lengths))])

    def totals() -> list[int]:
        return [int(total) for total in training_rows(train, cache, 2, counts).sum(axis=0)]

    return cache.value({"what": "silenced edges", "train": digest_of(train), "cutoff": cutoff}, totals)


def _copies(cache: StatisticsCache, split: Split) -> Copies:
    """Return the counts of copies outside training; collective."""
    of = {"what": "copies of structures", **{name: digest_of(getattr(split, name)) for name in PARTS}}
    rows = shared_rows(cache.ranks)
    return Copies(*cache.value(of, lambda: astuple(copies_across(cache.store, split, rows, cache.heartbeat))))


def versions() -> dict[str, str]:
    """Versions of what computes."""
    from hydragnn import __version__

    own = {"hydragnn": __version__, "python": platform.python_version()}
    return {**own, "torch": torch.__version__, "numpy": np.__version__}


def hardware(device: torch.device) -> dict[str, str | int]:
    """The machine of this rank."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"host": host_name(), "device": name, "type": device.type, "threads": torch.get_num_threads()}


def processor_name() -> str:
    """The processor as the system names it."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
