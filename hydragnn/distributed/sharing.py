"""Statistics that all ranks need and each computes a share of."""

import json
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.survey import Row, Rows
from hydragnn.distributed.ranks import Ranks


def shared_rows(ranks: Ranks) -> Rows:
    """Return ``rows(count, width, row)``, which shares rows among ranks; collective."""

    def rows(count: int, width: int, row: Row) -> NDArray[np.float64]:
        mine = torch.zeros(count, width, dtype=torch.float64)
        for number in range(ranks.rank, count, ranks.size):
            mine[number] = torch.from_numpy(row(number))
        return ranks.sum_in_place(mine.to(ranks.device)).cpu().numpy()  # the others' rows are zero: each keeps its bits

    return rows


def first_ranks_value(make: Callable[[], Any], ranks: Ranks) -> Any:
    """Return rank 0's JSON value of ``make`` on all ranks, or raise its InputError."""
    if ranks.size == 1:
        return make()
    text = ""
    if ranks.first:
        try:
            text = json.dumps({"value": make(), "error": None})
        except InputError as error:
            text = json.dumps({"error": str(error)})
    outcome = json.loads(texts_of_all(text, ranks)[0])
    if outcome["error"] is not None:
        raise InputError(outcome["error"])
    return outcome["value"]


def shared_problem(problem: str | None, ranks: Ranks) -> str | None:
    """Return on all ranks the first rank's problem, or None."""
    if ranks.size == 1:
        return problem
    problems = enumerate(map(json.loads, texts_of_all(json.dumps(problem), ranks)))
    return next((f"rank {rank} of {ranks.size}: {one}" for rank, one in problems if one is not None), None)


def texts_of_all(text: str, ranks: Ranks) -> list[str]:
    """Return the texts of all ranks, in their order; collective."""
    encoded = text.encode()
    ends = [0, *accumulate(length for (length,) in ranks.numbers(len(encoded)))]
    letters = torch.zeros(ends[-1], dtype=torch.uint8)
    letters[ends[ranks.rank] : ends[ranks.rank + 1]] = torch.tensor(list(encoded), dtype=torch.uint8)
    whole = ranks.sum_in_place(letters.to(ranks.device)).cpu().numpy().tobytes()
    return [whole[first:last].decode() for first, last in pairwise(ends)]
