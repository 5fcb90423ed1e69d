"""What a run record says before the first step: configuration, data, versions, machine."""

import platform
from pathlib import Path

import numpy as np
import torch

from hydragnn.config import AnyConfig
from hydragnn.distributed.launch import host_name
from hydragnn.files import digest
from hydragnn.record import BranchRecord, RunRecord
from hydragnn.runs.preparation import unseen_inputs
from hydragnn.training.data import RunData


def first_record(config: AnyConfig, data: RunData, parameters: int, device: torch.device) -> RunRecord:
    """What is known before the first step of a model with so many parameters."""
    hashes = {branch.name: branch.store.fingerprint for branch in data.branches}
    parts = {branch.name: branch.split.counts for branch in data.branches}
    unseen = [
        name
        for settings, branch in zip(config.branches, data.branches)
        for name in unseen_inputs(settings, config.model, branch.store.fields())
    ]
    return RunRecord(
        config=config.to_json(),
        config_hash=config.hash,
        data_hash=next(iter(hashes.values())) if len(hashes) == 1 else digest(hashes),
        seed=config.train.seed,
        parameters=parameters,
        parts={part: sum(counts[part] for counts in parts.values()) for part in next(iter(parts.values()))},
        branches={name: BranchRecord(data_hash=hashes[name], parts=parts[name]) for name in hashes if name},
        trivial=dict(data.trivial),
        unseen_inputs=list(dict.fromkeys(unseen)),
        versions=versions(),
        hardware=hardware(device),
    )


def versions() -> dict[str, str]:
    """Versions of what computes."""
    from hydragnn import __version__

    return {
        "hydragnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def hardware(device: torch.device) -> dict[str, str | int]:
    """The machine of this rank."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"host": host_name(), "device": name, "threads": torch.get_num_threads()}


def processor_name() -> str:
    """The processor as the system names it."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
