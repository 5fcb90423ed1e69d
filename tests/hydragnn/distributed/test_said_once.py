"""Errors of several ranks are printed once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from hydragnn.base.errors import Busy, InputError
from hydragnn.distributed.ranks import Ranks, said_once
from hydragnn.runs.failures import of_peer


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


@pytest.mark.parametrize(
    ("errors", "kinds"),
    [
        ([InputError("a"), InputError("a")], ["InputError: a", "SaidByFirst: a"]),
        ([InputError("a"), InputError("b")], ["InputError: a", "InputError: b"]),
        ([Busy("a"), Busy("a")], ["Busy: a", "Busy: a"]),
    ],
    ids=["same", "others", "of a kind"],
)
def test_the_first_rank_alone_says_what_all_would_say(errors: list[Exception | None], kinds: list[str]) -> None:
    assert kinds_of(errors) == kinds


def test_a_lost_peer_is_one_sentence_and_a_defect_is_none() -> None:
    lost = of_peer(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection reset by peer\nThis is GLHF"))
    assert lost is not None and "--resume" in lost and "\n" not in lost
    assert of_peer(RuntimeError("shapes differ")) is None
