"""What comparisons with other implementations share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    """Layers and their models in float64, from one seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
