"""Calibrations of every kind, read from JSON."""

from collections.abc import Callable, Mapping
from typing import Any

from hydragnn.ensemble.calibration import number_calibration_from_json
from hydragnn.ensemble.classes import ClassCalibration
from hydragnn.ensemble.estimates import AnyCalibration
from hydragnn.errors import InputError

METHODS: Mapping[str, Callable[[Mapping[str, Any]], AnyCalibration]] = {
    "spread": number_calibration_from_json,
    "absolute": number_calibration_from_json,
    "temperature": lambda value: ClassCalibration(**value),
}


def calibration_from_json(value: Mapping[str, Any]) -> AnyCalibration:
    """The calibration whose ``to_json`` this is; InputError on anything else."""
    try:
        return METHODS[value["method"]](value)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"a calibration is damaged or from a newer version ({error}); build the ensemble anew"
        ) from error
