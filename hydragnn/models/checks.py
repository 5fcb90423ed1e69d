"""Checks of encoder, heads and data, each with a remedy."""

from collections.abc import Callable, Iterator, Mapping

from hydragnn.architectures import Architecture, GlobalAttentionSettings, architectures
from hydragnn.architectures.base import Use
from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.levels import CLUSTERS, is_levels
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Categorical, Number, distribution_kind
from hydragnn.models.heads import HeadSettings
from hydragnn.models.heads.modules import with_layers
from hydragnn.models.target import Target

GEOMETRY = frozenset({"lengths", "directions", "triplets"})


def check(description: ModelDescription, *, measured: bool = True) -> None:
    """Raise InputError, with the remedy, where a description cannot work.

    Before the training part was ``measured`` nothing is said of statistics that the architecture needs.
    """
    _check_encoder(description, measured)
    for field in description.input_fields:
        if not description.architecture.reads(description.model, field):
            able = _kinds(lambda architecture: "edge_features" in architecture.sees)
            problem = f"model {description.model.kind} does not see edge features, so {field.name} would have no say"
            raise InputError(f"{problem}; leave it out of data.inputs, or use one of {able}")
        if field.parity != "scalar":
            raise InputError(
                f"input {field.name} is a {field.parity}; models take scalars only: declare its components with parity "
                f"scalar (which fixes the axes), or its length"
            )
    overlap = sorted(set(description.inputs) & {target.field.name for target in description.targets})
    if overlap:
        raise InputError(f"field {overlap[0]} is both an input and a target; remove it from data.inputs")
    for head in description.heads:
        _check_head(head, description)


REFUSALS: Mapping[Use, str] = {
    "graph": "ranks cannot share one graph",
    "stages": "stages cannot divide the model",
    "pooling": "the model cannot pool",
}


def limits_of(description: ModelDescription, use: Use) -> Iterator[tuple[str, str]]:
    """Yield parts of a model, each with a reason against the use."""
    model, architecture = description.model, description.architecture
    attention = model.global_attention
    yield f"model {model.kind}", architecture.limit(model, use)
    if attention and attention.has_pairs and use != "stages":
        yield "equivariant attention", "looks at all pairs of nodes of the graph itself"
    if model.checkpoint_activations and (attention or architecture.attends) and use == "graph":
        yield "attention to all nodes", "exchanges in a layer that checkpoint_activations computes twice"
    if model.pooling is not None and use != "pooling":
        yield "model.pooling", "exchanges levels of whole graphs between layers"
    for head in description.heads:
        yield f"head {head.field}", head.limit(use)
    for target in description.targets:
        if target.loss == "relative" and target.field.on != "graph" and use == "graph":
            yield f"target {target.name}", 'has loss = "relative" over the items of a graph'


def check_use(description: ModelDescription, use: Use, remedy: str) -> None:
    """Raise InputError that names the first part against a use."""
    for part, reason in limits_of(description, use):
        if reason:
            raise InputError(f"{part} {reason}, so that {REFUSALS[use]}; {remedy}")


def check_cuttable(description: ModelDescription, remedy: str = "leave parallel.graph out") -> None:
    """Raise InputError for a model whose graphs cannot be shared by ranks."""
    check_use(description, "graph", f"{remedy}, or change it")


def _check_encoder(description: ModelDescription, measured: bool) -> None:
    architecture, model = description.architecture, description.model
    kind = model.kind
    if architecture.requires & GEOMETRY and not description.dim:
        fault = f"model {kind} needs positions, and these graphs have none"
        raise InputError(f"{fault}; use one of {_kinds(lambda a: not a.requires & GEOMETRY)}")
    if "species" in architecture.requires and ATOMIC_NUMBERS not in description.inputs:
        raise InputError(f"model {kind} needs the node field {ATOMIC_NUMBERS} among its inputs; add it to the store")
    _check_pooling(description)
    if measured and architecture.needs and description.statistics is None:
        fault = f"model {kind} needs {', '.join(sorted(architecture.needs))} of the training part"
        raise InputError(f"{fault}; pass degree_statistics(batches)")
    for name in description.kind_fields:
        field = description.fields.get(name)
        if field is None or name not in description.inputs or field.on != "edge" or not field.classes or field.shape:
            key = next((key for key, value in model if value == name), name)
            raise InputError(
                f"model {kind} needs the categorical edge field {name!r} (classes > 0, one number per edge) among "
                f"its inputs; declare it in the store or set model.{key} to its name"
            )
    if model.global_attention is not None:
        _check_attention(model.global_attention, description)
    if model.conditioning != "concat" and not any(field.on == "graph" for field in description.input_fields):
        problem = f"model.conditioning = {model.conditioning!r} needs an input that lies on graphs"
        raise InputError(f"{problem}; declare one in the store, or leave the key out")
    architecture.check(model, description.spec(edge_width=0))
    architecture.check_inputs(model, description.input_fields)


def _check_pooling(description: ModelDescription) -> None:
    model = description.model
    field = next((field for field in description.input_fields if is_levels(field)), None)
    if field is not None and model.pooling is None:
        raise InputError(
            f"the input {CLUSTERS} is for models that pool; set model.pooling, or take it out of data.inputs"
        )
    if model.pooling is None:
        return
    check_use(description, "pooling", "leave model.pooling out, or change it")
    if field is None:
        raise InputError(
            f"model.pooling needs the node field {CLUSTERS} of levels; give the BUILD.toml of the store a [coarsening], see "
            "hydragnn.graphs.with_contracted_levels"
        )
    if field.shape[0] < model.pooling.levels:
        problem = f"model.pooling.levels = {model.pooling.levels}, and the store has {field.shape[0]}"
        raise InputError(f"{problem}; make more levels, or use fewer")


