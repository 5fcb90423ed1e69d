"""Computations beside each other, each on a stream of its device."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Result = TypeVar("Result")


def has_streams(device: torch.device) -> bool:
    """Return True for devices of CUDA and HIP."""
    return device.type == "cuda"


class Streams:
    """Streams of a device, made on first use."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.usable = has_streams(device)
        self.streams: list[torch.cuda.Stream] = []

    def results(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return what the functions return; one after the other where streams fail."""
        if self.usable and len(works) > 1:
            try:
                return self.beside(works)
            except RuntimeError as error:
                self.usable = False
                print(f"note: members are computed one after the other: {error}", file=sys.stderr, flush=True)
        return [work() for work in works]

    def beside(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Issue all functions, each on its own stream, which waits for all before; what follows waits for them.

        Inputs have to live until this returns. What is freed later is used again after the next wait only.
        """
        current, results = torch.cuda.current_stream(self.device), list[Result]()
        while len(self.streams) < len(works):
            self.streams.append(torch.cuda.Stream(self.device))
        try:
            for stream, work in zip(self.streams, works):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    results.append(work())
        finally:
            for stream in self.streams:
                current.wait_stream(stream)
        return results
