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


def shared_rows(ranks: Ranks, device: torch.device) -> Rows:
    """Return ``rows(count, width, row)``, which shares the rows among ranks.

    Collectives travel over ``device``. All ranks call it together.
    """

    def rows(count: int, width: int, row: Row) -> NDArray[np.float64]:
        mine = torch.zeros(count, width, dtype=torch.float64)
        for number in range(ranks.rank, count, ranks.size):
            mine[number] = torch.from_numpy(row(number))
        return ranks.sum_in_place(mine.to(device)).cpu().numpy()  # the others' rows are zero, so each keeps its bits

    return rows


def first_ranks_value(make: Callable[[], Any], ranks: Ranks, device: torch.device) -> Any:
    """Return rank 0's JSON value of ``make`` on all ranks.

    An InputError of the first rank is raised on all.
    """
    if ranks.size == 1:
        return make()
    outcome = json.loads(_only_text(_outcome(make) if ranks.first else "", ranks, device))
    if outcome["error"] is not None:
        raise InputError(outcome["error"])
    return outcome["value"]


def shared_problem(problem: str | None, ranks: Ranks, device: torch.device) -> str | None:
    """Return on all ranks the first rank's problem, or None."""
    if ranks.size == 1:
        return problem
    failed = ranks.gather(torch.tensor(int(problem is not None), device=device))  # [ranks]
    if not failed.any():
        return None
    first = int(failed.argmax())
    return f"rank {first} of {ranks.size}: " + _only_text((problem or "") if ranks.rank == first else "", ranks, device)


def texts_of_all(text: str, ranks: Ranks, device: torch.device) -> list[str]:
    """Return the texts of all ranks, in their order; collective."""
    encoded = text.encode()
    lengths = ranks.gather(torch.tensor(len(encoded), device=device)).tolist()
    letters = torch.zeros(sum(lengths), dtype=torch.uint8)
    start = sum(lengths[: ranks.rank])
    letters[start : start + len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    whole = ranks.sum_in_place(letters.to(device)).cpu().numpy().tobytes()
    ends = [0, *accumulate(lengths)]
    return [whole[first:last].decode() for first, last in pairwise(ends)]


def _outcome(make: Callable[[], Any]) -> str:
    try:
        return json.dumps({"value": make(), "error": None})
    except InputError as error:
        return json.dumps({"error": str(error)})


def _only_text(text: str, ranks: Ranks, device: torch.device) -> str:
    """Return the text of the one rank that has any."""
    return "".join(texts_of_all(text, ranks, device))
