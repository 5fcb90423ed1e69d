"""Models of the public HydraGNN give the outputs that its own code wrote beside their checkpoints."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hydragnn.frozen import FrozenGraph, FrozenModel, FrozenSettings, build
from tests.hydragnn.frozen.folders import Outputs, batches, config_of, folders, weights_of

CLOSE = {torch.float32: 1e-6, torch.float64: 1e-10}
"""Largest difference, in parts of the largest value of an output."""
COARSE = {"MACE_opt_cheb_agnesi": 4e-6, "MACE_v4_mlip": 4e-6}
"""The same in float32 where the writer's own forces are 2e-6 off those in float64."""


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_outputs_are_those_of_the_writer(folder: Path, real_data: Path) -> None:
    config, weights = config_of(folder), weights_of(folder)[0]
    settings = FrozenSettings.from_config(config, weights)
    seen = 0
    for graph, expected in batches(folder):
        for dtype, outputs in expected.items():
            model = build(settings, weights, dtype)
            for name, values in computed(model, graph.to(dtype)).items():
                close = COARSE.get(folder.name, CLOSE[dtype]) if dtype is torch.float32 else CLOSE[dtype]
                assert relative(values, outputs[name]) < close, (dtype, name)
                seen += 1
    assert seen


def computed(model: FrozenModel, graph: FrozenGraph) -> Outputs:
    """Outputs by the names of the files."""
    results = {}
    for number, (mean, variance) in enumerate(model(graph)):
        results[f"head{number}"] = mean
        if variance is not None:
            results[f"head{number}.var"] = variance
    if model.settings.interatomic:
        pos = graph.pos.clone().requires_grad_()
        results["energy"] = model.energy(replace(graph, pos=pos))
        (gradient,) = torch.autograd.grad(results["energy"].sum(), pos)
        results["forces"] = -gradient
    return {name: values.detach() for name, values in results.items()}


def relative(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).abs().max() / expected.abs().max())
