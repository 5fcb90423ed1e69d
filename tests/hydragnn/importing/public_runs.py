"""Run folders as the public HydraGNN leaves them, with weights drawn here."""

import io
import json
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.frozen import FrozenSettings
from hydragnn.frozen.kinds import KINDS
from tests.datasets.public_files import samples

ARCHITECTURE = {
    "mpnn_type": "GIN",
    "radius": 3.0,
    "max_neighbours": 12,
    "hidden_dim": 8,
    "num_conv_layers": 2,
    "input_dim": 1,
    "output_heads": {
        "graph": [
            {
                "type": "branch-0",
                "architecture": {
                    "num_sharedlayers": 1,
                    "dim_sharedlayers": 5,
                    "num_headlayers": 1,
                    "dim_headlayers": [7],
                },
            }
        ],
        "node": [{"type": "branch-0", "architecture": {"num_headlayers": 1, "dim_headlayers": [6], "type": "mlp"}}],
    },
    "output_type": ["graph", "node"],
    "output_dim": [1, 3],
    "task_weights": [1.0, 2.0],
    "activation_function": "relu",
    "periodic_boundary_conditions": True,
}
VARIABLES = {
    "input_node_features": [0],
    "output_names": ["energy_per_atom", "forces"],
    "output_index": [0, 2],
    "output_dim": [1, 3],
    "type": ["graph", "node"],
}
FEATURES = {
    "node_features": {"name": ["atomic_number", "charge", "forces"], "dim": [1, 1, 3]},
    "graph_features": {"name": ["energy_per_atom"], "dim": [1]},
}


def config_of(dataset: Mapping[str, Any] | None = None, **architecture: Any) -> dict[str, Any]:
    keys = {name: one for name, one in {**ARCHITECTURE, **architecture}.items() if one is not None}
    network = {"Architecture": keys, "Variables_of_interest": VARIABLES}
    return {
        "Dataset": {"name": "some", **FEATURES, **(dataset or {})},
        "NeuralNetwork": {**network, "Training": {"batch_size": 4, "num_epoch": 3}},
    }


def of_branches(count: int) -> dict[str, Any]:
    """Return heads of several branches."""
    levels = {level: heads[0]["architecture"] for level, heads in ARCHITECTURE["output_heads"].items()}
    return {
        level: [{"type": f"branch-{number}", "architecture": own} for number in range(count)]
        for level, own in levels.items()
    }


def write_pickles(folder: Path, sets: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a folder of pickled samples, one a file."""
    from torch_geometric.data import Data

    folder.mkdir(parents=True)
    for label, some in sets.items():
        with (folder / f"{label}-meta.pkl").open("wb") as file:
            for one in (None, None, len(some), False, 1000, {}):
                pickle.dump(one, file)
        for number, sample in enumerate(some):
            values = {key: torch.as_tensor(one) for key, one in sample.items() if not isinstance(one, str)}
            (folder / f"{label}-{number}.pkl").write_bytes(pickle.dumps(Data(**values)))


def write_model(folder: Path, file: str = "NAME.pk", *, seed: int = 0, **architecture: Any) -> Path:
    """Write a configuration and a checkpoint with prefixed names."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(**architecture)
    (folder / "config.json").write_text(json.dumps(config))
    names = {f"branch-{number}.": torch.zeros(64) for number in range(9)}
    settings = FrozenSettings.from_config(config, names)
    torch.manual_seed(seed)
    weights = KINDS[settings.kind](settings).state_dict()
    own = re.search(r"_branch(\d+)\.pk", file)  # the whole encoder and one branch
    others = re.compile(rf"branch-(?!{own[1]}\b)") if own else re.compile("^$")
    weights = {name: value for name, value in weights.items() if not others.search(name)}
    state = OrderedDict((f"module.{name}", value) for name, value in weights.items())
    torch.save({"model_state_dict": state, "optimizer_state_dict": {"state": {}}}, folder / file)
    return folder / file


class Code:
    """Object whose unpickling would call a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


class Named:
    """Storage by its name in a table."""

    def __init__(self, key: str, numel: int) -> None:
        self.pid = ("storage", torch.FloatStorage, key, "cpu", numel)


def archive(table: Any, records: dict[str, bytes], **zipped: Any) -> bytes:
    """Return a file with this table, whose tensors are ``Named``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value.pid if isinstance(value, Named) else None

    content, text = io.BytesIO(), io.BytesIO()
    Pickler(text, protocol=2).dump(table)
    with zipfile.ZipFile(content, "w", **zipped) as file:
        file.writestr("archive/data.pkl", text.getvalue())
        for key, value in records.items():
            file.writestr(f"archive/data/{key}", value)
    return content.getvalue()


def tensor(numel: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Code:
    """Return a tensor of the storage ``0``."""
    return Code(torch._utils._rebuild_tensor_v2, Named("0", numel), offset, size, stride, False, OrderedDict())


def sets_of_branches(branches: int) -> dict[str, Any]:
    """Return samples with atomic numbers, charge and forces in x, and the number of their branch."""
    sets = {"trainset": samples(24), "valset": samples(12, seed=1), "testset": samples(12, seed=2)}
    for some in sets.values():
        for number, sample in enumerate(some):
            assert isinstance(sample, dict)
            sample["x"] = np.concatenate([sample["x"], 0 * sample["x"], sample["forces"].astype("f4")], axis=1)
            sample["dataset_name"] = np.array([[number % branches]])
    return sets


def event(loss: float) -> bytes:
    """Return an entry of an event file."""
    return b"\x12\x17\n\x15\n\x0evalidate error\x15" + np.float32(loss).tobytes() + b"\n\x0atest error\x15\0\0\0\0"
