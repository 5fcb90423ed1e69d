"""Edge and tensor heads on polycrystals labelled by the demo's solver, beside the trivial predictor and the model without neighbours.

    python tests/benchmarks/bench_heads.py flux        the flux through every shared face, under a unit gradient along x
    python tests/benchmarks/bench_heads.py tensor      the effective conductivity tensor of isotropic grains with two conductivities

One or two minutes of processor time each. ``flux`` compares with the same model whose layers pass no message (a face then knows its two
grains and itself); ``tensor`` with the same model without edges, and turns every test graph by an angle.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings, GraphSpec
from hydragnn.base.imports import allow_code
from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter, make_split, open_store
from hydragnn.graphs import Field, GraphBatch, from_labels, graph_from_arrays
from hydragnn.models import load_model
from hydragnn.runs import train
from hydragnn.scripts.demo.conduction import fluxes
from hydragnn.scripts.demo.polycrystals import PIXELS, conductivities, microstructure, texture
from hydragnn.training.evaluate import evaluate, trivial_metrics

FLUX = (
    Field(name="volume", on="node"),
    Field(name="orientation", on="node", shape=(2,)),
    Field(name="area", on="edge"),
    Field(name="face", on="edge", shape=(2,)),  # area vector, its axes fixed as the gradient's
    Field(name="flux", on="edge", role="target"),  # from sender to receiver
)
TENSOR = (
    Field(name="volume", on="node"),
    Field(name="conducts", on="node", classes=2, dtype="int64"),
    Field(name="area", on="edge"),
    Field(name="conductivity", on="graph", shape=(2, 2), parity="tensor", role="target"),
)
CONTRAST = 20.0


class SilentSettings(ArchitectureSettings):
    """Layers that pass no message."""

    kind: str = "bench_heads:Silent"


class Silent(Architecture):
    """Every node keeps to itself: a network per node in place of each layer."""

    kind = "silent"
    Settings = SilentSettings
    sees = frozenset({"edge_features"})  # for the head
    increments = True

    def __init__(self, settings: SilentSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.layers = nn.ModuleList(Alone(settings.hidden_dim) for _ in range(settings.num_layers))


class Alone(nn.Module):
    """A network on every node."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    def forward(self, states: Any, graph: Any) -> Any:
        """Increments of the states."""
        return {0: self.network(states[0])}


def face_fluxes(
    labels: Int[ndarray, "rows columns"], flux: Float[ndarray, "pixels 2 2"]
) -> Float[ndarray, "grains grains"]:
    """What flows from grain i to grain j through all the pixel faces that they share: minus what flows from j to i."""
    grains = int(labels.max()) + 1
    through = np.zeros((grains, grains))
    local = flux[..., 0].reshape(*labels.shape, 2)
    for axis in (0, 1):
        beyond = np.roll(labels, -1, axis)
        across = 0.5 * (local[..., axis] + np.roll(local[..., axis], -1, axis)) / labels.shape[0]
        np.add.at(through, (labels, beyond), across)
        np.add.at(through, (beyond, labels), -across)
    np.fill_diagonal(through, 0.0)
    return through


def flux_graph(generator: np.random.Generator) -> GraphBatch | None:
    """A polycrystal of anisotropic grains; None where two grains meet through two images, whose fluxes are not told apart."""
    labels = microstructure(generator)
    angles = texture(int(labels.max()) + 1, generator)
    graph = from_labels(labels, 1 / PIXELS, True)
    senders, receivers = graph.senders.numpy(), graph.receivers.numpy()
    if len(np.unique(np.stack([senders, receivers]), axis=1).T) < len(senders):
        return None
    through = face_fluxes(labels, fluxes(labels, conductivities(angles)))
    return graph_from_arrays(
        graph.positions,
        senders,
        receivers,
        fields=FLUX,
        nodes={
            "volume": graph["volume"].float(),
            "orientation": np.stack([np.cos(2 * angles), np.sin(2 * angles)], axis=1),
        },
        edges={"area": graph["area"].float(), "face": graph["area_vector"], "flux": through[senders, receivers]},
        edge_shifts=graph.edge_shifts,
        cell=graph.cell[0],
        periodic=graph.periodic[0],
    )


def tensor_graph(generator: np.random.Generator) -> GraphBatch | None:
    """A polycrystal of isotropic grains, half of which conduct well."""
    labels = microstructure(generator)
    well = generator.integers(0, 2, int(labels.max()) + 1)
    local = CONTRAST ** (well - 0.5)
    effective = fluxes(labels, local[:, None, None] * np.eye(2)).mean(axis=0)
    graph = from_labels(labels, 1 / PIXELS, True)
    return graph_from_arrays(
        graph.positions,
        graph.senders,
        graph.receivers,
        fields=TENSOR,
        nodes={"volume": graph["volume"].float(), "conducts": well},
        edges={"area": graph["area"].float()},
        graphs={"conductivity": 0.5 * (effective + effective.T)[None]},
        edge_shifts=graph.edge_shifts,
        cell=graph.cell[0],
        periodic=graph.periodic[0],
    )


