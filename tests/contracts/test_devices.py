"""A model makes nothing on another device than its batch's; on the device ``meta``, where tensors have no values, as on a GPU."""

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import CORNERS, loss_of, make_model
from hydragnn.layers.size_buckets import size_buckets
from hydragnn.models.graph_model import BUCKETS

pytestmark = pytest.mark.parametrize("kind", architectures())


@pytest.mark.parametrize("corner", ["two graphs", "no edges"])
def test_predictions_and_gradients_are_on_the_device_of_the_batch(kind: str, corner: str) -> None:
    on_host = CORNERS[corner]()
    model, batch = make_model(kind).to("meta"), on_host.to("meta")
    if architectures()[kind].attends:  # sizes of graphs are values, so that batches bring what follows from them
        buckets = size_buckets(on_host.counts("node"), on_host.owner("node"))
        batch._derived[BUCKETS] = buckets.mapped(lambda values: values.to("meta"))
    loss = loss_of(model(batch))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert loss.device.type == "meta"
    assert {gradient.device.type for gradient in gradients if gradient is not None} == {"meta"}
