"""Kinds by name, and models with the weights of a checkpoint."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import convolutions, distances, mace, vectors
from hydragnn.frozen.keys import translated
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FrozenSettings

KINDS: dict[str, type[FrozenModel]] = convolutions.KINDS | distances.KINDS | vectors.KINDS | mace.KINDS


def build(settings: FrozenSettings, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> FrozenModel:
    """Return the model with its weights; InputError where they do not fit."""
    if settings.kind not in KINDS:
        raise InputError(f"{settings.kind}: cannot be read yet")
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # constants are created in it
    try:
        model = KINDS[settings.kind](settings)
    finally:
        torch.set_default_dtype(default)
    model.load_state_dict(translated(weights, settings.generation), strict=True)
    return model.to(dtype)
