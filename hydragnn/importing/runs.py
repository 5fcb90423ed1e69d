"""Imported models as run folders."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_atomically, write_json
from hydragnn.config import RunConfig
from hydragnn.datasets import Budget, GraphStore, Normalisation, Scale, open_store
from hydragnn.datasets.formats.public_columns import LABELS
from hydragnn.ensemble.members.member import Member
from hydragnn.ensemble.uses.outside import validated_record
from hydragnn.frozen import FrozenModel, FrozenSettings, build, of_branch
from hydragnn.graphs.parts import PART
from hydragnn.importing.checkpoints import read_checkpoint
from hydragnn.importing.configuration import toml
from hydragnn.importing.finding import ModelFiles
from hydragnn.importing.model import ENCODING, KIND, OUTPUT
from hydragnn.importing.variables import LOSSES, Reading, complete, reading_of
from hydragnn.models import TrainedModel, build_from_description, make_description, save_model
from hydragnn.models.executor import Eager
from hydragnn.models.saving import weights_checksum
from hydragnn.record import OUTSIDE, RunRecord, write_record
from hydragnn.training.evaluate import Metrics, errors_on

TUNE = "tune.toml"
GIVEN = {"kind": "given", "field": PART.name}


@dataclass(frozen=True)
class Imported:
    """One model of a checkpoint, or of one of its branches."""

    name: str
    files: ModelFiles
    settings: FrozenSettings
    module: FrozenModel
    reading: Reading
    branch: int | None
    """Number by which its graphs are told from others; None where every graph is its."""


def imported_models(files: ModelFiles) -> list[Imported]:
    """Return the models of a checkpoint, one for each branch."""
    weights = read_checkpoint(files.checkpoint).weights
    try:
        with complete("config.json is damaged"):
            return _models(files, weights)
    except InputError as error:
        raise InputError(f"{files.checkpoint}: {error}") from error


def _models(files: ModelFiles, weights: dict[str, Tensor]) -> list[Imported]:
    source = files.source
    settings = FrozenSettings.from_config(source.table, weights)
    reading = reading_of(source, settings)
    dtype = torch.float64 if any(one.dtype == torch.float64 for one in weights.values()) else torch.float32
    names = sorted(settings.graph_heads, key=lambda name: int(name.removeprefix("branch-"))) or ["branch-0"]
    if not settings.graph_heads and "branch-0" not in settings.node_heads:
        raise InputError("it holds no branch-0, which that code takes where no branch has heads on graphs")
    models, several = [], len(source.networks("graph")) > 1  # else that code takes branch-0 for every graph
    for name in names:
        own, tensors = of_branch(settings, weights, name)
        title, module = files.name + f"-{name.replace('-', '')}" * (len(names) > 1), build(own, tensors, dtype)
        models.append(Imported(title, files, own, module, reading, int(name[7:]) if several else None))
    return models


def write_run(model: Imported, data: Path | None, out: Path, home: Path) -> Metrics:
    """Write a run; return errors on the writer's test part.

    Its store will lie in ``home``; now it is ``data``.
    """
    reading, settings, module = model.reading, model.settings, model.module
    for name, one in module.state_dict().items():
        if not one.isfinite().all() or (name.endswith("running_var") and (one < 0).any()):
            problem = f"NaN or infinite numbers, or variances below 0, in {name}: its training diverged"
            raise InputError(f"{model.files.checkpoint} has {problem}; import an earlier epoch")
    dtype = next(module.parameters()).dtype
    public = {
        "kind": KIND,
        "hidden_dim": settings.hidden_dim,
        "num_layers": settings.num_conv_layers,
        "checkpoint": json.loads(settings.model_dump_json(), parse_int=float),  # its numbers are no sizes of ours
        "columns": [one.field.name for one in reading.inputs if one.field.on == "node" and one.key != ENCODING],
        "edge_lengths": reading.edge_lengths,
        "images": reading.images,
    }
    source = model.files.source
    training, optimizer = source.training, source.section("NeuralNetwork", "Training", "Optimizer")
    store, place = None if data is None else open_store(data), home / ("data.h5" if data is None else data.name)
    config = {
        "data": {"store": str(place.resolve()), "inputs": [one.field.name for one in reading.inputs]},
        "split": parts_of(store),
        "batch": {"max_graphs": training.get("batch_size") or 32},
        "model": public,
        "heads": [*_heads(model)],
        "train": {
            "epochs": training.get("num_epoch") or 1,
            "learning_rate": optimizer.get("learning_rate") or 1e-3,
            "precision": "fp64" if dtype == torch.float64 else "fp32",
        },
    }
    run = RunConfig.parse(config, str(model.files.checkpoint))
    fields = [one.field for one in reading.variables]
    description = make_description(run.model, run.heads, fields, inputs=run.data.inputs or [], dim=3)
    graph_model = build_from_description(description, seed=0).to(dtype).eval()
    cast(Any, graph_model.node_inputs).model = module
    scales = {}
    for one in reading.variables:
        if one.span or not one.field.classes:
            low, high = zip(*(one.span or [(0.0, 1.0)] * one.field.width))
            scales[one.field.name] = Scale(mean=low, std=tuple(b - a or 1.0 for a, b in zip(low, high)))
    normalisation = Normalisation(scales=scales, references=reading.references)
    trained = TrainedModel(model=graph_model, normalisation=normalisation, executor=Eager(model=graph_model))
    try:
        record, errors = _record(model, run, trained, store)
    except RuntimeError as error:  # of torch, for sizes that only meet when it computes
        raise InputError(
            f"{model.files.checkpoint} fails on its own graphs ({error!s:.80}); compare it with config.json"
        ) from error
    if not all(map(math.isfinite, [*record.best.values(), *(one["mae"] or 0.0 for one in errors.values())])):
        raise InputError(f"{model.files.checkpoint} gives no finite numbers on its own graphs; import an earlier epoch")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", record.config)
    save_model(out / "model", graph_model, normalisation)
    write_record(record, out)
    return errors


def _heads(model: Imported) -> Iterator[dict[str, Any]]:
    """Yield the settings of outputs, one after the other."""
    settings, (first, *_), column = model.settings, model.reading.outputs, 0
    gaussian, loss = settings.variance and not settings.interatomic, LOSSES.get(model.files.source.loss, "mse")
    for one in model.reading.outputs:
        head = {"kind": OUTPUT, "field": one.field.name, "column": column, "weight": one.weight}
        head["loss"] = "nll" if gaussian else "mse" if loss == "nll" else loss
        head |= {"distribution": "gaussian"} if gaussian else {}
        if settings.interatomic and one is first:
            head |= {"extensive": True, "references": model.reading.by_element}
        elif settings.interatomic:
            head["derivative_of"] = first.field.name
        yield head
        column += one.field.width * (1 + gaussian)


def part_numbers(store: GraphStore | None) -> list[int]:
    """Return the part number of every graph; empty where nothing tells."""
    if store is None or PART.name not in {field.name for field in store.fields()}:
        return []
    return [*map(int, np.ravel(store.column(PART.name).values))]


def parts_of(store: GraphStore | None) -> dict[str, Any]:
    """Return the writer's split; empty without training or validation."""
    return GIVEN if {0, 1} <= {*part_numbers(store)} else {}


