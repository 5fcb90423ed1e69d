"""Linear maps by class: one product per class gives what each row gets by itself, with its gradients."""

import pytest
import torch
from torch import Tensor

from hydragnn.kernels.family import plain_forms
from hydragnn.layers import LinearByClass, classes_of


@pytest.mark.parametrize("of_rows", [[], [2, 2, 2], [3, 0, 1, 3, 0], [1, 0]], ids=str)
def test_rows_get_the_weights_of_their_class_whether_or_not_classes_are_counted(of_rows: list[int]) -> None:
    torch.manual_seed(0)
    layer = LinearByClass(3, 2, classes=4).double()
    numbers = torch.tensor(of_rows, dtype=torch.int64)
    values = torch.randn(len(of_rows), 3, dtype=torch.float64, requires_grad=True)
    weights, biases = layer.weight.view(4, 2, 3), layer.bias.view(4, 2)
    expected = (
        torch.stack([weights[c] @ row + biases[c] for c, row in zip(of_rows, values)]) if of_rows else torch.zeros(0, 2)
    )

    counted = layer(values, classes_of(numbers, 4))
    with plain_forms():
        candidates = layer(values, classes_of(numbers, 4))

    for found in (counted, candidates):
        assert torch.allclose(found, expected.to(found), atol=1e-12)
        if of_rows:
            for mine, theirs in zip(gradients(found, layer, values), gradients(expected, layer, values)):
                assert torch.allclose(mine, theirs, atol=1e-12)


def gradients(found: Tensor, layer: LinearByClass, values: Tensor) -> tuple[Tensor, ...]:
    """Those of a function of all outputs, by weights, biases and rows."""
    return torch.autograd.grad(found.square().sum(), [layer.weight, layer.bias, values], retain_graph=True)