def _check_attention(attention: GlobalAttentionSettings, description: ModelDescription) -> None:
    model = description.model
    if model.hidden_dim % attention.heads:
        raise InputError(
            f"model.hidden_dim = {model.hidden_dim} does not divide into {attention.heads} heads of model.global_attention; "
            "choose a multiple"
        )
    if not attention.has_pairs:
        return
    others = 'use kind = "multihead" or "linear" in model.global_attention'
    if not description.dim:
        raise InputError(f"equivariant attention needs positions, and these graphs have none; {others}")
    if not description.architecture.sees_positions():
        able = _kinds(lambda architecture: architecture.sees_positions())
        raise InputError(
            f"equivariant attention sees lengths and directions, and model {model.kind}, beside which it stands, sees none; {others}, or "
            f"model.kind one of {able}"
        )


def _kinds(able: Callable[[type[Architecture]], bool]) -> str:
    return ", ".join(kind for kind, architecture in architectures().items() if able(architecture))


def _check_head(head: HeadSettings, description: ModelDescription) -> None:
    field = description.fields[head.field]
    head.check(field)
    architecture, dim = description.architecture, description.dim
    fixed = "declare it with parity scalar if the axes are fixed"
    if field.parity == "vector" and 1 not in architecture.gives:
        raise InputError(
            f"head {field.name}: vectors that turn with the graph need an equivariant model ({_kinds(lambda a: 1 in a.gives)}), not "
            f"{architecture.kind}; {fixed}"
        )
    if field.parity == "tensor":
        _check_positions(field, "tensors that turn with the graph", architecture, dim, f", or {fixed}")
    if field.parity != "scalar" and field.shape[-1] != dim:
        axes, what = (1, "vector of length") if field.parity == "vector" else (2, "tensor of")
        sizes, shape = " x ".join(map(str, field.shape[-axes:])), (dim,) * axes
        raise InputError(f"head {field.name}: a {what} {sizes} in graphs of dimension {dim}; give shape {shape}")
    if head.own_layers:
        with_layers(description.model, head.own_layers)
    if head.corrected_input:
        _check_number(field, "correction_of", head.corrected_input, "node", description)
    for target in head.targets(description.fields):
        _check_distribution(target)
        if target.total:
            _check_total(field, target.total, description)
    if field.on == "edge" and not description.edges:
        problem = f"head {field.name}: it predicts edges, and data.edges = false takes them all away"
        raise InputError(f"{problem}; leave data.edges out, or the head")
    if head.derivatives:
        _check_derivatives(field, head.derivatives, description)


def _check_distribution(target: Target) -> None:
    """Raise InputError for a distribution that later steps could not use."""
    name, kind = target.distribution.__name__, getattr(target.distribution, "kind", "")
    if distribution_kind(kind) is not target.distribution:
        raise InputError(f"head {target.name}: {kind!r} names another distribution than {name}; correct its kind")
    family = Categorical if target.field.classes else Number
    if not issubclass(target.distribution, family):
        problem = f"head {target.name}: {name} is no distribution of its field"
        raise InputError(f"{problem}; derive it from hydragnn.models.{family.__name__}")


def _check_number(field: Field, key: str, name: str, on: str, description: ModelDescription) -> Field:
    """Return the numeric input that a head names; InputError for another or of another shape."""
    other = description.fields.get(name)
    if other is None or name not in description.inputs or other.on != on or other.classes:
        numbers = [one.name for one in description.input_fields if one.on == on and not one.classes]
        raise InputError(f"head {field.name}: {key} = {name!r} is no numeric {on} input; {nearest(name, numbers)}")
    if other.width != field.width or (on == "node" and other.shape != field.shape):
        problem = f"head {field.name}: {key} = {name!r} has shape {other.shape}, the field {field.shape}"
        raise InputError(f"{problem}; declare both with one shape")
    return other


def _check_total(field: Field, name: str, description: ModelDescription) -> None:
    total = _check_number(field, "total", name, "graph", description)
    if total.unit and field.unit and total.unit != field.unit:
        raise InputError(
            f"head {field.name}: total = {name!r} is in {total.unit}, the field in {field.unit}; store both in one unit"
        )
    if description.branch:
        raise InputError(
            f"head {field.name}: total = {name!r} is for runs of one data set, since branches share the scales of inputs; use total = 0"
        )


def _check_positions(field: Field, what: str, architecture: type[Architecture], dim: int, other: str = "") -> None:
    if not dim or not architecture.sees_positions():
        reason = "graphs without positions" if not dim else f"model {architecture.kind}, which sees no lengths"
        able = _kinds(lambda a: a.sees_positions())
        raise InputError(f"head {field.name}: no {what} from {reason}; use positions and one of {able}{other}")


def _check_derivatives(field: Field, derivatives: Mapping[str, str], description: ModelDescription) -> None:
    dim = description.dim
    _check_positions(field, "forces or stress", description.architecture, dim)
    expected = {"forces": ("node", (dim,)), "stress": ("graph", (dim, dim))}
    for what, name in derivatives.items():
        declared, (place, shape) = description.fields[name], expected[what]
        if declared.on != place or declared.shape != shape:
            raise InputError(
                f"field {name} lies on {declared.on} with shape {declared.shape}; expected {place} and {shape}"
            )
