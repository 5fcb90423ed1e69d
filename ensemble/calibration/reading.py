"""Calibrations of every kind, read from JSON."""

from collections.abc import Mapping
from typing import Any

import pydantic

from hydragnn.base.errors import InputError
from hydragnn.base.settings import first_problem
from hydragnn.ensemble.calibration.classes import ClassCalibration
from hydragnn.ensemble.calibration.numbers import Calibration
from hydragnn.ensemble.calibration.protocol import AnyCalibration

METHODS: Mapping[str, type[AnyCalibration]] = {
    "spread": Calibration,
    "absolute": Calibration,
    "temperature": ClassCalibration,
}


def calibration_from_json(value: Any) -> AnyCalibration:
    """The calibration whose ``to_json`` this is; InputError on anything else."""
    method = value.get("method") if isinstance(value, dict) else None
    problem = f"unknown method {method!r}"
    if isinstance(method, str) and method in METHODS:
        try:
            calibration: AnyCalibration = pydantic.TypeAdapter(METHODS[method]).validate_python(value)
            return calibration
        except pydantic.ValidationError as error:
            problem = first_problem(error)
    raise InputError(f"a calibration is damaged or from a newer version ({problem}); build the ensemble anew")
