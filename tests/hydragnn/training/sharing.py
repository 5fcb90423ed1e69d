"""Two ranks that share what they measure: run by ``test_shared_statistics.py`` under torchrun."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.base.errors import InputError
from hydragnn.distributed import join_ranks, leave
from hydragnn.distributed.sharing import first_ranks_value, shared_rows

CPU = torch.device("cpu")


def refused() -> Any:
    raise InputError("graph 7 has no charge")


def main() -> int:
    with join_ranks(Path()) as ranks:
        asked: list[int] = []

        def row(number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
            asked.append(number)
            return np.array([1 / (number + 3), math.nan if number == 2 else -1e-310])

        rows = shared_rows(ranks, CPU)(5, 2, row)
        assert asked == list(range(ranks.rank, 5, 2))
        assert rows[:, 0].tolist() == [1 / (number + 3) for number in range(5)]
        assert np.isnan(rows[2, 1]) and rows[1, 1] == -1e-310

        calls: list[int] = []
        value = first_ranks_value(lambda: calls.append(1) or {"ä": [0.1, 1 / 3]}, ranks, CPU)
        assert value == {"ä": [0.1, 1 / 3]} and len(calls) == (1 if ranks.first else 0)
        try:
            first_ranks_value(refused, ranks, CPU)
        except InputError as error:
            return 0 if "graph 7" in str(error) else 1
    return 1


if __name__ == "__main__":
    leave(main())
