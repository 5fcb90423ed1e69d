"""Parameters in Optuna's terms."""

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from hydragnn.hpo.space.parameters import Choice, Choices, IntRange, Parameter

Distributions = dict[str, BaseDistribution]


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the parameter's range; lists become their text."""
    if isinstance(parameter, Choices):
        return CategoricalDistribution([optuna_value(parameter, choice) for choice in parameter.choices])
    if isinstance(parameter, IntRange):
        high = parameter.high - (parameter.high - parameter.low) % parameter.step
        return IntDistribution(parameter.low, high, log=parameter.log, step=parameter.step)
    top = parameter.high
    if parameter.step is not None:
        top = parameter.low + int((top - parameter.low) / parameter.step + 1e-9) * parameter.step
    return FloatDistribution(parameter.low, top, log=parameter.log, step=parameter.step)


def optuna_value(parameter: Parameter, value: Choice) -> Any:
    """Return a value as Optuna takes it.

    >>> optuna_value(Choices(choices=[[64], [64, 64]]), [64, 64])
    '[64, 64]'
    """
    alike = isinstance(parameter, Choices) and parameter.choices.count(value) > 1  # true and 1
    return str(value) if isinstance(parameter, Choices) and (alike or isinstance(value, list)) else value
