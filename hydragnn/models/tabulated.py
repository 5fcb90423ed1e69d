"""Models with tables in place of filters: less work per edge."""

import copy

import torch

from hydragnn.layers import RadialFilters, tables_of
from hydragnn.models.graph_model import GraphModel


def tabulated(model: GraphModel) -> GraphModel:
    """Return the model with tables for filters, where they help.

    The same numbers but for rounding, and forces are the derivative of the energy that tables give. For fixed weights in single precision on a CPU, where reading a
    row of a table takes less time than computing it; elsewhere the networks serve.
    """
    parameter, basis = next(model.parameters()), model.encoder.basis
    if parameter.dtype != torch.float32 or not parameter.is_cpu or basis is None or basis.envelope == "none":
        return model
    if basis.transform is not None:  # filters are functions of the atoms at both ends, too
        return model
    if model.edge_inputs.width or model.description.model.pooling is not None:  # edges of coarser levels are longer
        return model
    exact = copy.deepcopy(model.encoder).double().requires_grad_(False)
    assert exact.basis is not None
    result = copy.deepcopy(model)
    for name, part in result.encoder.named_modules():
        if isinstance(part, RadialFilters):
            of_part = exact.get_submodule(name)
            assert isinstance(of_part, RadialFilters)
            part.tables = tables_of(of_part, exact.basis, parameter.dtype)
    return result
