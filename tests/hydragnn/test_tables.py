"""Functions of length from tables: what networks say, with fewer operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from hydragnn.graphs import GraphBatch
from hydragnn.kernels import FunctionTable, interpolated, tables_of_functions
from hydragnn.kernels import table as plain
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.layers import RadialFilters
from hydragnn.models import GraphModel
from hydragnn.models.trained import tabulated
from tests.hydragnn.alloys import alloys, network_for


def waves(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x), torch.exp(-x), x * x], dim=-1)


def table(dtype: torch.dtype = torch.float64) -> FunctionTable:
    (made,) = tables_of_functions(lambda x: [waves(x)], 2.0, torch.float32)
    return FunctionTable(end=made.end, knots=made.knots.to(dtype))


def test_values_and_slopes_are_those_of_the_functions() -> None:
    x = torch.linspace(0.001, 1.999, 997, dtype=torch.float32)
    exact = x.double().requires_grad_()
    torch.testing.assert_close(interpolated(x, table(torch.float32)), waves(x.double()).float(), rtol=1e-6, atol=1e-6)
    (expected,) = torch.autograd.grad(waves(exact).sum(), exact)
    x.requires_grad_()
    (slopes,) = torch.autograd.grad(interpolated(x, table(torch.float32)).sum(), x)
    torch.testing.assert_close(slopes, expected.float(), rtol=3e-6, atol=3e-6)


def test_a_gradient_is_the_derivative_of_what_the_table_gives_to_the_second_order() -> None:
    knots = torch.randn(9, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = FunctionTable(end=2.0, knots=knots)
    made.knots[:-1, 1] = made.knots[1:, 0] - made.knots[:-1, 0]
    x = torch.tensor([0.1, 0.3, 1.1, 1.99], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: interpolated(x, made), (x,))
    assert gradgradcheck(lambda x: interpolated(x, made), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 20, 130])
def test_the_compiled_loops_are_the_plain_form(dtype: torch.dtype, channels: int) -> None:
    random = torch.Generator().manual_seed(channels)
    made = FunctionTable(end=3.0, knots=torch.randn(17, 3, channels, dtype=dtype, generator=random))
    x = torch.cat([torch.tensor([-1.0, 0.0, 3.0, 7.0, torch.nan]), 3 * torch.rand(40, generator=random)]).to(dtype)
    g = torch.randn(len(x), channels, dtype=dtype, generator=random)
    values, slopes = cpu.table_value(x, made), cpu.table_slope(x, g, made)
    if values is None or slopes is None:
        pytest.skip("the compiled kernels are not built")
    tolerance = 2e-4 if dtype == torch.float32 else 1e-12  # a place between knots is rounded, at random knots
    torch.testing.assert_close(values, plain.value(x, made), rtol=tolerance, atol=tolerance, equal_nan=True)
    close = {"rtol": tolerance, "atol": tolerance * channels, "equal_nan": True}
    torch.testing.assert_close(slopes, plain.slope(x, g, made), **close)


def test_beyond_its_end_a_table_stays_what_it_is_there_and_nan_stays_nan() -> None:
    x = torch.tensor([2.0, 5.0, torch.nan, torch.inf], dtype=torch.float64, requires_grad=True)
    values = interpolated(x, table())
    torch.testing.assert_close(values[:2], waves(torch.tensor([2.0, 2.0], dtype=torch.float64)), rtol=1e-6, atol=1e-6)
    assert values[2].isnan().all() and torch.equal(values[3], values[1])
    (slopes,) = torch.autograd.grad(values[1].sum(), x)
    assert slopes[1] == 0


def test_no_lengths_give_no_filters() -> None:
    assert interpolated(torch.zeros(0, dtype=torch.float64), table()).shape == (0, 3)


UNFIT: dict[str, Callable[[Tensor], Tensor]] = {
    "too fast for any table": lambda x: torch.sin(1e5 * x),
    "a corner": lambda x: (x - 1).abs(),
    "no numbers": lambda x: x / 0,
}


@pytest.mark.parametrize("function", UNFIT.values(), ids=UNFIT)
def test_what_no_table_holds_has_none(function: Callable[[Tensor], Tensor]) -> None:
    assert tables_of_functions(lambda x: [waves(x), function(x).unsqueeze(-1)], 2.0, torch.float32) == ()


def model_of(batch: GraphBatch, **settings: Any) -> GraphModel:
    return network_for(batch, **{"hidden_dim": 16, **settings}).eval().requires_grad_(False)


def has_tables(model: GraphModel) -> bool:
    parts = [part for part in model.modules() if isinstance(part, RadialFilters)]
    return bool(parts) and all(part.tables for part in parts)


def values_of(model: GraphModel, batch: GraphBatch) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: prediction.mean.double() for name, prediction in model(batch).items()}


SETTINGS: dict[str, dict[str, Any]] = {
    "schnet": {"kind": "schnet"},
    "schnet, gaussian": {"kind": "schnet", "radial": "gaussian", "envelope": "cosine"},
    "painn": {"kind": "painn", "radial": "sinc"},
    "mace": {"kind": "mace", "radial": "exponential", "max_ell": 2},
    "painn, checkpointed": {"kind": "painn", "checkpoint_activations": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_model_with_tables_predicts_as_exactly_as_the_model_itself(settings: dict[str, Any]) -> None:
    batch = alloys().to(dtype=torch.float32)
    model = model_of(batch, **settings)
    fast, exact = tabulated(model), values_of(model.double(), batch.to(dtype=torch.float64))
    single, fast_values = values_of(model.float(), batch), values_of(fast, batch)
    assert has_tables(fast) and not has_tables(model)
    for name, expected in exact.items():
        scale = expected.abs().max()
        error, rounding = ((one[name] - expected).abs().max() / scale for one in (fast_values, single))
        assert error < 3e-6 + 2 * rounding, name  # a few roundings: forces of these models are off by 1e-6 themselves


def test_models_that_tables_do_not_fit_stay_as_they_are() -> None:
    batch = alloys()
    assert tabulated(double := model_of(batch, kind="schnet").double()) is double
    assert tabulated(endless := model_of(batch, kind="schnet", envelope="none")) is endless
    assert not has_tables(tabulated(model_of(batch, kind="egnn")))
