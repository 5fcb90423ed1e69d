"""Configurations of the public HydraGNN as run files and build files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.frozen.settings import FIRST, FLAT, OWN_KINDS
from hydragnn.importing.finding import FORMATS, has_files
from hydragnn.importing.variables import LOSSES, Source, Variable, complete, variable

Table = dict[str, Any]

VECTORS = ("EGNN", "PAINN", "PNAEq", "MACE")
"""Kinds with vectors."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "MFC": ("max_neighbours",),
    "SchNet": ("num_gaussians",),
    "DimeNet": (
        *("num_radial", "num_spherical", "int_emb_size", "basis_emb_size", "out_emb_size"),
        *("num_before_skip", "num_after_skip"),
    ),
    "MACE": ("num_radial", "max_ell", "node_max_ell", "correlation", "radial_type"),
    **dict.fromkeys(("PNAPlus", "PAINN", "PNAEq"), ("num_radial",)),
}
"""Settings of a kind."""
OURS = {"max_neighbours": "max_degree", "num_gaussians": "num_radial", "node_max_ell": "hidden_l"}
OURS |= {"radial_type": "radial"}
"""Our names of settings that have others."""

PRECISIONS = {"float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64", "bfloat16": "bf16"}
CONDITIONING = {"concat_node": "concat", "film": "film", "fuse_pool": "pooled"}
POOLS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "max"}
PER_NODE = "_scaled_num_nodes"
PARTS = {"train": "trainset", "validate": "valset", "test": "testset"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedConfiguration:
    """Run file and build file of a configuration."""

    run: Table
    build: Table
    notes: tuple[str, ...]
    """Sentences on keys without meaning here, or broken there: comments of the run file."""


def import_configuration(path: Path, files: Sequence[str] = (), store: str = "data.h5") -> ImportedConfiguration:
    """Return the run file and build file of a ``config.json``.

    ``files`` are those of the data; else the configuration names them. InputError for another file.
    """
    table, notes = read_json(path), list[str]()
    with complete(f"{path} is damaged"):
        source = Source(table, path)
        if source.kind not in OWN_KINDS:
            raise InputError(
                f"{path}: mpnn_type is {source.kind}, none of {', '.join(OWN_KINDS)}; check the configuration"
            )
        build, targets = _build(source, files, notes)
        run = _run(source, build, targets, store, notes)
    return ImportedConfiguration(run=run, build=build, notes=tuple(dict.fromkeys(notes)))


def _build(source: Source, files: Sequence[str], notes: list[str]) -> tuple[Table, list[Variable]]:
    """Return the build file, and what heads predict."""
    inputs = [*_inputs(source, notes)]
    targets = source.outputs([one["name"] for one in inputs])
    fields = [_field(one) | ({"parity": "vector"} if _turns(source, one) else {}) for one in targets]
    for one in targets:
        if one.first is None and one.key in ("x", "y"):
            notes.append(f"no key says which columns of {one.key} are {one.field.name}: name them in the build file")
    return {"kind": "hydragnn", **_files(source, files, notes), "fields": [*inputs, *fields]}, targets


def _turns(source: Source, one: Variable) -> bool:
    """Return True for a target that turns with the structure."""
    return one.field.name == "forces" and one.field.shape == (3,) and (source.potential or source.kind in VECTORS)


def _field(one: Variable) -> Table:
    field = one.field
    columns = None if one.first is None else [*range(one.first, one.first + field.width)]
    return (
        {"name": field.name, "on": field.on}
        | ({"shape": [*field.shape]} if field.shape else {})
        | ({"classes": field.classes, "dtype": field.dtype} if field.classes else {})
        | ({"role": "target"} if field.role == "target" else {})
        | ({"key": one.key} if one.key != field.name else {})
        | ({} if columns is None else {"column": columns if field.shape else columns[0]})
    )


def _inputs(source: Source, notes: list[str]) -> Iterator[Table]:
    """Yield the fields that the model sees."""
    architecture, inputs = source.architecture, source.inputs()
    if source.named:
        yield from (_field(one) for one in inputs if one.key != "lengths")
        return
    if source.kind == "MACE" or source.potential:
        yield _field(variable("z", "node", 1, key="x", first=0))
    else:
        columns = [one.first for one in inputs]
        together = _field(variable("node_inputs", "node", len(columns), key="x"))
        yield {**together, "column": columns if len(columns) > 1 else columns[0]}
    if architecture.get("use_graph_attr_conditioning"):
        notes.append("graph_attr is declared with two numbers, as in the published sets")
        yield _field(variable("graph_attr", "graph", 2))
    if extra := [name for name in architecture.get("edge_features") or [] if name not in ("lengths", "length")]:
        yield _field(variable("edge_attr", "edge", len(extra)))


def _files(source: Source, files: Sequence[str], notes: list[str]) -> Table:
    """Return files and, of raw ones, how they are read."""
    data, paths = source.dataset, source.paths
    if not files and paths and data.get("format") in FORMATS and "node_features" in data:
        return raw_files(source, notes)
    names = files or _named(paths) or [f"dataset/{data.get('name', 'data')}.bp"]
    if not files and (count := source.branches) > 1:
        notes.append("each branch is an entry of [[branches]] with a store of its own, made from its set")
        names = [paths.get(f"branch-{number}") or f"SET{number}.bp" for number in range(count)]
    roots = source.where.absolute().parents[:4]
    return {"files": [next((str(root / one) for root in roots if has_files(root / one)), one) for one in names]}


def _named(paths: Mapping[str, str]) -> list[str]:
    return [paths[part] for part in (*PARTS, "total") if part in paths]


def raw_files(source: Source, notes: list[str]) -> Table:
    """Return raw files, and how they are read."""
    data, paths = source.dataset, source.paths
    radius, most = source.architecture["radius"], source.architecture.get("max_neighbours")
    raw: Table = {"files": _named(paths), "format": FORMATS[data["format"]], "cutoff": float(radius)}
    raw |= {"max_neighbours": most} if most else {}
    raw |= {"file_parts": [PARTS[part] for part in PARTS if part in paths]} if "total" not in paths else {}
    if raw["format"] == "lsms":
        features = {level: data[f"{level}_features"] for level in ("node", "graph")}
        for level, one in features.items():
            raw[f"{level}_features"] = [[*range(c, c + d)] for c, d in zip(one["column_index"], one["dim"])]
        raw["charge_rule"] = sum(map(len, raw["node_features"])) > 1
        places = {
            key: [n for n, name in enumerate(features[level]["name"]) if PER_NODE in name]
            for key, level in (("x", "node"), ("y", "graph"))
        }
        raw |= {"per_node": own} if (own := {key: one for key, one in places.items() if one}) else {}
    if data.get("normalize_features", raw["format"] != "xyz"):  # which no loader did unasked
        raw["scaling"] = "minmax"
        notes.append(
            "features were scaled to 0 to 1 over training, validation and test together, so that these have a part in it; leave scaling out of the build file to mend it"
        )
    if source.architecture.get("periodic_boundary_conditions"):
        notes.append("raw files have pairs without images: periodic_boundary_conditions crashed there with raw files")
    return raw


def _run(source: Source, build: Table, targets: Sequence[Variable], store: str, notes: list[str]) -> Table:
    training, paths = source.training, source.paths
    share = float(training.get("perc_train") or 0.8)
    split: Table = {"kind": "given", "field": "part"}
    if "total" in paths and "format" in build:
        split = {"train": share, "valid": round((1 - share) / 2, 6)}
        if source.dataset.get("compositional_stratified_splitting"):
            notes.append(
                "the split was stratified by composition and doubled structures of a lone composition, so that copies were in two parts"
            )
    rate = training.get("Optimizer") or {}
    if rate.get("type", "AdamW") not in ("AdamW", "SGD"):
        notes.append(f"the optimizer was {rate['type']}; here it is AdamW")
    precision = str(training.get("precision") or "fp32").lower()
    train: Table = {
        "epochs": int(training["num_epoch"]),
        "optimizer": "sgd" if rate.get("type") == "SGD" else "adamw",
        "learning_rate": float(rate.get("learning_rate", 1e-3)),
        "schedule": "plateau",
        "plateau_patience": 5,
        "precision": PRECISIONS.get(precision, precision),
    }
    train |= {"patience": int(training.get("patience") or 10)} if training.get("EarlyStopping") else {}
    for key, sentence in BROKEN.items():
        if source.architecture.get(key) or training.get(key):
            notes.append(f"{key} {sentence}")
    batch, model = {"max_graphs": int(training["batch_size"])}, _model(source, notes)
    heads = [[*_run_heads(source, targets, notes, number)] for number in range(source.branches)]
    if len(heads) == 1:
        sections = {"data": {"store": store}, "split": split, "batch": batch, "model": model}
        return {**sections, "heads": heads[0], "train": train}
    branches = [
        {"name": name, "data": {"store": f"{name}.h5"}, "split": split, "heads": own}
        for name, own in zip(map("branch-{}".format, range(len(heads))), heads)
    ]
    return {"batch": batch, "model": model, "branches": branches, "train": train}


CONVOLVED = "convolutional heads ended with a batch norm and an activation there, and could not give every number"
BROKEN = {
    "initial_bias": "raised an error there, and has no place here",
    "SyncBatchNorm": "has no meaning here: models have no batch norm",
    "freeze_conv_layers": "has its place in a fine-tuning here ([start], docs/fine-tuning.md)",
    "Batching": "is the section [batch] here, such as max_nodes",
    "activation_function": "is silu here, whatever it was there",
}


def _model(source: Source, notes: list[str]) -> Table:
    architecture, kind = source.architecture, source.kind
    model: Table = {"kind": OWN_KINDS[kind], "hidden_dim": int(architecture["hidden_dim"])}
    model["num_layers"] = int(architecture["num_conv_layers"])
    radius = architecture.get("radius")
    if radius and (kind not in FIRST or (kind not in FLAT and architecture.get("edge_features"))):
        model["cutoff"] = float(radius)
    for key in SETTINGS.get(kind, ()):
        if (value := architecture.get(key)) is not None:
            model[OURS.get(key, key)] = value[0] if isinstance(value, list) else value
    if kind == "MACE" and isinstance(architecture.get("correlation"), list):
        notes.append("of the list correlation only the first number was read there, and is here")
    if kind == "MACE" and architecture.get("distance_transform") not in (None, "None"):
        model["distance_transform"] = architecture["distance_transform"].lower()
    if kind == "SchNet":
        model["radial"] = "gaussian"
    if architecture.get("equivariance") and kind in ("EGNN", "SchNet"):
        notes.append("nodes rest here, with equivariance, too: errors were the same, in less time")
    if architecture.get("use_graph_attr_conditioning"):
        model["conditioning"] = CONDITIONING[architecture.get("graph_attr_conditioning_mode") or "concat_node"]
    if engine := architecture.get("global_attn_engine"):
        heads = int(architecture.get("global_attn_heads") or 1)
        if model["hidden_dim"] % heads:
            heads = math.gcd(heads, model["hidden_dim"])
            notes.append(f"attention has {heads} heads, which divide hidden_dim")
        kinds = {"performer": "linear"} if engine == "GPS" else {}
        own = kinds.get(str(architecture.get("global_attn_type")), "multihead" if engine == "GPS" else "equivariant")
        model["global_attention"] = {"kind": own, "heads": heads}
        model["global_attention"] |= {"cutoff": float(radius)} if own == "equivariant" and radius else {}
        if engine == "GPS":
            notes.append("attention there ran over all graphs of a batch (GPS); here over each graph")
    return model


def _run_heads(source: Source, targets: Sequence[Variable], notes: list[str], number: int) -> Iterator[Table]:
    """Yield the heads of a branch."""
    if source.loss not in LOSSES:
        notes.append(f"the loss {source.loss} is unknown; here it is mse")
    loss = LOSSES.get(source.loss, "mse")
    networks = {
        level: some[min(number, len(some) - 1)] for level in ("graph", "node") if (some := source.networks(level))
    }
    weights = [one.weight or 0.0 for one in targets]
    if source.potential:
        own = networks.get("node") or networks.get("graph") or {}
        head: Table = {"kind": "energy", "field": "energy", "forces": "forces", "hidden_dims": _widths(own)}
        error = "mse" if loss == "nll" else loss
        yield {**head, "weight": weights[0], "forces_weight": weights[1], "loss": error}
        return
    for one, weight in zip(targets, weights):
        kind, level = "vector" if _turns(source, one) else "scalar", one.field.on
        own = networks.get(level, {})
        head = {"kind": kind, "field": one.field.name, "hidden_dims": _widths(own), "loss": loss}
        head |= {"distribution": "gaussian"} if loss == "nll" else {}
        head["weight"] = round(weight / (sum(weights) or 1.0) * len(targets), 6)
        head |= {"pool": POOLS[source.architecture.get("graph_pooling") or "mean"]} if level == "graph" else {}
        if own.get("type") == "conv" and level == "node":
            head["conv_layers"] = min(16, max(1, int(own.get("num_headlayers") or 1)))
            notes.append(CONVOLVED)
        yield head


def _widths(network: Mapping[str, Any]) -> list[int]:
    """Return the widths of a head's hidden layers."""
    shared = [network.get("dim_sharedlayers")] * int(network.get("num_sharedlayers") or 0)
    own = network.get("dim_headlayers") or []
    return [int(width) for width in (*shared, *(own if isinstance(own, list) else [own]))] or [64]


def toml(table: Table, notes: Sequence[str] = ()) -> str:
    """Return a table as TOML, with notes as comments before it."""
    return "".join(f"# {' '.join(note.split())}\n" for note in notes) + tomli_w.dumps(table)
