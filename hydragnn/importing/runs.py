"""Imported models as run folders."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_atomically, write_json
from hydragnn.config import RunConfig
from hydragnn.datasets import Budget, Normalisation, Scale, make_split, open_store
from hydragnn.ensemble.members.member import OUTSIDE, Member
from hydragnn.ensemble.uses.outside import validated_record
from hydragnn.frozen import FrozenGraph, FrozenModel, FrozenSettings, build
from hydragnn.importing.checkpoints import read_checkpoint
from hydragnn.importing.data import parts_of
from hydragnn.importing.finding import ModelFiles
from hydragnn.importing.model import ENCODING, KIND, OUTPUT, final_states
from hydragnn.importing.variables import Reading, Variable, reading_of
from hydragnn.models import GraphModel, TrainedModel, build_from_description, make_description, save_model
from hydragnn.models.executor import Eager
from hydragnn.models.saving import weights_checksum
from hydragnn.record import RunRecord, write_record
from hydragnn.training.evaluate import Metrics, errors_on

BUDGET = Budget(max_graphs=32)
TUNE = "tune.toml"
PROVENANCE = "imported from the public HydraGNN"


@dataclass(frozen=True, kw_only=True)
class Imported:
    """One model of a checkpoint, or of one of its branches."""

    name: str
    files: ModelFiles
    settings: FrozenSettings
    module: FrozenModel
    reading: Reading
    branches: int
    """Branches that the configuration names."""


def imported_models(files: ModelFiles) -> list[Imported]:
    """Return the models of a checkpoint, one for each branch."""
    weights, _ = read_checkpoint(files.checkpoint)
    try:
        return _models(files, weights)
    except InputError as error:
        raise InputError(f"{files.checkpoint}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"config.json of {files.checkpoint} is damaged ({error!r}); copy it again") from error


def _models(files: ModelFiles, weights: dict[str, Tensor]) -> list[Imported]:
    settings = FrozenSettings.from_config(files.config, weights)
    reading = reading_of(files.config, settings)
    dtype = torch.float64 if any(one.dtype == torch.float64 for one in weights.values()) else torch.float32
    numbers = sorted(int(name.removeprefix("branch-")) for name in settings.graph_heads) or [0]
    of_levels = files.config["NeuralNetwork"]["Architecture"]["output_heads"].values()
    return [
        Imported(
            name=f"{files.name}-branch{number}" if len(numbers) > 1 else files.name,
            files=files,
            settings=(own := _of_branch(settings, f"branch-{number}")),
            module=build(own, {name: one for name, one in weights.items() if _is_of(name, number)}, dtype),
            reading=reading,
            branches=max([1, *(len(heads) for heads in of_levels if isinstance(heads, list))]),
        )
        for number in numbers
    ]


def _of_branch(settings: FrozenSettings, own: str) -> FrozenSettings:
    """Return the settings with one branch."""
    own_heads = {
        key: {own: heads[own]} if own in (heads := getattr(settings, key)) else {}
        for key in ("graph_heads", "node_heads")
    }
    return settings.model_copy(update=own_heads)


def _is_of(name: str, number: int) -> bool:
    """Return True for weights of a branch, and for those of all."""
    branch = re.search(r"\bbranch-(\d+)", name)
    return branch is None or int(branch[1]) == number


def write_run(model: Imported, data: Path | None, out: Path, home: Path) -> Metrics:
    """Write a run; return errors on the writer's test part.

    Its store will lie in ``home``; now it is ``data``.
    """
    reading, settings, module = model.reading, model.settings, model.module
    dtype = next(module.parameters()).dtype
    public = {
        "kind": KIND,
        "hidden_dim": _states(module, settings, dtype),
        "num_layers": settings.num_conv_layers,
        "checkpoint": _floats(settings.model_dump(mode="json")),
        "columns": [one.field.name for one in reading.inputs if one.field.on == "node" and one.key != ENCODING],
        "edge_lengths": reading.edge_lengths,
        "images": reading.images,
    }
    training = model.files.config["NeuralNetwork"].get("Training", {})
    store = home / ("data.h5" if data is None else data.name)
    config = {
        "data": {"store": str(store.resolve()), "inputs": [one.field.name for one in reading.inputs]},
        "split": (parts_of(open_store(data)) or {}) if data is not None else {},
        "batch": {"max_graphs": training.get("batch_size") or 32},
        "model": public,
        "heads": [one.head for one in reading.outputs],
        "train": {
            "epochs": training.get("num_epoch") or 1,
            "learning_rate": (training.get("Optimizer") or {}).get("learning_rate") or 1e-3,
            "precision": "fp64" if dtype == torch.float64 else "fp32",
        },
    }
    run = RunConfig.parse(config, str(model.files.checkpoint))
    graph_model = _graph_model(run, reading.variables, module, dtype)
    spans = {one.field.name: one.span or [(0.0, 1.0)] * one.field.width for one in reading.variables}
    scales = {
        one.field.name: Scale(
            mean=tuple(low for low, _ in spans[one.field.name]),
            std=tuple(high - low or 1.0 for low, high in spans[one.field.name]),
        )
        for one in reading.variables
        if one.span or not one.field.classes
    }
    normalisation = Normalisation(scales=scales)
    trained = TrainedModel(model=graph_model, normalisation=normalisation, executor=Eager(model=graph_model))
    record, errors = _record(model, run, trained, data)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", record.config)
    save_model(out / "model", graph_model, normalisation)
    write_record(record, out)
    return errors


def write_tuning(model: Imported, data: Path | None, out: Path) -> None:
    """Write a configuration that trains a run further."""
    store = "data.h5" if data is None else data.name
    up = "" if data is not None and data.parent == out else "../"
    split = '[split]\nkind = "given"\nfield = "part"\n\n' if data is not None and parts_of(open_store(data)) else ""
    heads = [f'[[heads]]\nkind = "{OUTPUT}"\nfield = "{one.field.name}"\n' for one in model.reading.outputs]
    text = f'[data]\nstore = "{up}{store}"\n\n{split}[start]\nmodel = "."\n\n[model]\n\n' + "\n".join(heads)
    write_atomically(out / TUNE, text + "\n[train]\nepochs = 10\nlearning_rate = 1e-4\n")


def _graph_model(run: RunConfig, variables: Sequence[Variable], module: FrozenModel, dtype: torch.dtype) -> GraphModel:
    fields = [one.field for one in variables]
    description = make_description(run.model, run.heads, fields, inputs=run.data.inputs or [], dim=3)
    result = build_from_description(description, seed=0).to(dtype)
    parts: Any = result.node_inputs
    parts.model = module
    return result.eval()


def _record(model: Imported, run: RunConfig, trained: TrainedModel, data: Path | None) -> tuple[RunRecord, Metrics]:
    """Return the record, and errors on the test part."""
    settings, module = model.settings, trained.model
    why = "; ".join(settings.evidence)
    note = f"{PROVENANCE}, generation {settings.generation} ({why}), file {model.files.checkpoint.name}"
    record = RunRecord(
        config=run.to_json(),
        config_hash=run.hash,
        data_hash="",
        seed=0,
        status="finished",
        epochs=run.train.epochs,
        parameters=sum(one.numel() for one in module.parameters()),
        start={OUTSIDE: weights_checksum(module.state_dict())},
    )
    if data is None:
        return replace(record, notes=[note]), {}
    store = open_store(data)
    if run.split.kind != "given":
        return replace(record, notes=[note], data_hash=store.fingerprint), {}
    member = Member(name=model.name, weight=1.0, model=trained, config=run, record=record)
    record = validated_record(member, module, run, store, note)
    test = make_split(store, run.split).test
    with torch.no_grad():
        errors = errors_on(trained.predict, store, test, trained.targets, BUDGET) if len(test) else {}
    return record, errors


def _states(module: FrozenModel, settings: FrozenSettings, dtype: torch.dtype) -> int:
    """Return the width of final states, by a pair of atoms."""
    edges, pair = torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 1, dtype=dtype)
    graph = FrozenGraph(
        x=pair.expand(2, settings.input_dim),
        pos=pair.new_tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
        edge_index=edges,
        batch=torch.zeros(2, dtype=torch.int64),
        num_graphs=1,
        edge_attr=pair.expand(2, settings.edge_dim) if settings.edge_dim else None,
        graph_attr=pair[:1].expand(1, settings.graph_attributes) if settings.graph_attributes else None,
        pe=pair.expand(2, settings.pe_dim),
        rel_pe=pair.expand(2, settings.pe_dim),
    )
    with final_states(module) as states, torch.no_grad():
        module(graph)
    return states[-1].shape[1]


def _floats(value: Any) -> Any:
    """Return JSON with floats: its numbers are no sizes of ours."""
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return float(value) if type(value) is int else value
