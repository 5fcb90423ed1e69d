"""The GPUs of this machine, one for each worker of a search."""

import os
from collections.abc import Mapping

import torch

from hydragnn.errors import InputError
from hydragnn.machine import visible_gpus

NARROWING_ON_AMD = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The innermost first: HIP counts within what ROCR leaves, and reads CUDA's variable where its own is not set."""


def gpus_of_workers(workers: int) -> tuple[dict[str, str], ...]:
    """For each worker the variable that shows it one GPU, which no other worker sees; empty ones on a machine without GPUs.

    InputError for more workers than GPUs: two trainings on one GPU by accident run out of memory, or take turns.
    """
    gpus = visible_gpus()
    if not gpus:
        return ({},) * workers
    if workers > gpus:
        raise InputError(
            f"{workers} workers, but this process sees {gpus} GPU(s), and each worker trains on one of its own; set workers "
            f"to at most {gpus} (search.together lets several trials share one), or hide the GPUs to train on the CPU: "
            "export CUDA_VISIBLE_DEVICES="
        )
    on_amd = torch.version.hip is not None
    return tuple(one_gpu(os.environ, worker, on_amd=on_amd) for worker in range(workers))


def one_gpu(environment: Mapping[str, str], worker: int, *, on_amd: bool) -> dict[str, str]:
    """The variable through which a worker sees the GPU with its number among those that are left by the environment.

    >>> one_gpu({"CUDA_VISIBLE_DEVICES": "4,GPU-a"}, 1, on_amd=False), one_gpu({}, 1, on_amd=True)
    ({'CUDA_VISIBLE_DEVICES': 'GPU-a'}, {'ROCR_VISIBLE_DEVICES': '1'})
    """
    names = NARROWING_ON_AMD if on_amd else ("CUDA_VISIBLE_DEVICES",)
    name = next((name for name in names if environment.get(name)), names[-1])
    listed = environment.get(name)
    return {name: listed.split(",")[worker].strip() if listed else str(worker)}
