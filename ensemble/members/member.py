"""One member: a trained model, its run, and its weight."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError, about, words_of
from hydragnn.base.files import digest, read_json
from hydragnn.base.machine import cores, free_memory, visible_gpus
from hydragnn.base.places import weights_folder
from hydragnn.config import RunConfig, parse_config
from hydragnn.ensemble.members.latent import LatentSpace
from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.field import Field
from hydragnn.models import Distribution, Target, TrainedModel, concatenate_distributions, load_model
from hydragnn.record import OUTSIDE, RunRecord, read_record
from hydragnn.runs.folder import decisive

GROWTH = 2.0
"""Memory of a loaded member per byte of its file: it predicts, and a copy has the parameters that may train."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Member:
    """A model of an ensemble; weights of all members sum to 1."""

    name: str
    weight: float
    model: TrainedModel
    config: RunConfig
    record: RunRecord
    latent: LatentSpace | None = None
    """Moments of the final states of its training graphs."""
    number: int = 0
    """Its position among all members."""
    together: "Callable[[Member, GraphBatch], MemberOutcome | None] | None" = None
    """Function that computes it with others; gives None where it is to be computed alone."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the targets of the member."""
        return self.model.targets

    @property
    def inputs(self) -> tuple[Field, ...]:
        """Return the fields that the member reads."""
        return tuple(self.model.fields[name] for name in self.model.inputs)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemberOutcome:
    """Predictions of one member for one batch; NaN where a graph failed."""

    predictions: Mapping[str, Distribution]
    reasons: tuple[str, ...]
    """One per graph; empty where all went well."""
    distances: Float[np.ndarray, "graphs 3"]
    """Distances of final states from those of training, see ``LatentSpace``; NaN where unknown."""
    node_distances: Float[np.ndarray, " nodes"]
    """Distances of every node."""


