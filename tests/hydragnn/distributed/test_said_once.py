"""Errors of several ranks are printed once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from hydragnn.base.errors import Busy, InputError
from hydragnn.distributed.ranks import Ranks, said_once
from hydragnn.runs.failures import of_peer


@pytest.mark.parametrize(
    ("errors", "kinds"),
    [
        ([InputError("a"), InputError("a")], ["InputError: a", "SaidByFirst: a"]),
        ([InputError("a"), InputError("b")], ["InputError: a", "InputError: b"]),
        ([Busy("a"), Busy("a")], ["Busy: a", "Busy: a"]),
    ],
    ids=["same", "others", "of a kind"],
)
def test_the_first_rank_alone_says_what_all_would_say(errors: list[InputError], kinds: list[str]) -> None:
    store = dist.HashStore()

    def end_of(rank: int) -> str:
        try:
            with said_once(store, Ranks(rank=rank, size=2)):
                raise errors[rank]
        except InputError as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(end_of, range(2))) == kinds


def test_a_lost_peer_is_one_sentence_and_a_defect_is_none() -> None:
    lost = of_peer(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection reset by peer\nThis is GLHF"))
    assert lost is not None and "--resume" in lost and "\n" not in lost
    assert of_peer(RuntimeError("shapes differ")) is None
