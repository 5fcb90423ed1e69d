"""Simple baselines of effective properties of grains, beside ridge on the bounds of Voigt and Reuss, and a network.

    python -m tests.benchmarks.bench_grains [--epochs 60] [--seeds 3] [anisotropic isotropic crystals]

Mean absolute errors over those of the mean of the training part, of held-out graphs and of graphs beyond training, mean over seeds, each
with a split of its own. Ten minutes of processor time for all sets, most of it for labels, and half a minute for each network (``--epochs``).
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, GraphBatch, from_labels, graph_from_arrays
from hydragnn.graphs.mesoscale import mesoscale_fields
from hydragnn.models import Target, load_model
from hydragnn.runs import train
from hydragnn.scripts.demo.conduction import fluxes
from hydragnn.scripts.demo.polycrystals import PIXELS, conductivities, microstructure, texture
from hydragnn.training.baselines import fitted_baselines

Array = NDArray[np.float64]
EFFECTIVE = Field(name="effective", on="graph", shape=(3,), role="target", dtype="float64")
BOUNDS = Field(name="bounds", on="graph", shape=(6,), role="auxiliary", dtype="float64")
PART = Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary")
COUNT, BEYOND, VOXELS = 360, 50, 16
COPPER = (168.4, 121.4, 75.4)
"""C11, C12 and C44 in GPa."""
REFERENCE = (90.0, 50.0)
"""Lame's constants of the medium of Green's operator, in GPa."""
PAIRS = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def graph_of(
    labels: NDArray[np.int64], spacing: float, grains: Array, faces: Callable[[Array], Array], values: Any
) -> GraphBatch:
    """Return the graph of an image; ``faces`` makes inputs of normals."""
    graph = from_labels(labels, spacing, True)
    normals = graph["area_vector"].double().numpy()
    facing = faces(normals / np.linalg.norm(normals, axis=1, keepdims=True).clip(1e-9))
    fields = [field for field in mesoscale_fields(labels.ndim, source="labels") if field.name != "area_vector"]
    effective, voigt, reuss = values
    return graph_from_arrays(
        graph.positions,
        graph.senders,
        graph.receivers,
        fields=[
            *fields,
            Field(name="grain", on="node", shape=grains.shape[1:]),
            Field(name="facing", on="edge", shape=facing.shape[1:]),
            EFFECTIVE,
            BOUNDS,
        ],
        nodes={"volume": graph["volume"], "grain": grains},
        edges={"area": graph["area"], "facing": facing},
        graphs={"effective": np.asarray(effective), "bounds": np.concatenate([voigt, reuss])},
        edge_shifts=graph.edge_shifts,
        cell=graph.cell[0],
        periodic=graph.periodic[0],
    )


def doubled(normals: Array) -> Array:
    """Return cosine and sine of twice the angles of directions in a plane."""
    return np.stack([normals[:, 0] ** 2 - normals[:, 1] ** 2, 2 * normals[:, 0] * normals[:, 1]], axis=1)


def conducting(labels: NDArray[np.int64], local: Array, grains: Array) -> GraphBatch:
    """Return a plane of grains, labelled by xx, yy and xy."""
    effective, shares = fluxes(labels, local).mean(axis=0), np.bincount(labels.ravel()) / labels.size
    voigt = np.einsum("g,gij->ij", shares, local)
    reuss = np.linalg.inv(np.einsum("g,gij->ij", shares, np.linalg.inv(local)))
    values = [[m[0, 0], m[1, 1], (m[0, 1] + m[1, 0]) / 2] for m in (effective, voigt, reuss)]
    return graph_of(labels, 1 / PIXELS, grains, doubled, values)


def anisotropic(random: np.random.Generator, grains: tuple[int, int], spread: Sequence[float]) -> GraphBatch:
    """Return grains with a texture as sharp as one of ``spread``."""
    labels = microstructure(random, grains)
    angles = texture(int(labels.max()) + 1, random, tuple(spread))
    return conducting(labels, conductivities(angles), np.stack([np.cos(2 * angles), np.sin(2 * angles)], axis=1))


def isotropic(random: np.random.Generator, grains: tuple[int, int], spread: Sequence[float]) -> GraphBatch:
    """Return grains; logarithms of conductivity deviate by one of ``spread``."""
    labels = microstructure(random, grains)
    width = random.choice(spread)
    logarithms = random.normal(random.normal(0, 0.2), width, int(labels.max()) + 1)
    return conducting(labels, np.exp(logarithms)[:, None, None] * np.eye(2), logarithms)


def crystals(random: np.random.Generator, grains: tuple[int, int], spread: Sequence[float]) -> GraphBatch:
    """Return grains of copper in a box, labelled by C1111, C2222, C3333.

    They are turned by one of ``spread`` (rad), or at random.
    """
    seeds = random.random((int(random.integers(grains[0], grains[1] + 1)), 3))
    centres = (np.moveaxis(np.indices((VOXELS,) * 3), 0, -1) + 0.5) / VOXELS
    labels = np.unique(cKDTree(seeds, boxsize=1.0).query(centres)[1], return_inverse=True)[1].reshape((VOXELS,) * 3)
    count, width = int(labels.max()) + 1, random.choice(spread)
    turned = Rotation.from_rotvec(random.normal(0, width, (count, 3)))
    start = Rotation.random(random_state=int(random.integers(2**31)))
    anyhow = Rotation.random(count, random_state=int(random.integers(2**31)))
    axes = (start * turned if width < np.pi else anyhow).as_matrix()
    local = np.einsum("gai,gbj,gck,gdl,ijkl->gabcd", axes, axes, axes, axes, cubic(*COPPER), optimize=True)
    shares = np.bincount(labels.ravel()) / labels.size
    voigt = mandel(np.einsum("g,gabcd->abcd", shares, local))
    reuss = np.linalg.inv(np.einsum("g,gij->ij", shares, [np.linalg.inv(mandel(one)) for one in local]))
    bounds = [np.diag(matrix)[:3] for matrix in (voigt, reuss)]
    return graph_of(labels, 1 / VOXELS, (axes**4).sum(axis=2), np.square, [stiffness(local[labels]), *bounds])


def cubic(c11: float, c12: float, c44: float) -> Array:
    """Return the stiffness of a crystal along its axes."""
    unit = np.eye(3)
    shear = np.einsum("ik,jl->ijkl", unit, unit) + np.einsum("il,jk->ijkl", unit, unit)
    result: Array = c12 * np.einsum("ij,kl->ijkl", unit, unit) + c44 * shear
    for axis in range(3):
        result[axis, axis, axis, axis] += c11 - c12 - 2 * c44
    return result


def mandel(tensor: Array) -> Array:
    """Return the matrix of a stiffness; its inverse is the compliance's."""
    factors = [1.0] * 3 + [2**0.5] * 3
    return np.array(
        [[tensor[(*one, *two)] * a * b for two, b in zip(PAIRS, factors)] for one, a in zip(PAIRS, factors)]
    )