def load_member(
    folder: Path | str,
    *,
    name: str = "",
    weight: float = 1.0,
    dtype: torch.dtype | None = None,
    branch: str = "",
    latent: LatentSpace | None = None,
) -> Member:
    """Return a finished run, or a member's folder, as a member; InputError where damaged.

    Its name is by default that of the folder. Of a run with several branches it has one: its heads, its data set and its part of the record. The model computes on a GPU where there is one, in ``dtype``; without it in double precision if it was trained so.
    """
    folder = Path(folder)
    model = weights_folder(folder)
    if not (model / "model.json").is_file():
        raise InputError(f"{folder} holds no trained model; finish it with: hydragnn train {folder} --resume")
    with about(str(folder)):
        config = parse_config(read_json(folder / "config.json"), "config.json").of_branch(branch)
    precision = dtype or (torch.float64 if config.train.precision == "fp64" else torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trained = load_model(model, dtype=precision, device=device, branch=branch).tabulated()
    if latent is not None and len(latent.whitening) != trained.model.channels:
        raise InputError(
            f"the training domain knows states of {len(latent.whitening)} channels, and the model in {model} has "
            f"{trained.model.channels}; copy or build the ensemble again"
        )
    name, record = name or folder.resolve().name, read_record(folder).of_branch(branch)
    return Member(name=name, weight=weight, model=trained, config=config, record=record, latent=latent)


def check_members(members: Sequence[Member]) -> None:
    """Raise InputError where members do not fit together."""
    first = members[0]
    for other in members[1:]:
        where = f"members {first.name} and {other.name}"
        if {target.name for target in first.targets} != {target.name for target in other.targets}:
            ours, theirs = (sorted(target.name for target in member.targets) for member in (first, other))
            problem = f"{where} predict different fields ({', '.join(ours)} and {', '.join(theirs)})"
            raise InputError(f"{problem}; choose runs that share them")
        for field in (target.field for target in first.targets):
            if other.model.fields[field.name] != field:
                raise InputError(
                    f"{where} mean different things by {field.name}: {field} and {other.model.fields[field.name]}"
                )
        if first.model.description.dim != other.model.description.dim:
            raise InputError(
                f"{where} see graphs of dimensions {first.model.description.dim} and {other.model.description.dim}; choose runs on one store"
            )
        same = first.record.data_hash == other.record.data_hash
        if first.config.data.edges != other.config.data.edges:
            whole, bare = (first, other) if first.config.data.edges else (other, first)
            same = bare.record.data_hash == digest({"without_edges": whole.record.data_hash})
        if not same:
            raise InputError(f"{where} were trained on different data; choose runs on one store")


def check_memory(folder: Path, members: Sequence[Path], processes: int = 1) -> None:
    """Raise InputError where ``processes`` of this machine have no memory for members.

    ``members`` are folders; one without weights counts nothing.
    """
    sizes = [path.stat().st_size for member in members if (path := member / "weights.safetensors").is_file()]
    here = min(processes, visible_gpus() or cores())
    if visible_gpus():
        device, free = "GPU", torch.cuda.mem_get_info()[0] * visible_gpus()
    else:
        device, free = "machine", free_memory()
    if (needed := GROWTH * sum(sizes)) > free / here:
        raise InputError(
            f"{folder}: its members take {needed / 1e9:.3g} GB of memory, and the {device} has {free / here / 1e9:.3g} GB for each of "
            f"{here} processes; take fewer members, fewer processes, or another device"
        )


def check_no_copies(members: Sequence[Member]) -> None:
    """Raise InputError where two members are copies of one run."""
    by_settings: dict[str, Member] = {}
    for member in members:
        key = digest([decisive(member.record.config), member.record.start.get(OUTSIDE)])
        first = by_settings.setdefault(key, member)
        if first is not member:
            raise InputError(
                f"members {first.name} and {member.name} have the same settings and seed, so that they differ by rounding and show no uncertainty; "
                "leave one out, or train it with another train.seed"
            )


def shared_inputs(members: Sequence[Member]) -> dict[str, Field]:
    """Return every field of some member; InputError where two differ."""
    inputs: dict[str, Field] = {}
    for member in members:
        for field in member.inputs:
            if inputs.setdefault(field.name, field) != field:
                raise InputError(
                    f"members mean different things by the input {field.name}: {inputs[field.name]} and {field}"
                )
    return inputs


def optional_inputs(members: Iterable[Member], inputs: Iterable[Field]) -> frozenset[str]:
    """Return the ``inputs`` that graphs may lack for every member."""
    required = (member.model.description.required_inputs for member in members)
    return frozenset(field.name for field in inputs).difference(*required)


def outcome(member: Member, batch: GraphBatch) -> MemberOutcome:
    """Return the member's predictions for a batch; failures stay with their graph."""
    result = None if member.together is None else member.together(member, batch)
    return outcome_alone(member, batch) if result is None else result


def outcome_alone(member: Member, batch: GraphBatch) -> MemberOutcome:
    """Return the outcome of a member that is computed alone."""
    try:
        predictions, states = member.model.predict_with_states(batch)
    except (InputError, MemoryError, RuntimeError) as error:
        if not isinstance(error, InputError) and not is_lack_of_memory(error):
            raise
        if batch.num_graphs == 1:
            return blank_outcome(member, batch, (words_of(error),))
        return join_outcomes([outcome_alone(member, half) for half in _halves(batch)])
    return finished_outcome(member, batch, predictions, states)


def blank_outcome(member: Member, batch: GraphBatch, reasons: tuple[str, ...]) -> MemberOutcome:
    """Return NaN for all graphs, with a reason for each."""
    blank = {one.name: one.distribution.blank(one.field, batch.num_items(one.field.on)) for one in member.targets}
    unknown = np.full((len(batch), 3), np.nan), np.full(batch.num_nodes, np.nan)
    return MemberOutcome(predictions=blank, reasons=reasons, distances=unknown[0], node_distances=unknown[1])


def finished_outcome(
    member: Member, batch: GraphBatch, predictions: Mapping[str, Distribution], states: Float[Tensor, "nodes channels"]
) -> MemberOutcome:
    """Return the outcome of predictions in physical units and final states.

    NaN for graphs with values that are not finite, as stress without a volume, and where heads have nothing to correct.
    """
    outputs = {name: one.detach().to("cpu", torch.float64) for name, one in predictions.items()}
    distances = np.full((len(batch), 3), np.nan), np.full(batch.num_nodes, np.nan)
    if member.latent is not None:
        distances = member.latent.distances(states, batch.owner("node"), len(batch))
    owners = {target.name: batch.owner(target.field.on).cpu() for target in member.targets}
    reasons = [""] * len(batch)
    for name, own in owners.items():
        for graph in own[~outputs[name].finite()].unique().tolist():
            reasons[graph] = reasons[graph] or f"the prediction of {name} is not finite"
    failed = torch.tensor([bool(reason) for reason in reasons], dtype=torch.bool)
    corrected = {head.field: head.corrected_input for head in member.model.description.heads}
    for target in member.targets:
        blank, corrects = failed[owners[target.name]], corrected.get(target.field.name)
        if target.derivative == "stress":
            blank = blank | (volumes(batch) == 0).cpu()
        if corrects:
            blank = blank | ~(batch.present(corrects) & (corrects in batch.fields))[batch.owner("node")].cpu()
        if bool(blank.any()):
            outputs[target.name] = outputs[target.name].blank_items(blank)
    return MemberOutcome(
        predictions=outputs,
        reasons=tuple(reasons),
        distances=np.where(failed.numpy()[:, None], np.nan, distances[0]),
        node_distances=np.where(failed[batch.owner("node").cpu()].numpy(), np.nan, distances[1]),
    )


def final_states(member: Member, batch: GraphBatch) -> Float[Tensor, "nodes channels"]:
    """Return final states of every node; MemoryError or RuntimeError for large graphs."""
    try:
        return member.model.states(batch).cpu()
    except (MemoryError, RuntimeError) as error:
        if batch.num_graphs == 1 or not is_lack_of_memory(error):
            raise
        return torch.cat([final_states(member, half) for half in _halves(batch)])


def _halves(batch: GraphBatch) -> tuple[GraphBatch, GraphBatch]:
    middle = batch.num_graphs // 2
    return batch.select(slice(middle)), batch.select(slice(middle, None))


def join_outcomes(outcomes: Sequence[MemberOutcome]) -> MemberOutcome:
    """Return outcomes of one member on consecutive batches as one."""
    names = outcomes[0].predictions
    return MemberOutcome(
        predictions={name: concatenate_distributions([part.predictions[name] for part in outcomes]) for name in names},
        reasons=tuple(reason for part in outcomes for reason in part.reasons),
        distances=np.concatenate([part.distances for part in outcomes]),
        node_distances=np.concatenate([part.node_distances for part in outcomes]),
    )


def is_lack_of_memory(error: BaseException) -> bool:
    """Return True where a smaller batch may help."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
