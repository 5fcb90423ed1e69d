"""Arguments of the Python api, whose types and ranges are those of the commands."""

import inspect
from typing import Any

import pytest

import hydragnn
from hydragnn.base.errors import InputError


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("simulate", {"seed": -3}, "seed = -3 is out of range; give at least 0"),
        ("simulate", {"hours": float("inf")}, "hours = inf is no finite number"),
        ("simulate", {"nodes": "4"}, r"nodes = '4' \(str\) is no whole number; give one, such as 3"),
    ],
)
def test_numbers_out_of_range_and_other_types_are_refused(function: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        getattr(hydragnn, function)("CAMPAIGN.toml", **arguments)


def test_signatures_show_types_and_no_options() -> None:
    functions = [one for name in hydragnn.__all__ if inspect.isfunction(one := getattr(hydragnn, name))]
    assert len(functions) > 10
    for function in functions:
        assert "typer" not in str(inspect.signature(function)), function
