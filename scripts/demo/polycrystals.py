"""Mesoscale: polycrystals of anisotropic grains, labelled by finite elements on the microstructure."""

from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu
from scipy.spatial import cKDTree

from hydragnn.graphs import Field, GraphBatch, from_labels, graph_from_arrays
from hydragnn.graphs.mesoscale import mesoscale_fields
from hydragnn.scripts.demo.writing import write_samples

PIXELS = 64
CONTRAST = 10.0  # conductivity along the crystal axis over that across it; their product is 1
GRAINS, SHARPNESS = (20, 40), (0.0, 1.0, 2.0)  # least and most grains; concentrations of their axes
FIELDS = (
    Field(name="orientation", on="node", shape=(2,)),  # cos and sin of twice the angle: the axis has no sign
    Field(name="facing", on="edge", shape=(2,)),  # the same of the direction that the shared boundary faces
    Field(name="conductivity", on="graph", shape=(3,), role="target"),  # xx, yy, xy of the effective tensor
    Field(name="flux", on="node", shape=(2,), role="target"),  # x and y, under a unit gradient along x
)


def make_polycrystals(out: Path, *, samples: int = 1000, seed: int = 0) -> None:
    """Make a store of polycrystals with conductivities and fluxes of grains.

    Grains conduct ten times better along their crystal axis than across it. The flux in a grain depends on what its
    neighbours let through. Lengths are in box lengths, conductivities in units of the geometric mean of a crystal.
    """
    attributes = {
        "source": "Voronoi polycrystals made by hydragnn.scripts.demo.polycrystals",
        "labels": f"finite elements on {PIXELS} x {PIXELS} pixels, periodic",
        "length_unit": "box",
        "contrast": CONTRAST,
        "seed": seed,
    }
    make = partial(labelled_polycrystal, seed=seed)
    write_samples(out, make, samples, title="polycrystals", attributes=attributes)


def labelled_polycrystal(number: int, seed: int) -> GraphBatch:
    """Return one microstructure as a graph of grains, solved on its image."""
    generator = np.random.default_rng([seed, number])
    labels = microstructure(generator)
    angles = texture(int(labels.max()) + 1, generator)
    flux = fluxes(labels, conductivities(angles))
    effective = flux.mean(axis=0)
    sizes = np.bincount(labels.ravel())
    mean = np.stack([np.bincount(labels.ravel(), weights=flux[:, axis, 0]) / sizes for axis in (0, 1)], axis=1)
    graph = from_labels(labels, 1 / PIXELS, True)
    normal = graph["area_vector"].numpy()
    facing = np.arctan2(normal[:, 1], normal[:, 0])
    return graph_from_arrays(
        graph.positions,
        graph.senders,
        graph.receivers,
        fields=[*(field for field in mesoscale_fields(2, source="labels") if field.name != "area_vector"), *FIELDS],
        nodes={"volume": graph["volume"], "orientation": _doubled(angles), "flux": mean},
        edges={"area": graph["area"], "facing": _doubled(facing)},
        graphs={"conductivity": [effective[0, 0], effective[1, 1], (effective[0, 1] + effective[1, 0]) / 2]},
        edge_shifts=graph.edge_shifts,
        cell=graph.cell[0],
        periodic=graph.periodic[0],
        name=f"polycrystal {number}",
    )


def microstructure(generator: np.random.Generator) -> Int[ndarray, "rows columns"]:
    """Return the grain numbers of the pixels of a periodic Voronoi structure."""
    seeds = generator.random((generator.integers(GRAINS[0], GRAINS[1] + 1), 2))
    centres = (np.moveaxis(np.indices((PIXELS, PIXELS)), 0, -1) + 0.5) / PIXELS
    nearest = cKDTree(seeds, boxsize=1.0).query(centres)[1]
    return np.unique(nearest, return_inverse=True)[1].reshape(PIXELS, PIXELS).astype(np.int64)


def texture(grains: int, generator: np.random.Generator) -> Float[ndarray, " grains"]:
    """Return angles of crystal axes (rad) with or without a preferred direction."""
    sharpness = generator.choice(SHARPNESS)
    return generator.vonmises(generator.uniform(-np.pi, np.pi), sharpness, grains) / 2


def conductivities(angles: Float[ndarray, " grains"]) -> Float[ndarray, "grains 2 2"]:
    """Conductivity tensors of crystals whose axis is at these angles to x."""
    axis = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    along, across = CONTRAST**0.5, CONTRAST**-0.5
    return across * np.eye(2) + (along - across) * axis[:, :, None] * axis[:, None, :]


def _doubled(angles: Float[ndarray, " items"]) -> Float[ndarray, "items 2"]:
    return np.stack([np.cos(2 * angles), np.sin(2 * angles)], axis=1)


def fluxes(
    labels: Int[ndarray, "rows columns"], conductivity: Float[ndarray, "grains 2 2"]
) -> Float[ndarray, "pixels 2 2"]:
    """Return mean fluxes under unit gradients: [pixel, component, direction of the gradient].

    ``labels`` holds the grain of every pixel of a periodic unit square with the same number of rows and columns;
    ``conductivity`` is symmetric and positive definite. Bilinear elements, one per pixel, periodic fluctuation; the mean of
    the result over pixels is the effective conductivity.
    """
    side = labels.shape[0]
    corners = _corners(side)
    slopes = _slopes() * side
    local = conductivity[labels.ravel()]
    unit = np.einsum("qia,qjb->ijab", slopes, slopes) / 4 / side**2
    stiffness = np.einsum("eij,ijab->eab", local, unit)
    rows, columns = np.repeat(corners, 4, axis=1).ravel(), np.tile(corners, (1, 4)).ravel()
    matrix = csc_matrix((stiffness.ravel(), (rows, columns)), shape=(side**2, side**2))
    mean_slope = slopes.mean(axis=0)
    load = np.zeros((side**2, 2))
    np.add.at(load, corners, -np.einsum("ia,eij->eaj", mean_slope, local) / side**2)
    # the fluctuation is known up to a constant: its first value is set to zero
    solver = splu(matrix[1:, 1:], permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    fluctuation = np.zeros((side**2, 2))
    fluctuation[1:] = solver.solve(load[1:])
    gradient = np.eye(2) + np.einsum("ia,eaj->eij", mean_slope, fluctuation[corners])
    return np.einsum("eij,ejk->eik", local, gradient)


def _corners(side: int) -> Int[ndarray, "pixels 4"]:
    row, column = np.indices((side, side))
    corners = [((row + r) % side) * side + (column + c) % side for r, c in ((0, 0), (1, 0), (1, 1), (0, 1))]
    return np.stack(corners, axis=-1).reshape(-1, 4)


def _slopes() -> Float[ndarray, "points 2 4"]:
    """Return shape functions' gradients at the Gauss points of a unit square."""
    sides = []
    for x in (-(3**-0.5), 3**-0.5):
        for y in (-(3**-0.5), 3**-0.5):
            along_x = np.array([-(1 - y), 1 - y, 1 + y, -(1 + y)]) / 2
            along_y = np.array([-(1 - x), -(1 + x), 1 + x, 1 - x]) / 2
            sides.append([along_x, along_y])
    return np.array(sides)
