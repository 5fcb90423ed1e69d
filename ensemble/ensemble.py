"""Several models as one: loading, and prediction in memory."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.base.arguments import usual_modes
from hydragnn.base.errors import InputError, about
from hydragnn.base.files import digest, read_sealed
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.places import absent_store, as_path, is_store, model_folder, text_of, weights_folder
from hydragnn.base.shown import Shown
from hydragnn.datasets import GraphStore, Make, MemoryStore, is_graph_store, open_store
from hydragnn.datasets.manifest import transform_in, transform_of
from hydragnn.distributed.graph_ranks import GraphGroup, Shared
from hydragnn.ensemble.domain import STATES, GraphView, doubted_items, doubts_of
from hydragnn.ensemble.estimates.estimate import Estimate
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import Predictions, concatenate_predictions, estimates_of
from hydragnn.ensemble.manifest import NAME, Manifest, MemberEntry, checksum, read_manifest
from hydragnn.ensemble.members import screening
from hydragnn.ensemble.members.committee import in_committee
from hydragnn.ensemble.members.member import (
    Member,
    MemberOutcome,
    check_members,
    check_memory,
    load_member,
    optional_inputs,
    shared_inputs,
)
from hydragnn.ensemble.members.plan import chunks_of, default_budget
from hydragnn.ensemble.reading import structures
from hydragnn.ensemble.reading.module import TrainableEnsemble, makers_of_items, rows_as_given
from hydragnn.ensemble.reading.structures import Structures
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.objects import graphs_in
from hydragnn.models import Distribution, Target, check_cuttable

UNKNOWN = "intervals are unknown"
"""End of the reason of a graph that is further from training data than all graphs that calibrate."""


class Ensemble(Shown):
    """Members with weights, their calibration and their training domain."""

    def __init__(self, members: Sequence[Member], manifest: Manifest, identity: str) -> None:
        """Take checked members; ``load`` and ``build_ensemble`` check."""
        self.members, _ = in_committee(members)
        self.manifest = manifest
        self.digest = identity
        self.names = tuple(entry.name for entry in manifest.members)
        self.weights = np.array([entry.weight for entry in manifest.members], dtype=np.float64)

    def weights_of(self, field: str) -> Float[Array, " members"]:
        """Return the weights of members for a field."""
        own = self.manifest.weights.get(field)
        return self.weights if own is None else np.array(own, dtype=np.float64)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        dtype: torch.dtype | None = None,
        branch: str = "",
        *,
        allow_code: Sequence[str] = (),
        processes: int = 1,
    ) -> "Ensemble":
        """Return the ensemble in ``folder``; a run is one without calibration.

        Of a run with several branches it is the one that is named; an ensemble is of one branch already.

        ``dtype`` is the arithmetic of all members; without it each computes in the precision it was trained in. Models may be classes of the
        modules in ``allow_code``.

        InputError where the folder is something else, damaged or from a newer version, and where so many ``processes`` of this machine
        have no memory for the members.
        """
        _allow_code(allow_code)
        folder = model_folder(as_path(folder))
        if (folder / NAME).is_file():
            manifest = read_manifest(folder)
            own = manifest.targets[0].branch
            if branch not in ("", own):
                problem = f"is of branch {own}" if own else "has no branches"
                raise InputError(
                    f"the ensemble in {folder} {problem}, so it cannot predict {branch}; leave the branch out"
                )
            check_memory(folder, [folder / entry.folder for entry in manifest.members], processes)
            how: dict[str, Any] = {"dtype": dtype, "branch": own}
            members = [
                load_member(folder / entry.folder, name=entry.name, weight=entry.weight, latent=space, **how)
                for entry, space in zip(manifest.members, manifest.spaces, strict=True)
            ]
            # of the file as it stands: programs add facts to what they write
            return cls(members, manifest, digest(read_sealed(folder / NAME)))
        check_memory(folder, [weights_folder(folder)], processes)
        alone = ensemble_of([load_member(folder, dtype=dtype, branch=branch)])
        weights = checksum(weights_folder(folder) / "weights.safetensors")
        return cls(alone.members, alone.manifest, digest([alone.digest, weights]))

    def with_manifest(self, manifest: Manifest) -> "Ensemble":
        """Return the members with other weights or simple members."""
        return Ensemble(self.members, manifest, self.digest)

    def replayed(self) -> "Ensemble":
        """Return the ensemble with members that replay predictions on a GPU.

        It pays for many batches of few sizes. A member that cannot be recorded predicts as it is.
        """
        members = [replace(member, model=member.model.replayed()) for member in self.members]
        return Ensemble(members, self.manifest, self.digest)

    def shared(self, group: GraphGroup) -> "Ensemble":
        """Return the ensemble with members that a group of ranks computes.

        InputError where a member cannot be shared.
        """
        members = []
        for member in self.members:
            with about(f"member {member.name}"):
                check_cuttable(member.model.description, "leave --graph-ranks out")
            executor = Shared(**vars(member.model.executor), group=group, number=member.number)
            members.append(replace(member, model=replace(member.model, executor=executor)))
        return Ensemble(members, self.manifest, self.digest)

    def graphs(self, source: Any) -> GraphBatch:
        """Return graphs as members read them, made as those of training.

        ``source`` is a batch, an ``Atoms``, a graph of torch_geometric or networkx, or a list, data set, loader or generator of them.
        InputError for anything else, and for a graph that cannot be made.
        """
        if isinstance(source, GraphBatch):
            return source
        items = [source.read(range(len(source)))] if is_graph_store(source) else [*graphs_in(source)]
        if items and all(isinstance(one, GraphBatch) for one in items):
            return concatenate(items)
        graphs, _, failures = structures.made_graphs(makers_of_items(self, items))
        for unbuilt in failures.values():
            raise InputError(unbuilt.reason)
        self.needed(MemoryStore(graphs))
        return concatenate(graphs)

    @usual_modes()
    def embeddings(self, source: Any) -> Float[Tensor, "nodes channels"]:
        """Return the final states of all nodes, which heads read.

        Channels of several members stand side by side.
        """
        batch = self.graphs(source)
        return torch.cat([member.model.states(batch) for member in self.members], dim=-1)

    @usual_modes()
    def trainable(self) -> TrainableEnsemble:
        """Return a module of torch with copies of the parameters.

        A call takes what ``graphs`` takes, and gives a tensor per field, with gradients.
        """
        return TrainableEnsemble(self)

    def __repr__(self) -> str:
        names = ", ".join(entry.name for entry in self.manifest.members)
        return f"{type(self).__name__}({', '.join(target.name for target in self.manifest.targets)}; of {names})"

    def shown(self) -> Mapping[str, Any]:
        """Return members and fields."""
        targets = [{"field": one.name, "unit": one.field.unit, "on": one.field.on} for one in self.manifest.targets]
        keys = ("status", "epochs", "parameters", "seed")
        members = [
            {"member": entry.name, "weight": entry.weight, **{key: entry.summary.get(key) for key in keys}}
            for entry in self.manifest.members
        ]
        members += [
            {"member": f"{name} of {field}", "weight": self.weights_of(field)[-1]}
            for field, own in self.manifest.simple.fitted.items()
            for name in own
        ]
        reads = [field.name for field in self.manifest.inputs]
        facts = {"calibrated": ", ".join(self.manifest.calibration) or "no", "reads": reads}
        return {"predicts": targets, **facts, "members": members}

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the predicted fields."""
        return tuple(target.field for target in self.targets)

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the targets."""
        return self.manifest.targets

    @property
    def knows_domain(self) -> bool:
        """Return True where the training domain is known."""
        return bool(self.manifest.domain.file_content)

    @property
    def caveat(self) -> str:
        """Return the limits of a run or an old domain; else empty."""
        if self.knows_domain and self.manifest.domain.of_nodes is None:
            return (
                "this ensemble is of an earlier version, of whose training domain only foreign elements and contacts are flagged; "
                "build it anew: hydragnn ensemble CAMPAIGN --out ENSEMBLE"
            )
        if self.manifest.calibration or self.knows_domain:
            return ""
        return (
            f"{self.names[0]} is a single run, so its predictions have no calibrated uncertainty and no domain score; several runs as "
            "an ensemble have both: hydragnn ensemble RUN RUN ... --out ENSEMBLE"
        )

    @property
    def doubt_about_structures(self) -> str:
        """Return a note where the training store of a run is gone."""
        store, model = self.members[0].config.data.store, self.members[0].model.description.model
        known = "attributes" in self.manifest.data or getattr(model, "max_neighbours", None) is not None
        if known or absent_store(store) is None or not structures.reads_atoms(self.manifest):
            return ""
        return (
            f"the training store {text_of(store)} is not there, so that structures have all neighbours within the model's cutoff, and fields as they "
            "are named and given; if it was built with max_neighbours, another cutoff, key or scale, predictions are wrong: put it back"
        )

    def absent(self, target: Target) -> frozenset[str]:
        """Return the quantities of a target that this ensemble knows nothing of."""
        calibrated = target.name in self.manifest.calibration
        members = int(np.count_nonzero(self.weights_of(target.name)))
        return estimates_of(target).absent(target, members, calibrated=calibrated)

    @property
    def inputs(self) -> tuple[Field, ...]:
        """Return the fields that members read."""
        return self.manifest.inputs

    @property
    def optional(self) -> frozenset[str]:
        """Return the inputs that graphs may lack."""
        return optional_inputs(self.members, self.inputs)

    @property
    def structures(self) -> Structures:
        """Return the rule for graphs of atoms; InputError if training had none."""
        return structures.structures_for(self)

    @property
    def training_attributes(self) -> Mapping[str, Any]:
        """Return the attributes of the training store, from manifest or store; empty where unknown."""
        if "attributes" in self.manifest.data:
            store_attributes = self.manifest.data["attributes"]
            return store_attributes if isinstance(store_attributes, Mapping) else {}
        path = self.members[0].config.data.store
        return open_store(path).attributes if absent_store(path) is None else {}

    @property
    def training_transform(self) -> str | None:
        """Return the transform of training, from store or records; None where unknown."""
        own = transform_of(self.training_attributes)
        noted = (transform_in(member.record.notes, self.targets[0].branch) for member in self.members)
        return own or next(filter(None, noted), own)

    def check_transform(self, now: str | None, what: str) -> None:
        """Raise InputError for another transform than that of training."""
        training = self.training_transform
        if None not in (training, now) and training != now:
            said = [f"changed by {one}" if one else "not changed by a transform" for one in (now, training)]
            raise InputError(f"{what} are {said[0]}, and graphs of training are {said[1]}; build them in the same way")

    def check_rule(self, attributes: Mapping[str, Any], what: str) -> None:
        """Raise InputError where graphs are built otherwise than in training."""
        self.check_transform(transform_of(attributes), what)
        structures.check_lengths(self.training_attributes, attributes)
        settings = (member.model.description.model for member in self.members)
        structures.check_edges(settings, self.training_attributes, attributes)

    def needed(self, store: GraphStore) -> list[str]:
        """Return the fields to read from a store.

        InputError where it lacks one, nodes have other neighbours in it, or another transform changed its graphs.
        """
        available = {field.name: field for field in store.fields()}
        if store.dim != self.manifest.dim:
            raise InputError(
                f"the graphs have dimension {store.dim}, the ensemble was trained on dimension {self.manifest.dim}"
            )
        for field in self.inputs:
            actual = available.get(field.name)
            if actual is None and field.name in self.optional:
                continue
            if actual is None:
                raise InputError(f"the store has no field {field.name}, which the ensemble reads; add it to the store")
            if actual.meaning != field.meaning:
                raise InputError(
                    f"the store means something else by {field.name}: {actual}; the ensemble reads {field}"
                )
        self.check_rule(store.attributes, "graphs of the store")
        return self._read_by_members(available)

    def _read_by_members(self, available: Collection[str]) -> list[str]:
        """Return the inputs, with atomic numbers for reference values."""
        inputs = [one.name for one in self.inputs if one.name in available or one.name not in self.optional]
        return [*inputs, *(name for name in (ATOMIC_NUMBERS,) if name in available and name not in inputs)]

    @usual_modes()
    def predict(self, source: Any) -> Predictions:
        """Predict every graph of a batch, a store or structures.

        Graphs that failed have NaN and a reason. ``source`` is what ``graphs`` takes, a store or its path. InputError for anything else.

        Batches are built once and shared by all members. For what does not fit into memory use ``predict_to_file``.
        """
        if isinstance(source, GraphBatch):
            batch = source.mapped(Tensor.detach)
            return self._predict_screened(
                screening.screen(batch, self._read_by_members(batch.fields), optional=self.optional)
            )
        if isinstance(source, str | os.PathLike):
            if not is_store(Path(source)):
                raise InputError(
                    f"{source} is no store; predict files with hydragnn.predict(model, {os.fspath(source)!r})"
                )
            source = open_store(Path(source))
        if is_graph_store(source):
            return self._predict_store(source, None, {})
        items = [*graphs_in(source)]
        if items and all(isinstance(one, GraphBatch) for one in items):
            return self.predict(concatenate(items))
        predictions = self.predict_made(makers_of_items(self, items))
        return predictions.with_edges(lambda: rows_as_given(items, predictions.edges_per_graph.tolist()).numpy())

    def predict_made(self, makers: Iterable[Make]) -> Predictions:
        """Predict the graphs that makers give."""
        graphs, numbers, failures = structures.made_graphs(makers)
        if graphs:
            reasons = {number: unbuilt.reason for number, unbuilt in failures.items()}
            return self._predict_store(MemoryStore(graphs), np.array(numbers), reasons)
        if failures:
            return concatenate_predictions([self.nothing(0, 0, unbuilt.reason) for unbuilt in failures.values()])
        raise InputError("there is no structure to predict; give at least one")

    def predict_checked(self, batch: GraphBatch) -> Predictions:
        """Predict graphs that were checked as they were made."""
        return self._predict_screened(screening.without_screening(batch))

    def _predict_store(
        self, store: GraphStore, numbers: Int[np.ndarray, " graphs"] | None, failures: Mapping[int, str]
    ) -> Predictions:
        chunks = chunks_of(store.sizes(), numbers, default_budget(store.sizes()), failures)
        if not len(chunks):
            raise InputError("the store holds no graphs; give one that does")
        needed = self.needed(store)
        predictions = []
        for chunk in chunks:
            if chunk.reason:
                predictions.append(self.nothing(0, 0, chunk.reason))
            else:
                read = screening.read_screened(store, chunk.graphs, needed, needed, chunk.numbers, self.optional)
                predictions.append(self._predict_screened(read))
        return concatenate_predictions(predictions)

    def _predict_screened(self, read: screening.Screened) -> Predictions:
        return self.combine(read, [screening.outcome_of(member, read) for member in self.members])

    def combine(self, read: screening.Screened, outcomes: Sequence[MemberOutcome]) -> Predictions:
        """Return outcomes of members as one prediction with intervals and flags.

        A graph that one member failed on has failed, and one whose mixture is not finite.
        """
        fields: dict[str, Estimate] = {}
        nodes_per_graph, edges_per_graph = (read.whole.counts(on).cpu().numpy() for on in ("node", "edge"))
        beyond = ["ok"] * len(read.reasons)
        simple = screening.simple_predictions(self.manifest.simple, self.targets, read)
        for target in self.targets:
            members = [outcome.predictions[target.name] for outcome in outcomes]
            members += [simple[target.name]] if target.name in simple else []
            owner = read.whole.owner(target.field.on).cpu().numpy()
            one = self._mixture(target, members, nodes_per_graph[owner])
            trained = torch.stack([member.finite() for member in members[: len(outcomes)]]).all(dim=0)
            values = [one[name] for name in {one.headline, one.doubt_name} - self.absent(target)]  # as far as known
            finite = np.all([np.isfinite(own).reshape(len(own), -1).all(axis=1) for own in values], axis=0)
            if (lost := trained & ~torch.from_numpy(finite)).any():
                one = self._mixture(target, [member.blank_items(lost) for member in members], nodes_per_graph[owner])
                for graph in owner[lost.numpy()]:
                    beyond[graph] = f"the prediction of {target.name} is not finite"
            fields[target.name] = one
        status = [
            refused or next((f"member {name}: {reason}" for name, reason in zip(self.names, others) if reason), own)
            for refused, own, *others in zip(read.reasons, beyond, *(outcome.reasons for outcome in outcomes))
        ]
        together = Predictions(
            fields=fields,
            nodes_per_graph=nodes_per_graph,
            edges_per_graph=edges_per_graph,
            status=tuple(status),
            domain=("",) * len(status),
            domain_score=np.full(len(status), np.nan),
            node_domain_score=np.full(read.whole.num_nodes, np.nan),
            texts=read.whole.texts,
        )
        if read.valid is None:
            return together
        owners = {name: together.graph_of_item(name) for name in fields}
        fine_nodes = np.repeat(read.fine, nodes_per_graph)
        doubts, of_items = doubts_of(fields, owners, outcomes, self.weights_of(STATES))
        valid = read.valid if read.valid.positions.is_cpu or not self.knows_domain else read.valid.to("cpu")
        numbers = np.flatnonzero(read.fine)

        def items(name: str, graph: int) -> str:
            return doubted_items(fields[name].field.on, of_items[name], owners[name], int(numbers[graph]))

        scale, fine_doubts = self.manifest.domain.scale, doubts.select(read.fine, fine_nodes)
        view = GraphView(batch=valid, scale=scale, doubts=fine_doubts, items=items)
        flags = self.manifest.domain.scores(view).spread_over(read.fine, fine_nodes)
        calibrations = self.manifest.calibration
        grown = {name: one.at(calibrations.get(name), flags.distances[owners[name]]) for name, one in fields.items()}
        unknown = np.any([one.distance.beyond(flags.p_values) for one in calibrations.values()], axis=0)
        reasons = np.where(unknown, [f"{reason}; {UNKNOWN}" for reason in flags.reasons], flags.reasons)
        return replace(
            together,
            fields=grown,
            domain=tuple(reasons.tolist()),
            domain_scores=flags.scores,
            domain_score=flags.p_values,
            node_domain_score=together.node_domain_score if flags.node_p_values is None else flags.node_p_values,
        )

    def _mixture(self, target: Target, members: Sequence[Distribution], nodes: Int[np.ndarray, " items"]) -> Estimate:
        calibration, kind = self.manifest.calibration.get(target.name), estimates_of(target)
        with np.errstate(over="ignore", invalid="ignore"):
            return kind.of(target, members, self.weights_of(target.name), calibration, nodes)

    def nothing(self, nodes: int, edges: int, reason: str) -> Predictions:
        """Return the prediction for one graph that could not be tried."""
        items = {"node": nodes, "edge": edges, "graph": 1}
        columns_of = self.manifest.columns_of
        return Predictions(
            fields={
                one.name: estimates_of(one).blank(one, columns_of(one.name), items[one.field.on])
                for one in self.targets
            },
            nodes_per_graph=np.array([nodes]),
            edges_per_graph=np.array([edges]),
            status=(reason,),
            domain=("",),
            domain_score=np.array([np.nan]),
            node_domain_score=np.full(nodes, np.nan),
        )


def ensemble_of(members: Sequence[Member]) -> Ensemble:
    """Return an uncalibrated ensemble; InputError unless members share targets and data."""
    check_members(members)
    entries = []
    for number, member in enumerate(members):
        record = member.record
        names = ("status", "seed", "epochs", "parameters", "config_hash", "data_hash")
        facts = {name: getattr(record, name) for name in names}
        summary = {**facts, "best": dict(record.best), "graphs_per_second": record.cost.graphs_per_second}
        place = {"name": member.name, "folder": f"members/{number}"}
        entries.append(MemberEntry(**place, weight=member.weight, checksums={}, summary=summary))
    manifest = Manifest(
        members=tuple(entries),
        targets=members[0].targets,
        inputs=tuple(shared_inputs(members).values()),
        dim=members[0].model.description.dim,
    )
    return Ensemble(members, manifest, digest(manifest.to_json()))
