"""Classes in training: weights, missing labels, metrics against scikit-learn, and the trivial predictor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from torch.nn.functional import cross_entropy

from hydragnn.datasets import Budget, MemoryStore, Normalisation
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays
from hydragnn.models import Categorical, Target
from hydragnn.training import errors_on, trivial_predictor
from hydragnn.training.class_metrics import balanced_weights, label_frequencies
from hydragnn.training.loss import label_counts, loss_sum
from hydragnn.training.metrics import Errors

PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")
SITE = Field(name="site", on="node", classes=2, dtype="int64", role="target")
TARGET = Target(field=PHASE, loss="cross_entropy", distribution=Categorical)


def graph(number: int) -> GraphBatch:
    """Phases 0, 0, 0, 1, 2 in turn; every seventh graph has none."""
    labelled = number % 7 != 6
    return graph_from_arrays(
        np.eye(3),
        [],
        [],
        fields=[SITE, *([PHASE] if labelled else [])],
        nodes={"site": [0, 1, number % 2]},
        graphs={"phase": max(0, number % 5 - 2)} if labelled else {},
    )


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore([graph(number) for number in range(70)])


def output(batch: GraphBatch) -> Categorical:
    generator = torch.Generator().manual_seed(batch.num_graphs)
    logits = torch.randn(batch.num_graphs, 3, generator=generator, dtype=torch.float64)
    return Categorical(logits=logits.requires_grad_())


def test_the_loss_is_the_weighted_cross_entropy_of_the_labels_that_are_there(store: MemoryStore) -> None:
    batch = store.read(range(20))
    prediction, present = output(batch), batch.present("phase")
    logits, labels = prediction.logits[present], batch["phase"][present]
    for weights in (None, (0.5, 2.0, 3.0)):
        loss = loss_sum(replace(TARGET, class_weights=weights), prediction, batch)
        weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        assert loss.item() == pytest.approx(cross_entropy(logits, labels, weight=weight, reduction="sum").item())
    (gradient,) = torch.autograd.grad(loss, prediction.logits)
    assert not gradient[~present].any() and gradient[present].any(dim=1).all()
    assert [float(count) for count in label_counts([TARGET], batch)] == [float(present.sum())]


def test_balanced_weights_give_every_class_the_same_say(store: MemoryStore) -> None:
    train = np.arange(70)
    weights = np.array(balanced_weights(replace(TARGET, class_weights="balanced"), store, train).class_weights)
    batch = store.read(train)
    counts = np.bincount(batch["phase"][batch.present("phase")], minlength=3)
    assert weights * counts == pytest.approx([counts.sum() / 3] * 3)


def test_metrics_agree_with_scikit_learn_and_those_of_parts_add_up(store: MemoryStore) -> None:
    batch = store.read(range(70))
    prediction, present = output(batch).detach(), batch.present("phase").numpy()
    truth, p = batch["phase"].numpy()[present], prediction.probabilities.numpy()[present]
    whole, parts = Errors([TARGET]), Errors([TARGET])
    whole.add(TARGET, prediction, batch)
    for rows in (range(25), range(25, 70)):
        parts.add(TARGET, prediction.rows(torch.tensor(rows)), store.read(rows))
    torch.testing.assert_close(whole.sums, parts.sums)
    actual = whole.values({})["phase"]
    expected = {
        "count": len(truth),
        "accuracy": accuracy_score(truth, p.argmax(1)),
        "balanced_accuracy": balanced_accuracy_score(truth, p.argmax(1)),
        "nll": log_loss(truth, p),
        "brier": ((p - np.eye(3)[truth]) ** 2).sum(1).mean(),
    }
    assert {name: actual[name] for name in expected} == pytest.approx(expected)


def test_the_trivial_predictor_knows_the_frequencies_of_the_training_part(store: MemoryStore) -> None:
    train = np.arange(35)
    predict = trivial_predictor(store, train, [TARGET], Normalisation())
    frequencies = label_frequencies(PHASE, store, train)
    prediction = predict(store.read(range(4)))["phase"]
    assert isinstance(prediction, Categorical)
    np.testing.assert_allclose(prediction.probabilities.numpy(), np.tile(frequencies, (4, 1)))
    metrics = errors_on(predict, store, np.arange(35, 70), [TARGET], Budget(max_graphs=8))["phase"]
    assert metrics["balanced_accuracy"] == pytest.approx(1 / 3)


def test_a_confident_and_right_prediction_is_calibrated_and_a_wrong_one_is_not(store: MemoryStore) -> None:
    batch = store.read([0, 3, 4])
    right = Categorical(logits=50.0 * torch.nn.functional.one_hot(batch["phase"], 3).double())
    for prediction, gap in ((right, 0.0), (Categorical(logits=right.logits.roll(1, dims=1)), 1.0)):
        errors = Errors([TARGET])
        errors.add(TARGET, prediction, batch)
        assert errors.values({})["phase"]["ece"] == pytest.approx(gap, abs=1e-9)