def strain_of(stress: Array) -> Array:
    """Apply Green's operator to a periodic stress.

    Moulinec and Suquet 1998, doi:10.1016/S0045-7825(97)00218-1.
    """
    frequencies = np.fft.fftfreq(VOXELS) * VOXELS
    waves = np.stack(np.meshgrid(frequencies, frequencies, frequencies, indexing="ij"))
    kept = (np.abs(waves).max(axis=0) < VOXELS // 2) & (waves**2).sum(axis=0).astype(bool)
    normals = kept * waves / np.sqrt((waves**2).sum(axis=0)).clip(1)
    forces = np.einsum("ijxyz,jxyz->ixyz", np.fft.fftn(stress, axes=(2, 3, 4)), normals)
    first, second = REFERENCE
    along = np.einsum("ixyz,ixyz->xyz", forces, normals) * (first + second) / (second * (first + 2 * second))
    moves = forces / second - normals * along
    strain = (normals[:, None] * moves[None] + normals[None] * moves[:, None]) / 2
    real: Array = np.fft.ifftn(strain, axes=(2, 3, 4)).real
    return real


def stiffness(local: Array) -> list[float]:
    """Return C1111, C2222 and C3333 of a periodic box, by conjugate gradients."""
    flat = np.ascontiguousarray(np.moveaxis(local.reshape(-1, 9, 9), 0, -1))

    def stress(strain: Array) -> Array:
        return np.einsum("abv,bv->av", flat, strain.reshape(9, -1)).reshape(strain.shape)

    effective = []
    for axis in range(3):
        strain = np.zeros((3, 3, VOXELS, VOXELS, VOXELS))
        strain[axis, axis] = 1
        residual = -strain_of(stress(strain))
        direction, size = residual, (residual**2).sum()
        first = size
        while size > 1e-10 * first:
            image = strain_of(stress(direction))
            step = size / (direction * image).sum()
            strain, residual = strain + step * direction, residual - step * image
            direction, size = residual + (residual**2).sum() / size * direction, (residual**2).sum()
        effective.append(float(stress(strain)[axis, axis].mean()))
    return effective


Asked = tuple[tuple[int, int], tuple[float, ...]]
SETS: Mapping[str, tuple[Callable[..., GraphBatch], Asked, Mapping[str, Asked]]] = {
    "anisotropic": (anisotropic, ((12, 30), (0.0, 1.0, 2.0)), {"beyond": ((50, 80), (4.0,))}),
    "isotropic": (isotropic, ((12, 30), (0.4, 0.8)), {"beyond": ((50, 80), (1.2,))}),
    "crystals": (
        crystals,
        ((15, 30), (0.3, 0.6, 9.0)),
        {"finer": ((60, 90), (0.3, 0.6, 9.0)), "sharp": ((15, 30), (0.12,))},
    ),
}
INPUTS = ("volume", "grain", "area", "facing")


def predictors_of(store: MemoryStore, graphs: Sequence[int]) -> Iterator[tuple[str, Callable[[GraphBatch], Array]]]:
    """Yield predictors fitted on the graphs, with their names."""
    known, target = store.read(np.asarray(graphs)), Target(field=EFFECTIVE)
    mean = known["effective"].numpy().mean(axis=0)
    yield "trivial", lambda batch: np.broadcast_to(mean, (batch.num_graphs, 3))
    fitted = fitted_baselines(store, np.asarray(graphs), [target], INPUTS)
    for name in fitted.fitted["effective"]:
        predict = fitted.predictor(name, [target])
        yield name, lambda batch, predict=predict: predict(batch)["effective"].mean.numpy()  # type: ignore[misc]
    bounds = make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-6, 4, 11), alpha_per_target=True))
    bounds.fit(known["bounds"].numpy(), known["effective"].numpy())
    yield "ridge on bounds", lambda batch: bounds.predict(batch["bounds"].numpy())


