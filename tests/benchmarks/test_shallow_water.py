"""Shallow water keeps its mass, stays at rest, and finds the dam break."""

import numpy as np
import pytest
from scipy.optimize import brentq
from skfem import MeshTri

from tests.benchmarks.shallow_water import GRAVITY, Array, change, course, duals_of, state_after


def channel(count: int, width: float = 0.1) -> MeshTri:
    """Return an irregular mesh of a channel of 1 m."""
    across = max(2, round(count * width))
    mesh = MeshTri.init_tensor(np.linspace(0, 1, count + 1), np.linspace(0, width, across + 1))
    x, y = mesh.p.copy()
    inside = (x > 1e-9) & (x < 1 - 1e-9) & (y > 1e-9) & (y < width - 1e-9)
    moved = mesh.p + inside * np.random.default_rng(0).uniform(-0.25, 0.25, mesh.p.shape) / count
    return MeshTri(moved, mesh.t)


def stoker(x: Array, left: float, right: float, seconds: float) -> Array:
    """Return depths after a dam broke at x = 0 (Stoker 1957, section 10.8)."""

    def speed(middle: float) -> float:
        return 2 * (np.sqrt(GRAVITY * left) - np.sqrt(GRAVITY * middle))

    def excess(middle: float) -> float:
        shock = np.sqrt(GRAVITY * (middle + right) / (2 * middle * right))
        return float(speed(middle) - (middle - right) * shock)

    middle = brentq(excess, right * (1 + 1e-12), left)
    front = middle * speed(middle) / (middle - right)
    sound, away = np.sqrt(GRAVITY * left), x / seconds
    fan = (2 * sound - away) ** 2 / (9 * GRAVITY)
    depths = np.where(away < speed(middle) - np.sqrt(GRAVITY * middle), fan, middle)
    return np.where(away < -sound, left, np.where(away > front, right, depths))


def test_duals_are_closed_and_fill_the_mesh() -> None:
    mesh = channel(20)
    duals = duals_of(mesh)
    total = duals.walls.copy()
    for end, sign in zip(duals.ends, (1, -1)):
        np.add.at(total, end, sign * duals.normals)
    np.testing.assert_allclose(total, 0, atol=1e-15)
    np.testing.assert_allclose(duals.areas.sum(), 0.1, rtol=1e-12)


def test_a_lake_over_an_uneven_bed_stays_at_rest() -> None:
    mesh = channel(20)
    bed = 0.05 * np.sin(7 * mesh.p[0]) + mesh.p[1]  # with a dry shore
    state = np.column_stack([np.maximum(0.05 - bed, 0), np.zeros((len(bed), 2))])
    assert (state[:, 0] == 0).any() and (state[:, 0] > 0.05).any()
    np.testing.assert_allclose(change(state, bed, duals_of(mesh)), 0, atol=1e-12)


def test_mass_is_kept_between_walls_while_water_moves() -> None:
    mesh, random = channel(20), np.random.default_rng(1)
    duals, bed = duals_of(mesh), 0.02 * random.normal(size=mesh.p.shape[1])
    state = np.column_stack([0.1 + 0.05 * (mesh.p[0] < 0.5) - bed, np.zeros((len(bed), 2))])
    later = state_after(state, bed, duals, 0.3)
    assert np.abs(later[:, 0] - state[:, 0]).max() > 0.02
    np.testing.assert_allclose(duals.areas @ later[:, 0], duals.areas @ state[:, 0], rtol=1e-13)


def test_a_dam_break_converges_to_stokers_solution() -> None:
    errors = []
    for count in (25, 50, 100):
        mesh = channel(count, width=0.04)
        duals, x = duals_of(mesh), mesh.p[0] - 0.5
        state = np.column_stack([np.where(x < 0, 0.2, 0.05), np.zeros((len(x), 2))])
        later = state_after(state, np.zeros(len(x)), duals, 0.2)
        errors.append(duals.areas @ np.abs(later[:, 0] - stoker(x, 0.2, 0.05, 0.2)) / duals.areas.sum())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 0.6).all(), orders  # 1 where it is smooth, less at the shock (LeVeque 2002, section 11.13)


def test_a_standing_wave_has_the_frequency_of_linear_waves() -> None:
    mesh = channel(50, width=0.04)
    duals, still = duals_of(mesh), 0.1
    shape = np.cos(np.pi * mesh.p[0])
    state = np.column_stack([still + 1e-4 * shape, np.zeros((len(shape), 2))])
    period = 2 / np.sqrt(GRAVITY * still)
    quarter = state_after(state, np.full(len(shape), -still), duals, period / 4)[:, 0] - still
    half = state_after(state, np.full(len(shape), -still), duals, period / 2)[:, 0] - still
    amplitude = [2 * (duals.areas * shape) @ one / duals.areas.sum() / 1e-4 for one in (quarter, half)]
    assert amplitude[0] == pytest.approx(0, abs=0.02)
    assert -1 < amplitude[1] < -0.7  # first order damps


def test_a_run_is_the_same_again_and_another_is_not() -> None:
    for one, same in zip(course(3, 2)[1:], course(3, 2)[1:]):
        assert np.array_equal(one, same)
    assert course(3, 1)[1].std() != course(4, 1)[1].std()
