"""Crystal orientations: parity with scipy's rotations; symmetry-equivalent orientations are one orientation."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hydragnn.base.errors import InputError
from hydragnn.graphs import misorientation, orientation_features, rotation_matrices, symmetry_rotations

GROUPS = {"cubic": "O", "hexagonal": "D6"}


def eulers(count: int, seed: int = 0) -> np.ndarray:
    return Rotation.random(count, rng=np.random.default_rng(seed)).as_euler("ZXZ")


def test_euler_angles_turn_about_z_then_x_then_z() -> None:
    angles = eulers(50)
    np.testing.assert_allclose(rotation_matrices(angles), Rotation.from_euler("ZXZ", angles).as_matrix(), atol=1e-12)


def test_quaternions_and_euler_angles_name_the_same_rotation() -> None:
    rotation = Rotation.random(50, rng=np.random.default_rng(1))
    np.testing.assert_allclose(
        rotation_matrices(rotation.as_quat(scalar_first=True)), rotation_matrices(rotation.as_euler("ZXZ")), atol=1e-12
    )


@pytest.mark.parametrize("symmetry", GROUPS)
def test_the_symmetry_group_is_that_of_scipy(symmetry: str) -> None:
    ours = symmetry_rotations(symmetry).reshape(-1, 9).round(9) + 0.0
    theirs = Rotation.create_group(GROUPS[symmetry]).as_matrix().reshape(-1, 9).round(9) + 0.0
    assert {tuple(row) for row in ours} == {tuple(row) for row in theirs}


@pytest.mark.parametrize("symmetry", GROUPS)
def test_misorientation_is_the_smallest_over_the_group(symmetry: str) -> None:
    angles = eulers(30)
    rotation = Rotation.from_euler("ZXZ", angles)
    group = Rotation.create_group(GROUPS[symmetry])
    senders, receivers = np.arange(15), np.arange(15, 30)
    between = rotation[receivers].inv() * rotation[senders]
    expected = [min((one * operation).magnitude() for operation in group) for one in between]
    np.testing.assert_allclose(misorientation(angles, senders, receivers, symmetry), expected, atol=1e-9)


def test_misorientation_is_symmetric_and_blind_to_equivalent_choices() -> None:
    rotation = Rotation.random(40, rng=np.random.default_rng(4))
    turned = rotation * Rotation.create_group("O")[np.arange(40) % 24]
    senders, receivers = np.arange(20), np.arange(20, 40)
    first = misorientation(rotation.as_euler("ZXZ"), senders, receivers)
    np.testing.assert_allclose(misorientation(rotation.as_euler("ZXZ"), receivers, senders), first, atol=1e-9)
    np.testing.assert_allclose(misorientation(turned.as_quat(scalar_first=True), senders, receivers), first, atol=1e-9)
    assert first.max() < np.deg2rad(62.81)


def test_small_misorientations_keep_their_digits() -> None:
    tiny = 1e-7
    angle = misorientation([[0.3, 0.2, 0.1], [0.3 + tiny, 0.2, 0.1]], [1], [0])
    assert angle[0] == pytest.approx(tiny, rel=1e-6)


@pytest.mark.parametrize("symmetry", GROUPS)
def test_features_are_equal_for_equivalent_orientations_and_differ_for_others(symmetry: str) -> None:
    rotation = Rotation.random(20, rng=np.random.default_rng(2))
    features = orientation_features(rotation.as_quat(scalar_first=True), symmetry)
    for operation in Rotation.create_group(GROUPS[symmetry]):
        turned = (rotation * operation).as_quat(scalar_first=True)
        np.testing.assert_allclose(orientation_features(turned, symmetry), features, atol=1e-9)
    distance = np.linalg.norm(features[:, None] - features[None], axis=-1)
    assert distance[~np.eye(20, dtype=bool)].min() > 1e-2


@pytest.mark.parametrize("symmetry", GROUPS)
def test_distances_between_features_do_not_depend_on_the_sample_frame(symmetry: str) -> None:
    rotation = Rotation.random(10, rng=np.random.default_rng(3))
    frame = Rotation.from_euler("xyz", [0.3, 1.2, -0.7])
    first, second = (orientation_features(r.as_quat(scalar_first=True), symmetry) for r in (rotation, frame * rotation))
    np.testing.assert_allclose(first @ first.T, second @ second.T, atol=1e-9)


WRONG = {
    "five numbers": (lambda: rotation_matrices(np.ones((2, 5))), "neither Euler angles"),
    "NaN": (lambda: rotation_matrices([[0.0, np.nan, 0.0]]), "grain 0 is NaN"),
    "long quaternion": (lambda: rotation_matrices([[1.0, 1.0, 0.0, 0.0]]), "quaternion 0 has length 1.414"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        make()
