"""What a domain's file holds is read with care: it may come from anyone."""

import numpy as np
import pytest

from hydragnn.ensemble.domain.stored import Stored
from hydragnn.graphs import Field


@pytest.mark.parametrize(
    "values, fits",
    [([0.0, 7.0], True), ([7.0, 0.0], False), ([0.5], False), ([-1.0], False), ([2.0**40], False), ([], False)],
)
def test_known_classes_of_a_field_of_very_many_are_read_without_laying_them_out(
    values: list[float], fits: bool
) -> None:
    field = Field(name="clusters", on="node", role="auxiliary", classes=2**40, dtype="int64")
    stored = Stored(tensors={"known": np.array(values, dtype=np.float64)}, fields={"clusters": field}, dim=3)
    if fits:
        assert stored.kinds("known", "clusters").tolist() == values
    else:
        with pytest.raises(ValueError, match="does not hold classes of clusters"):
            stored.kinds("known", "clusters")
