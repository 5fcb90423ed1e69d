"""A search without real training: attempts are processes of ``fake.training``, which learns in milliseconds."""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def campaign_table(store: Path) -> dict[str, Any]:
    """A campaign as it comes from TOML."""
    return {
        "data": {"store": str(store)},
        "model": {"kind": "schnet"},
        "heads": [{"kind": "scalar", "field": "energy"}],
        "train": {"epochs": 6},
        "search": {
            "trials": 9,
            "sampler": "random",
            "seed": 3,
            "rungs": [1, 3],
            "reduction": 3,
            "finalists": 2,
            "space": {
                "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
                "model.hidden_dim": {"type": "int", "low": 8, "high": 128},
            },
        },
    }


def environment(pause: float, fault: str) -> dict[str, str]:
    """What such attempts run in."""
    paths = f"{HERE.parents[1]}:{HERE}"
    return {"PYTHONPATH": paths, "FAKE_PAUSE": str(pause), "FAKE_FAULT": fault, "PYTHONHASHSEED": "0"}
