"""Errors of several ranks are printed once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from hydragnn.base.errors import Busy, InputError
from hydragnn.distributed.mesh import check_layout
from hydragnn.distributed.ranks import Ranks, said_once
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.failures import of_peer

LAYOUT = "InputError: parallel: shard = 3 takes 3 ranks"


def kinds_of(errors: list[Exception | None]) -> list[str]:
    """Return what two ranks raise that have these errors."""
    store = dist.HashStore()

    def work(rank: int) -> str:
        try:
            with said_once(store, Ranks(rank=rank, size=2)):
                if (error := errors[rank]) is not None:
                    raise error
        except InputError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(work, range(2)))


def test_a_layout_that_does_not_fit_is_said_by_the_first_rank_alone() -> None:
    errors: list[Exception | None] = []
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            check_layout(ParallelSettings(shard=3), 2, 2)
        errors.append(caught.value)
    first, second = kinds_of(errors)
    assert first.startswith(LAYOUT)
    assert second == first.replace("InputError", "SaidByFirst")


def test_ranks_with_other_errors_print_their_own() -> None:
    assert kinds_of([InputError("a"), InputError("b")]) == ["InputError: a", "InputError: b"]
    assert kinds_of([Busy("a"), Busy("a")]) == ["Busy: a", "Busy: a"]


def test_a_lost_peer_is_one_sentence_and_a_defect_is_none() -> None:
    lost = of_peer(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection reset by peer\nThis is GLHF"))
    assert lost is not None and "--resume" in lost and "\n" not in lost
    assert of_peer(RuntimeError("shapes differ")) is None