def write(path: Path, what: str, samples: int) -> None:
    """A store of labelled polycrystals."""
    make, fields = (flux_graph, FLUX) if what == "flux" else (tensor_graph, TENSOR)
    with StoreWriter(path, fields, dim=2) as writer:
        for number in range(samples):
            graph = make(np.random.default_rng([7, number]))
            if graph is not None:
                writer.write(graph)


def config_of(
    store: Path, head: dict[str, Any], model: dict[str, Any], epochs: int, *, edges: bool = True
) -> RunConfig:
    """A run on the store."""
    return RunConfig.parse(
        {
            "data": {"store": str(store), "edges": edges},
            "split": {"train": 0.7, "valid": 0.1},
            "batch": {"max_graphs": 4},
            "model": {"hidden_dim": 32, **model},
            "heads": [head],
            "train": {"epochs": epochs, "learning_rate": 3e-3, "checkpoint_epochs": epochs},
        }
    )


GEOMETRIC = {"cutoff": 0.6, "num_radial": 8, "envelope": "none"}


def flux(folder: Path, epochs: int) -> None:
    """The model, the same without messages, and the trivial predictor."""
    head = {"kind": "scalar", "field": "flux", "symmetry": "antisymmetric"}
    models = {
        "egnn, 3 layers": {"kind": "egnn", "num_layers": 3, **GEOMETRIC},
        "no messages": {"kind": "bench_heads:Silent", "num_layers": 3},
    }
    runs = {name: config_of(folder / "store.h5", head, model, epochs) for name, model in models.items()}
    compare(folder, runs)


def tensor(folder: Path, epochs: int) -> None:
    """The model, the same without edges, and the trivial predictor; then the test part turned by an angle."""
    head = {"kind": "tensor", "field": "conductivity"}
    # lengths are a tenth of a box: Gaussians stay of order 1 there, which the products of PaiNN's states need
    model = {"kind": "painn", "num_layers": 2, **GEOMETRIC, "radial": "gaussian"}
    runs = {
        "painn, 2 layers": config_of(folder / "store.h5", head, model, epochs),
        "no edges": config_of(folder / "store.h5", head, model, epochs, edges=False),
    }
    compare(folder, runs)
    store = open_store(folder / "store.h5")
    part = make_split(store, runs["no edges"].split).test
    batch, trained = store.read(part), load_model(folder / "0" / "model", dtype=torch.float64)
    output, truth = trained.predict(batch)["conductivity"].mean, batch["conductivity"].double()  # type: ignore[attr-defined]
    actual, true = (np.stack([(t[:, 0, 0] - t[:, 1, 1]) / 2, t[:, 0, 1]]) for t in (output.numpy(), truth.numpy()))
    share = 1 - np.square(actual - true).sum() / np.square(true - true.mean(axis=1, keepdims=True)).sum()
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    turned = replace(batch, positions=batch.positions @ turn.T, edge_shifts=batch.edge_shifts @ turn.T)
    off = (trained.predict(turned)["conductivity"].mean - turn @ output @ turn.T).abs().max()  # type: ignore[attr-defined]
    print(f"r2 of the anisotropic part {share:.3f}; graphs turned by 0.7 rad: tensors off by at most {float(off):.1e}")


def compare(folder: Path, runs: dict[str, RunConfig]) -> None:
    """Errors on the test part."""
    store = open_store(folder / "store.h5")
    for number, (name, config) in enumerate(runs.items()):
        record = train(config, folder / str(number))
        assert record.status == "finished", record
        trained, split = load_model(folder / str(number) / "model"), make_split(store, config.split)
        if not number:
            trivial = trivial_metrics(store, split.train, split.test, trained.targets, trained.normalisation)
            show("trivial", trivial)
        show(name, evaluate(trained, store, split.test))


def show(name: str, metrics: dict[str, dict[str, float | None]]) -> None:
    """One line."""
    for field, values in metrics.items():
        print(
            f"{field:14s} {name:16s} mae {values['mae']:.4g}  rmse {values['rmse']:.4g}  r2 {values['r2']:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["flux", "tensor"])
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=60)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    allow_code(["bench_heads"])
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "store.h5", asked.what, asked.samples)
        {"flux": flux, "tensor": tensor}[asked.what](Path(name), asked.epochs)