def network(store: MemoryStore, part: NDArray[np.int64], epochs: int, seed: int) -> Callable[[GraphBatch], Array]:
    """Return the predictor of SchNet with default settings and attention."""
    graphs = [store.read([n]).with_fields({"part": np.array([part[n]])}, fields=[PART]) for n in range(len(store))]
    rates = {"learning_rate": 2e-3, "weight_decay": 1e-4, "schedule": "cosine", "checkpoint_epochs": epochs}
    config = RunConfig.parse(
        {
            "data": {"store": "in memory", "inputs": list(INPUTS)},
            "split": {"kind": "given", "field": "part"},
            "batch": {"max_graphs": 16},
            "model": {"kind": "schnet", "cutoff": 0.6, "num_radial": 8, "envelope": "none"},
            "heads": [{"kind": "scalar", "field": "effective", "pool": "attention"}],
            "train": {"epochs": epochs, "seed": seed, **rates},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", store=MemoryStore(graphs))
        model = load_model(Path(folder) / "run" / "model")
    return lambda batch: model.predict(batch)["effective"].mean.numpy()  # type: ignore[attr-defined, no-any-return]


def main() -> None:
    """Print a row per predictor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--epochs", type=int, default=0, help="of the network; 0: no network")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for number, name in enumerate(options.sets):
        make, usual, beyond = SETS[name]
        asked = {"held out": (usual, COUNT), **{kind: (one, BEYOND) for kind, one in beyond.items()}}
        stores = {
            kind: MemoryStore([make(np.random.default_rng([number, place, n]), *one) for n in range(count)])
            for place, (kind, (one, count)) in enumerate(asked.items())
        }
        known, errors = stores["held out"], {}
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(COUNT)
            tested = {kind: store.read(np.arange(BEYOND)) for kind, store in stores.items()}
            tested["held out"] = known.read(order[int(0.8 * COUNT) :])
            predictors = dict(predictors_of(known, order[: int(0.7 * COUNT)]))
            if options.epochs:
                part = np.zeros(COUNT, dtype=np.int64)
                part[order[int(0.7 * COUNT) :]], part[order[int(0.8 * COUNT) :]] = 1, 2
                predictors["SchNet"] = network(known, part, options.epochs, seed)
            for kind, batch in tested.items():
                label = batch["effective"].numpy()
                miss = {one: float(np.abs(predict(batch) - label).mean()) for one, predict in predictors.items()}
                for one, error in miss.items():
                    errors.setdefault((one, kind), []).append(error / miss["trivial"])
        for one in dict.fromkeys(one for one, _ in errors):
            print(f"{name:12s} {one:16s}", *(f"{kind} {np.mean(errors[one, kind]):.3f}" for kind in stores), flush=True)


if __name__ == "__main__":
    main()
