"""A training domain read from a manifest and the file beside it."""

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_regular
from hydragnn.ensemble.domain.composition import Composition
from hydragnn.ensemble.domain.detector import Detector
from hydragnn.ensemble.domain.domain import FILE, Domain
from hydragnn.ensemble.domain.inputs import Inputs
from hydragnn.ensemble.domain.kinds import Kinds
from hydragnn.ensemble.domain.latent import Latent
from hydragnn.ensemble.domain.limits import Limits
from hydragnn.ensemble.domain.neighbourhoods import Neighbourhoods
from hydragnn.ensemble.domain.spread import Spread
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.structure import Structure
from hydragnn.ensemble.domain.view import Array
from hydragnn.graphs.field import Field

DETECTORS: Mapping[str, Callable[[Mapping[str, Any], Stored], Detector]] = {
    "kinds": Kinds.load,
    "inputs": Inputs.load,
    "composition": Composition.load,
    "neighbourhoods": Neighbourhoods.load,
    "structure": Structure.load,
    "latent": Latent.load,
    "spread": Spread.load,
}


def domain_from_json(value: Mapping[str, Any], folder: Path, fields: Mapping[str, Field], dim: int) -> Domain:
    """Return the domain that ``to_json`` wrote; InputError on anything else.

    ``fields`` are what members read, and by target what they predict; ``dim`` is the dimension of their graphs.
    """
    try:
        tensors = _tensors(folder / FILE, value["sha256"]) if value["sha256"] else {}
        detectors = tuple(_detector(one, tensors, fields, dim) for one in value["detectors"])
        if not detectors:
            return Domain()
        channels = sum(len(detector.channels) for detector in detectors)
        usual, limit = (np.array(value[name], dtype=np.float64) for name in ("usual", "limit"))
        finite = np.isfinite([*usual.ravel(), *limit.ravel()]).all()
        if usual.shape != (channels,) or limit.shape != (channels,) or not finite or not (limit > usual).all():
            raise ValueError(f"limits {limit.tolist()} above {usual.tolist()} for {channels} channels")
        scale = float(value["scale"])
        if not 0 < scale < math.inf:
            raise ValueError(f"the length {scale} is none")
        return Domain(detectors=detectors, limits=Limits(usual=usual, limit=limit), scale=scale)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"the training domain is damaged ({error}); build the ensemble anew") from error


def _detector(
    settings: Mapping[str, Any], tensors: Mapping[str, Array], fields: Mapping[str, Field], dim: int
) -> Detector:
    name = settings["name"]
    own = {key.removeprefix(f"{name}/"): values for key, values in tensors.items() if key.startswith(f"{name}/")}
    return DETECTORS[name](settings, Stored(tensors=own, fields=fields, dim=dim))


def _tensors(path: Path, expected: str) -> dict[str, Array]:
    check_regular(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; copy the whole folder again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(f"{path} differs from what was saved; copy the whole folder again")
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # also numbers of a type that numpy has not
        raise InputError(f"{path} is damaged ({error}); copy the whole folder again") from error