def write_tuning(model: Imported, data: Path | None, out: Path) -> None:
    """Write a configuration that trains a run further."""
    heads = [{key: head[key] for key in ("kind", "field", "weight")} for head in _heads(model)]
    heads[0] |= {"references": own} if (own := model.reading.by_element) else {}
    up, store = "" if data is not None and data.parent == out else "../", "data.h5" if data is None else data.name
    has_parts = part_numbers(None if data is None else open_store(data))
    table = {
        "data": {"store": f"{up}{store}"},
        "split": GIVEN if has_parts else {},  # its test graphs never train
        "start": {"model": "."},
        "model": {},
        "heads": heads,
        "train": {"epochs": 10, "learning_rate": 1e-4},
    }
    write_atomically(out / TUNE, toml(table))


def _record(
    model: Imported, run: RunConfig, trained: TrainedModel, store: GraphStore | None
) -> tuple[RunRecord, Metrics]:
    """Return the record, and errors on the test part."""
    module, version = trained.model, f"generation {model.settings.generation} ({'; '.join(model.settings.evidence)})"
    note = f"imported from the public HydraGNN, {version}, file {model.files.checkpoint.name}"
    record = RunRecord(
        config=run.to_json(),
        config_hash=run.hash,
        data_hash="" if store is None else store.fingerprint,
        seed=0,
        status="finished",
        epochs=run.train.epochs,
        parameters=sum(one.numel() for one in module.parameters()),
        start={OUTSIDE: weights_checksum(module.state_dict())},
        notes=[note],
    )
    if store is None:
        return record, {}
    if run.split.kind == "given":
        own = Member(name=model.name, weight=1.0, model=trained, config=run, record=replace(record, notes=[]))
        record = validated_record(own, run, store, note)
    test = np.flatnonzero(np.array(part_numbers(store)) == LABELS.index("testset"))
    with torch.no_grad():
        errors = errors_on(trained.predict, store, test, trained.targets, Budget(max_graphs=32)) if len(test) else {}
    return record, errors
