"""The end of a peer process in ``bench_peers`` and ``bench_kinds``: it takes a step whenever it is asked to, and says what it cost.

Imports torch and numpy alone, since it runs in environments of others.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

HIDDEN, LAYERS, RADIAL, CUTOFF = 64, 3, 20, 5.0
BLIND = {"gin", "sage", "mfc", "relational", "gps"}
"""Architectures that see no lengths and give no forces; ``gps`` is GIN with attention among all nodes of a graph."""

AT_LEAST = 0.05
"""Seconds that an answer measures. A step of two milliseconds that is taken alone, after others had the processor, begins with cold caches, which no training does."""

Predict = Callable[[], Iterable[Tensor]]


def tensors(folder: Path) -> dict[str, Tensor]:
    """What the driver wrote: numbers, positions, senders, receivers, shifts (Angstrom), graph of every node."""
    with np.load(folder / "graphs.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def weights(folder: Path, kind: str) -> dict[str, Tensor]:
    """The weights that all of one form share, by this project's names."""
    with np.load(folder / f"{kind}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def trains_forces(kind: str, options: list[str]) -> bool:
    """Return True where forces are trained with the energies; never with the option ``energies``."""
    return kind not in BLIND and "energies" not in options


class FusedAdamW:
    """What ``torch.optim.AdamW(fused=True)`` does, without its class, which loads the compiler: 140 MB that our training loops do without."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """No moments yet."""
        self.parameters = list(parameters)
        self.moments = [[torch.zeros_like(parameter) for parameter in self.parameters] for _ in range(2)]
        self.steps = [torch.zeros(()) for _ in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights once along their gradients."""
        known = [(number, p.grad) for number, p in enumerate(self.parameters) if p.grad is not None]
        weights = [self.parameters[number] for number, _ in known]
        first, second = ([part[number] for number, _ in known] for part in self.moments)
        steps = [self.steps[number] for number, _ in known]
        settings = {"beta1": 0.9, "beta2": 0.999, "lr": 1e-3, "weight_decay": 0.01, "eps": 1e-8}
        gradients = [gradient for _, gradient in known]
        adamw(
            weights,
            gradients,
            first,
            second,
            [],
            steps,
            foreach=False,
            fused=True,
            amsgrad=False,
            maximize=False,
            **settings,
        )


def training_step(model: nn.Module, predict: Predict, weights_alone: bool, ours: bool) -> Callable[[], float]:
    """Forward, forces, backward and AdamW; gives the loss. ``weights_alone``: nothing else receives a gradient. ``ours``: AdamW is
    called as our training loops call it."""
    parameters = model.parameters()
    optimizer = FusedAdamW(parameters) if ours else torch.optim.AdamW(parameters, fused=True)
    inputs = list(model.parameters()) if weights_alone else None

    def step() -> float:
        if not model.training:
            model.train()  # a walk over all modules, which loops take once in an epoch
        optimizer.zero_grad()
        loss = torch.stack([value.square().mean() for value in predict()]).sum()
        loss.backward(inputs=inputs)
        optimizer.step()
        return float(loss.detach())

    return step


def inference(model: nn.Module, predict: Predict, recorded: bool) -> Callable[[], float]:
    """Energies and forces; ``recorded`` where a model needs gradients to be on for its forces."""

    def step() -> float:
        model.eval()
        with torch.set_grad_enabled(recorded):
            return float(sum(value.detach().square().mean() for value in predict()))

    return step


def seconds_of(step: Callable[[], object]) -> float:
    """Processor seconds of a step: the mean of as many as fill ``AT_LEAST``."""
    begin, taken = time.process_time(), 0
    while taken == 0 or time.process_time() - begin < AT_LEAST:
        step()
        taken += 1
    return (time.process_time() - begin) / taken


def allocated(step: Callable[[], float]) -> float:
    """MB that live at most in a step beside what was there before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return float(max(alive, default=0)) / 2**20


def serve(
    model: nn.Module,
    predict: Predict,
    recorded: bool = True,
    infer: Predict | None = None,
    weights_alone: bool = False,
    ours: bool = False,
) -> Path | None:
    """Answer lines ``values``, ``train``, ``infer`` and ``memory`` (of training) on stdin until it ends, each by one line of JSON; where one
    is ``batch FOLDER``, return that folder, to be served next.

    ``infer`` predicts with fixed weights, where that is done otherwise than in training; values are its.
    """
    infer = infer or predict
    steps = {"train": training_step(model, predict, weights_alone, ours), "infer": inference(model, infer, recorded)}
    model.eval()
    print(json.dumps({"parameters": sum(parameter.numel() for parameter in model.parameters())}), flush=True)
    for line in sys.stdin:
        request = line.strip()
        if request.startswith("batch "):
            return Path(request.removeprefix("batch "))
        if request == "values":
            answer: dict[str, object] = {"values": [value.detach().flatten().tolist() for value in infer()]}
        elif request == "memory":
            answer = {"megabytes": allocated(steps["train"])}
        else:
            answer = {"seconds": seconds_of(steps[request])}
            answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), flush=True)
    return None


def serve_all(folder: Path, serve_one: Callable[[Path], Path | None]) -> None:
    """Serve the batch in this folder, and every one that is asked for after it."""
    following: Path | None = folder
    while following is not None:
        following = serve_one(following)


def arguments() -> tuple[str, Path, list[str]]:
    """Architecture, folder and options of this process; torch takes one thread."""
    torch.set_num_threads(1)
    return sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
