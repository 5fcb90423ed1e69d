"""Runs of modules that a user's own loop trained."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.base.errors import InputError, own_code
from hydragnn.base.files import empty_folders_removed, write_json
from hydragnn.base.places import absent_store
from hydragnn.config import RunConfig
from hydragnn.datasets import Budget, GraphStore, Loader, WithoutEdges, make_split, normalise, open_store
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.ensemble.members.member import Member
from hydragnn.ensemble.reading.module import TrainableEnsemble, value_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import GraphModel, TrainedModel, save_model
from hydragnn.models.branched import build_branched
from hydragnn.models.executor import Eager
from hydragnn.models.saving import weights_checksum
from hydragnn.record import OUTSIDE, Cost, RunRecord, write_record
from hydragnn.runs.folder import check_folder
from hydragnn.training.evaluate import errors_on, flat_metrics, trivial_predictor
from hydragnn.training.loss import label_counts, loss_sums

BUDGET = Budget(max_graphs=32)


def save_outside(module: Any, out: Path, data: Path | None = None) -> RunRecord:
    """Write a module trained outside as a run; return its record.

    It keeps the configuration, the fields and the normalisation of the run that it was loaded from. Validation errors are measured here,
    on the validation part of that run's store, or of ``data``. The module stays as it is; one in double precision will predict so.
    InputError for several members, for weights that are not finite or of another shape, for a module that computes something else than
    its weights say, and where the store is not like that of training.
    """
    while type(module).__module__.startswith("torch."):  # wrappers, which change no prediction
        module = getattr(module, "_orig_mod", getattr(module, "module", None))
    ours = isinstance(module, TrainableEnsemble) and not module.ensemble.manifest.simple.fitted
    models = [*module.models] if ours else []
    if len(models) != 1 or not isinstance(model := models[0], GraphModel):
        raise InputError(
            "save takes what load(RUN).trainable() gave for one run; save the modules of several runs one by one"
        )
    member = module.ensemble.members[0]
    weights, expected = model.state_dict(), member.model.model.state_dict()
    precise = torch.float64 if next(model.parameters()).dtype == torch.float64 else torch.float32
    for name in sorted(weights.keys() | expected.keys()):
        if not (name in weights and name in expected and weights[name].shape == expected[name].shape):
            problem = f"the module and {member.name} do not both have {name} of one shape"
            raise InputError(f"{problem}; undo pruning, parametrizations, quantization and layers of your own first")
        value, stored = weights[name], precise if expected[name].is_floating_point() else expected[name].dtype
        if value.is_meta or value.is_complex() or bool((value.to(stored).double() - value.double()).any()):
            problem = f"{name}, {value.dtype}, holds no numbers, or some that are not finite or not kept by {stored}"
            raise InputError(f"{problem}; save it before it diverged, with all numbers in one precision")
    config, precision = member.config, "fp64" if precise == torch.float64 else "fp32"
    if "fp64" in (precision, config.train.precision):
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": precision})})
    if data is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"store": data.resolve()})})
    check_folder(config.to_json(), out, resume=False)
    store = open_store(config.data.store)
    module.ensemble.needed(store)
    if data is not None:
        _check_other(module, store, data)
    note = (
        f"trained outside of this program, from the weights of {member.name}: which graphs trained it is not known, and one of its validation "
        "part may be among them"
    )
    seen = store if config.data.edges else WithoutEdges(store)
    saved = build_branched([replace(member.model.description, branch="")], seed=0)
    assert isinstance(saved, GraphModel)
    saved.to(member.model.device, precise).load_state_dict(weights)
    trained = replace(member.model, model=saved, executor=Eager(model=saved))
    graphs = seen.read(range(min(8, len(seen))))
    with own_code("the module"):
        same = _are_same(trained, module, graphs)
    if not same:
        raise InputError(
            "the module predicts otherwise than a new one with its weights; hooks and layers of your own are not saved"
        )
    record = validated_record(replace(member, model=trained), config, seen, note)
    with empty_folders_removed(out):
        write_json(out / "config.json", record.config)
        save_model(out / "model", saved, member.model.normalisation)
        write_record(record, out)
    return record


def _are_same(saved: TrainedModel, module: TrainableEnsemble, graphs: GraphBatch) -> bool:
    """Return True where a module gives what its saved weights do, and no more."""
    model = module.models[0]
    inputs, now = saved.normalised(saved.seen(graphs)), deepcopy(model).to(saved.device, saved.dtype).eval()
    pairs = zip(saved.model(inputs).values(), now(inputs).values(), strict=True)
    values = [(value_of(expected), value_of(actual)) for expected, actual in pairs]
    rounded = next(model.parameters()).dtype != saved.dtype
    most = 0.05 if rounded else 1e-5  # constants in half precision differ
    if not all(bool(((a - b).abs() <= most * a.abs().clamp(min=1.0)).all()) for a, b in values):
        return False
    whole, plain = deepcopy(module), TrainableEnsemble(module.ensemble)
    plain.models[0] = whole.models[0].to(saved.dtype)
    actual, expected = whole.eval()(graphs), plain.eval()(graphs)
    return actual.keys() == expected.keys() and all(torch.equal(actual[name], expected[name]) for name in expected)


def _check_other(module: TrainableEnsemble, store: GraphStore, place: Path) -> None:
    """Raise InputError where labels or the cutoff are not those of training."""
    ensemble, stored = module.ensemble, {field.name: field for field in store.fields()}
    trained, names = ensemble.members[0].config.data.store, {one.name for one in ensemble.fields}
    for field in open_store(trained).fields() if absent_store(trained) is None else ensemble.fields:
        actual = stored.get(field.name)
        if field.name in names and (actual is None or actual.meaning != field.meaning):
            problem = f"has no field {field.name}" if actual is None else f"means {actual} by {field.name}"
            raise InputError(f"{place} {problem}, and the run was trained on {field}; give data that has it")
    of_training, now = cutoff_of(ensemble.training_attributes), cutoff_of(store.attributes)
    if None not in (of_training, now) and of_training != now:
        raise InputError(f"{place} has cutoff = {now}, the store of training {of_training}; build it in the same way")


def validated_record(member: Member, config: RunConfig, store: GraphStore, note: str) -> RunRecord:
    """Return the record with errors on the validation part, and a note."""
    trained = member.model
    split, targets = make_split(store, config.split), list(trained.targets)
    if not len(split.valid):
        raise InputError(f"{config.data.store} has no validation part by [split] of {member.name}; give data that has")
    trivial = trivial_predictor(store, split.train, targets, trained.normalisation)
    with torch.no_grad():
        errors = flat_metrics(errors_on(trained.predict, store, split.valid, targets, BUDGET), "valid")
        simple = flat_metrics(errors_on(trivial, store, split.valid, targets, BUDGET), "valid")
        values = {"valid/loss": _loss(trained, store, split.valid), **errors}
    best = {name: value for name, value in values.items() if value is not None}
    same = store.fingerprint == member.record.data_hash
    return replace(
        member.record,
        config=config.to_json(),
        config_hash=config.hash,
        data_hash=store.fingerprint,
        status="finished",
        epochs=1,
        parts=split.counts,
        curves={name: [value] for name, value in values.items()},
        best=best | {"epoch": 1.0},
        trivial={name: value for name, value in simple.items() if value is not None},
        notes=[*member.record.notes, note],
        cost=Cost(),
        failure=None,
        labels=member.record.labels if same else {},
        unseen_inputs=member.record.unseen_inputs if same else [],
        continued=[],
        start={**member.record.start, OUTSIDE: weights_checksum(trained.model.state_dict())},
    )


def _loss(trained: TrainedModel, store: GraphStore, rows: np.ndarray) -> float:
    """Return the weighted mean loss, as validation has it."""
    targets = trained.targets
    totals = torch.zeros(2, len(targets), dtype=torch.float64)
    for _, batch in Loader(store, rows, BUDGET, shuffle=False).epoch(0):
        inputs = normalise(trained.seen(batch), trained.normalisation).to(trained.device, trained.dtype)
        sums = loss_sums(targets, trained.model(inputs), inputs)
        totals += torch.stack([sums.double(), label_counts(targets, inputs)]).cpu()
    weights = torch.tensor([target.weight * target.stage_two_factor for target in targets], dtype=torch.float64)
    return float((weights * totals[0] / totals[1].clamp(min=1.0)).sum())
