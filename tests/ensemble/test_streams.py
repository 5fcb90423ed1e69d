"""Groups of members are computed beside each other, each on a stream of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hydragnn.ensemble import streams
from hydragnn.ensemble.streams import Streams

CPU = torch.device("cpu")


class StandIn:
    """A stream by name, which notes for which others it waits."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: "StandIn") -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams do, on a machine whose CPU has some."""
    noted: list[str] = []
    made: Iterator[int] = iter(range(100))
    current = [StandIn("current", noted)]

    @contextmanager
    def entered(stream: StandIn) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(streams, "has_streams", lambda device: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: StandIn(f"stream {next(made)}", noted))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    return noted


def noting(calls: list[str], name: str) -> Callable[[], str]:
    def work() -> str:
        stream: Any = torch.cuda.current_stream()
        calls.append(f"{name} on {stream.name}")
        return name

    return work


def test_each_function_waits_for_what_came_before_and_what_follows_waits_for_all(calls: list[str]) -> None:
    beside = Streams(CPU)
    expected = ["stream 0 waits for current", "one on stream 0", "stream 1 waits for current", "two on stream 1"]
    expected += ["current waits for stream 0", "current waits for stream 1"]
    for _ in range(2):
        assert beside.results([noting(calls, "one"), noting(calls, "two")]) == ["one", "two"]
        assert calls == expected
        calls.clear()
    assert beside.results([noting(calls, "one")]) == ["one"] and calls == ["one on current"]


def test_without_streams_one_function_follows_the_other_and_a_sentence_says_why(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(device: Any) -> Any:
        raise RuntimeError("no streams are left")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    beside = Streams(CPU)
    for _ in range(2):
        assert beside.results([noting(calls, "one"), noting(calls, "two")]) == ["one", "two"]
    assert calls == 2 * ["one on current", "two on current"]
    assert capsys.readouterr().err == "note: members are computed one after the other: no streams are left\n"
