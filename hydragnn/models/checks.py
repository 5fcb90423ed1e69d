"""Combinations of encoder, heads and data that cannot work, each refused with its remedy."""

from hydragnn.errors import InputError
from hydragnn.graphs.field import Field
from hydragnn.models.description import ModelDescription
from hydragnn.models.encoders import EQUIVARIANT, GEOMETRIC
from hydragnn.models.settings import HeadSettings, RelationalSettings


def check(description: ModelDescription) -> None:
    """Raise InputError where the description asks for what no model can give; the sentence names the remedy."""
    _check_encoder(description)
    for field in description.input_fields:
        _check_input(field)
    overlap = sorted(set(description.inputs) & set(description.targets))
    if overlap:
        raise InputError(f"field {overlap[0]} is both an input and a target; remove it from data.inputs")
    for head in description.heads:
        _check_head(head, description)


def _check_encoder(description: ModelDescription) -> None:
    model, kind = description.model, description.model.kind
    if kind in GEOMETRIC and not description.dim:
        raise InputError(
            f'model {kind} needs positions, and these graphs have none; use kind = "pna" or kind = "relational"'
        )
    if kind == "pna" and description.statistics is None:
        raise InputError("model pna needs degree statistics of the training part; pass degree_statistics(batches)")
    if isinstance(model, RelationalSettings):
        _check_edge_classes(description, model.relation, "relation")
        if model.schedule:
            levels = _check_edge_classes(description, model.level, "level").classes
            if max(model.schedule) >= levels:
                raise InputError(
                    f"model.schedule asks for level {max(model.schedule)}, but field {model.level} has levels 0 to "
                    f"{levels - 1}; lower it"
                )


def _check_edge_classes(description: ModelDescription, name: str, key: str) -> Field:
    field = description.fields.get(name)
    if field is None or name not in description.inputs or field.on != "edge" or not field.classes or field.shape:
        raise InputError(
            f"model relational needs the categorical edge field {name!r} (classes > 0, one number per edge) among its "
            f"inputs; declare it in the store or set model.{key} to its name"
        )
    return field


def _check_input(field: Field) -> None:
    if field.parity != "scalar":
        raise InputError(
            f"input {field.name} is a {field.parity}; models take scalars only: declare its components with parity "
            f"scalar (which fixes the axes), or its length"
        )


def _check_head(head: HeadSettings, description: ModelDescription) -> None:
    field, kind, dim = description.fields[head.field], description.model.kind, description.dim
    if field.on == "edge":
        raise InputError(f"head {field.name}: it lies on edges, and heads predict node or graph fields; choose another")
    if field.classes:
        raise InputError(f"head {field.name}: it is categorical, and heads predict numbers; declare it as float32")
    if field.parity == "tensor":
        raise InputError(
            f"head {field.name}: tensors are predicted only as the stress of an energy head; declare its components "
            f"with parity scalar if the axes are fixed"
        )
    if head.graph_scale and (field.on != "node" or field.parity != "scalar"):
        raise InputError(f"head {field.name}: graph_scale is for scalar node fields; remove it")
    if field.parity == "vector":
        _check_vector(head, field, kind, dim)
    if head.forces or head.stress:
        _check_energy(head, description)


def _check_vector(head: HeadSettings, field: Field, kind: str, dim: int) -> None:
    if kind not in EQUIVARIANT:
        raise InputError(
            f'head {field.name}: vectors that turn with the graph need kind = "painn" or kind = "egnn", not {kind}; '
            f"declare it with parity scalar if the axes are fixed"
        )
    if field.shape[-1] != dim:
        raise InputError(
            f"head {field.name}: a vector of length {field.shape[-1]} in graphs of dimension {dim}; give shape ({dim},)"
        )
    if field.on == "graph" and head.pool == "max":
        raise InputError(f'head {field.name}: the largest of vectors does not turn with the graph; use pool = "sum"')


def _check_energy(head: HeadSettings, description: ModelDescription) -> None:
    field, kind, dim = description.fields[head.field], description.model.kind, description.dim
    if field.on != "graph" or field.width != 1 or field.parity != "scalar":
        raise InputError(f"head {field.name}: forces and stress are derivatives of one scalar per graph; use an energy")
    if not dim or kind == "relational":
        reason = "graphs without positions" if not dim else "model relational, which sees no lengths"
        raise InputError(f'head {field.name}: no forces or stress from {reason}; use kind = "painn" and positions')
    wanted = {head.forces: ("node", (dim,)), head.stress: ("graph", (dim, dim))}
    for name, (place, shape) in wanted.items():
        found = description.fields[name] if name else None
        if found and (found.on != place or found.shape != shape):
            raise InputError(f"field {name} lies on {found.on} with shape {found.shape}; expected {place} and {shape}")
