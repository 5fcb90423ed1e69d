"""A model makes nothing on another device than its batch's; on the device ``meta``, where tensors have no values, as on a GPU."""

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import CORNERS, loss_of, make_model

pytestmark = pytest.mark.parametrize("kind", architectures())


@pytest.mark.parametrize("corner", CORNERS)
def test_predictions_and_gradients_are_on_the_device_of_the_batch(kind: str, corner: str) -> None:
    model, batch = make_model(kind).to("meta"), CORNERS[corner]().to("meta")
    loss = loss_of(model(batch))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert loss.device.type == "meta"
    assert {gradient.device.type for gradient in gradients if gradient is not None} == {"meta"}
