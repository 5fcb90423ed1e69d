"""Crystal orientations as features: the same for all symmetry-equivalent orientations."""

from itertools import combinations_with_replacement, permutations, product
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from hydragnn.base.errors import InputError

Symmetry = Literal["cubic", "hexagonal"]

_HALF = np.sqrt(3.0) / 2
_AXES: dict[str, list[tuple[ndarray, int]]] = {
    # which crystal axes, and the power in which the symmetry group cannot tell them apart
    "cubic": [(np.eye(3), 4)],
    "hexagonal": [(np.array([[1.0, 0, 0], [-0.5, _HALF, 0], [-0.5, -_HALF, 0]]), 6), (np.array([[0.0, 0, 1]]), 2)],
}


def rotation_matrices(orientations: Any, *, name: str = "orientations") -> Float[ndarray, "grains 3 3"]:
    """Return rotations from the crystal to the sample frame.

    ``orientations`` [grains, 3] are Bunge's Euler angles (rad; rotations about z, x', z''), [grains, 4] are unit
    quaternions (w, x, y, z). InputError for other shapes, NaN, and quaternions that are not of length 1 within 1e-3.

    >>> (rotation_matrices([[0.0, 0.0, 0.0]])[0] == np.eye(3)).all()
    np.True_
    """
    values = np.asarray(orientations, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] not in (3, 4):
        raise InputError(
            f"{name}: shape {values.shape} is neither Euler angles [grains, 3] nor quaternions [grains, 4]"
        )
    if not np.isfinite(values).all():
        raise InputError(f"{name}: grain {int((~np.isfinite(values)).any(axis=1).argmax())} is NaN or inf; remove it")
    return _from_euler(values) if values.shape[1] == 3 else _from_quaternions(values, name)


def _from_euler(angles: ndarray) -> ndarray:
    (c1, c, c2), (s1, s, s2) = np.cos(angles).T, np.sin(angles).T
    return np.stack(
        [
            np.stack([c1 * c2 - s1 * c * s2, -c1 * s2 - s1 * c * c2, s1 * s], axis=-1),
            np.stack([s1 * c2 + c1 * c * s2, -s1 * s2 + c1 * c * c2, -c1 * s], axis=-1),
            np.stack([s * s2, s * c2, c], axis=-1),
        ],
        axis=-2,
    )


def _from_quaternions(values: ndarray, name: str) -> ndarray:
    lengths = np.linalg.norm(values, axis=1)
    if (np.abs(lengths - 1) > 1e-3).any():
        worst = int(np.abs(lengths - 1).argmax())
        raise InputError(f"{name}: quaternion {worst} has length {lengths[worst]:.4g}; normalise the quaternions")
    w, x, y, z = (values / lengths[:, None]).T
    return np.stack(
        [
            np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], axis=-1),
            np.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], axis=-1),
            np.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], axis=-1),
        ],
        axis=-2,
    )


def orientation_features(orientations: Any, symmetry: Symmetry = "cubic") -> Float[ndarray, "grains features"]:
    """Return features equal exactly for equivalent orientations, and smooth.

    The components of the sum over equivalent crystal axes a of a (x) a (x) ...: the fourth power for cubic crystals (15
    numbers), the sixth in the basal plane and the second along c for hexagonal ones (28 + 6). Components are scaled
    so that distances between features do not depend on the sample frame.

    >>> orientation_features([[0.0, 0.0, 0.0]]).shape
    (1, 15)
    """
    if symmetry not in _AXES:
        raise InputError(f"symmetry {symmetry!r} is not known; use one of {', '.join(_AXES)}")
    rotations = rotation_matrices(orientations)
    return np.concatenate([_tensor_power(rotations @ axes.T, power) for axes, power in _AXES[symmetry]], axis=1)


def _tensor_power(vectors: Float[ndarray, "grains 3 axes"], power: int) -> Float[ndarray, "grains components"]:
    """Return components of the symmetric power of vectors, summed over axes."""
    columns = []
    for indices in combinations_with_replacement(range(3), power):
        multiplicity = len(set(permutations(indices)))
        columns.append(np.sqrt(multiplicity) * vectors[:, indices, :].prod(axis=1).sum(axis=-1))
    return np.stack(columns, axis=1)


def symmetry_rotations(symmetry: Symmetry) -> Float[ndarray, "operations 3 3"]:
    """The proper rotations of the crystal: 24 for cubic, 12 for hexagonal.

    >>> symmetry_rotations("cubic").shape
    (24, 3, 3)
    """
    if symmetry == "cubic":
        signed = [
            np.eye(3)[list(p)] * np.array(s)[:, None]
            for p in permutations(range(3))
            for s in product((1, -1), repeat=3)
        ]
        return np.stack([matrix for matrix in signed if np.linalg.det(matrix) > 0])
    if symmetry == "hexagonal":
        turns = [_from_euler(np.array([[k * np.pi / 3, 0.0, 0.0]]))[0] for k in range(6)]
        return np.stack([*turns, *(turn @ np.diag([1.0, -1, -1]) for turn in turns)])
    raise InputError(f"symmetry {symmetry!r} is not known; use one of {', '.join(_AXES)}")


def misorientation(
    orientations: Any, senders: Any, receivers: Any, symmetry: Symmetry = "cubic"
) -> Float[ndarray, " edges"]:
    """Return the smallest angle (rad) between two crystals' equivalent orientations.

    At most 62.8 degrees for cubic crystals (Mackenzie 1958, doi:10.1093/biomet/45.1-2.229).

    >>> float(misorientation([[0.0, 0.0, 0.0], [np.pi / 2, 0.0, 0.0]], [0], [1]).round(6)[0])
    0.0
    """
    rotations = rotation_matrices(orientations)
    sender, receiver = rotations[np.asarray(senders, dtype=np.int64)], rotations[np.asarray(receivers, dtype=np.int64)]
    between = np.swapaxes(receiver, 1, 2) @ sender
    traces = np.einsum("eij,oji->eo", between, symmetry_rotations(symmetry))
    best = traces.argmax(axis=1)
    nearest = between @ symmetry_rotations(symmetry)[best]
    # the angle from sine and cosine: arccos alone loses half the digits near zero
    skew = nearest - np.swapaxes(nearest, 1, 2)
    sine = np.sqrt((skew**2).sum(axis=(1, 2)) / 8)
    return np.arctan2(sine, (np.trace(nearest, axis1=1, axis2=2) - 1) / 2)
