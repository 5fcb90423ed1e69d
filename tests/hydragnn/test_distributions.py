"""A prediction is a distribution: its likelihood is torch's, and its units are undone exactly."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gaussian_nll_loss

from hydragnn.graphs import Field
from hydragnn.models import Categorical, Distribution, Normal, Point, concatenate_distributions

MAKE: dict[str, Callable[[int], Distribution]] = {
    "point": lambda seed: Point(mean=numbers(seed, 5, 3)),
    "normal": lambda seed: Normal(mean=numbers(seed, 5, 3), variance=numbers(seed + 1, 5, 3).exp()),
    "categorical": lambda seed: Categorical(logits=numbers(seed, 5, 4)),
}


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_likelihood_of_a_normal_distribution_is_that_of_torch() -> None:
    output, target = Normal(mean=numbers(0, 7), variance=numbers(1, 7).exp()), numbers(2, 7)
    expected = gaussian_nll_loss(output.mean, target, output.variance, reduction="none", eps=1e-30)
    torch.testing.assert_close(output.nll(target), expected)


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_has_no_likelihood(label: int) -> None:
    output = Categorical(logits=torch.zeros(2, 4))
    expected = torch.tensor([math.nan, math.log(4)])
    torch.testing.assert_close(output.nll(torch.tensor([label, 1])), expected, equal_nan=True)


def test_the_likelihood_of_classes_is_the_cross_entropy_of_torch() -> None:
    output, target = Categorical(logits=10 * numbers(0, 6, 2, 4)), torch.arange(12).view(6, 2) % 4
    expected = cross_entropy(output.logits.movedim(-1, 1), target, reduction="none")
    torch.testing.assert_close(output.nll(target), expected)


def test_probabilities_sum_to_one_and_errors_count_wrong_labels() -> None:
    output = Categorical(logits=torch.tensor([[2.0, 0.0, 1.0], [0.0, 5.0, 0.0]]))
    torch.testing.assert_close(output.probabilities.sum(-1), torch.ones(2))
    assert output.labels.tolist() == [0, 1] and output.error(torch.tensor([0, 2])).tolist() == [0.0, 1.0]


def test_units_move_numbers_and_leave_classes_alone() -> None:
    mean, std = torch.tensor(2.0), torch.tensor(3.0)
    normal = Normal(mean=torch.ones(1), variance=torch.ones(1)).denormalise(mean, std)
    assert (normal.mean.item(), normal.variance.item()) == (5.0, 9.0)
    classes = MAKE["categorical"](0)
    assert classes.denormalise(mean, std).shift_by(mean) is classes


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_blanked_is_not_finite_and_the_rest_is(kind: str) -> None:
    marked = torch.tensor([True, False, False, True, False])
    assert torch.equal(MAKE[kind](3).blank_items(marked).finite(), ~marked)
    field = Field(name="x", on="node", shape=(2,), classes=3 if kind == "categorical" else 0, dtype=DTYPE[kind])
    assert not type(MAKE[kind](0)).blank(field, 4).finite().any()


DTYPE = {"point": "float32", "normal": "float32", "categorical": "int64"}


def test_points_among_normals_have_no_variance() -> None:
    both = concatenate_distributions([MAKE["point"](0), MAKE["normal"](1)])
    assert isinstance(both, Normal)
    assert not both.variance[:5].any() and bool((both.variance[5:] > 0).all())
