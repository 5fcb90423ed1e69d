"""Shallow water on a rotating sphere by spherical harmonics: Williamson's cases 2 and 5, and runs like them.

Vorticity z, divergence d and depth h (Williamson et al. 1992, doi:10.1016/S0021-9991(05)80016-6):
z_t = -div((z + f) u), d_t = curl((z + f) u) - lap(g (h + b) + u.u / 2), h_t = -div(h u), by transforms on a Gaussian grid and
Runge-Kutta's fourth order. A hyperdiffusion of lap^2 holds what mountains excite at the end of the spectrum.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RADIUS, TURNS, GRAVITY = 6.37122e6, 7.292e-5, 9.80616  # m, 1/s, m/s^2
HOUR, STEPS_PER_HOUR = 3600.0, 4
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Run:
    """Flow at the beginning, its axis, and what stands in its way."""

    speed: float
    """Largest speed of the flow, m/s."""
    depth: float
    """Mean height at the equator, m."""
    angle: float = 0.0
    """Angle between the flow's axis and the grid's; Coriolis's parameter turns along."""
    mountain: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Height in m, latitude and longitude in radians."""
    bump: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    """Height in m of water added at a latitude and longitude, and its width in radians."""


CASE_2 = Run(2 * np.pi * RADIUS / (12 * 86400), 2.94e4 / GRAVITY, 0.05)
CASE_5 = Run(20.0, 5960.0, 0.0, (2000.0, np.pi / 6, 3 * np.pi / 2))


def random_run(number: int) -> Run:
    """Return a run like case 2 with a bump (even numbers) or like case 5 (odd ones)."""
    random = np.random.default_rng([52, number])
    where = (np.arcsin(random.uniform(-0.9, 0.9)), random.uniform(0, 2 * np.pi))
    if number % 2:
        return Run(random.uniform(15, 25), 5960.0, 0.0, (random.uniform(1000, 2500), *where))
    height = random.uniform(150, 400) * random.choice([-1, 1])
    return Run(random.uniform(25, 45), 3000.0, random.uniform(0, 1.5), (0.0, 0.0, 0.0), (height, *where, 0.35))


class Harmonics:
    """Transforms between a grid and spherical harmonics, of degree ``top`` at most."""

    def __init__(self, top: int) -> None:
        self.top, rows = top, int(np.ceil((3 * top + 1) / 2 / 16)) * 16
        self.columns = 2 * rows
        self.sines, self.shares = np.polynomial.legendre.leggauss(rows)
        self.cosines = np.sqrt(1 - self.sines**2)
        self.plain, self.steep = legendre(self.sines, top)
        self.orders = np.arange(top + 1)
        degrees = np.arange(top + 1.0)
        self.laplacian = -degrees * (degrees + 1) / RADIUS**2
        self.inverse = np.divide(1.0, self.laplacian, out=np.zeros(top + 1), where=degrees > 0)

    def spectrum(self, grid: Array, functions: Array | None = None) -> Array:
        """Return coefficients ``[orders, degrees, runs]`` of values ``[runs, rows, columns]``."""
        waves = np.fft.rfft(grid, axis=-1)[..., : self.top + 1] / self.columns  # [runs, rows, orders]
        weighted = np.moveaxis(waves * self.shares[:, None], 0, 2).transpose(1, 0, 2)  # [orders, rows, runs]
        return (self.plain if functions is None else functions).transpose(0, 2, 1) @ weighted

    def grid(self, spectrum: Array, functions: Array | None = None, columns: int = 0) -> Array:
        """Return values ``[runs, rows, columns]``."""
        columns = columns or self.columns
        waves = (self.plain if functions is None else functions) @ spectrum  # [orders, rows, runs]
        return np.fft.irfft(waves.transpose(2, 1, 0) * columns, columns, axis=-1)

    def wind(self, vorticity: Array, divergence: Array, functions: Any = None, columns: int = 0) -> tuple[Array, Array]:
        """Return eastward and northward speeds times the cosine of latitude."""
        plain, steep = functions or (self.plain, self.steep)
        psi, chi = (one * self.inverse[:, None] / RADIUS for one in (vorticity, divergence))
        turn = 1j * self.orders[:, None, None]
        parts = ((turn * chi, -psi), (turn * psi, chi))
        east, north = (self.grid(a, plain, columns) + self.grid(b, steep, columns) for a, b in parts)
        return east, north

    def divergence(self, east: Array, north: Array) -> Array:
        """Return coefficients of div and, with (north, -east), of curl; fluxes are times the cosine."""
        scale = RADIUS * self.cosines[:, None] ** 2
        turn = 1j * self.orders[:, None, None]
        return turn * self.spectrum(east / scale) - self.spectrum(north / scale, self.steep)

    @cached_property
    def kept(self) -> Array:
        """Return 1 for degrees from the order on."""
        return (np.arange(self.top + 1) >= self.orders[:, None])[:, :, None].astype(float)


def legendre(sines: Array, top: int) -> tuple[Array, Array]:
    """Return normalised functions ``[orders, points, degrees]`` and (1 - x^2) times their derivatives."""
    cosines, count = np.sqrt(1 - sines**2), top + 2
    values = np.zeros((top + 1, len(sines), count))
    e = lambda n, m: np.sqrt((n * n - m * m) / (4.0 * n * n - 1))  # noqa: E731
    diagonal = np.full(len(sines), np.sqrt(0.5))
    for m in range(top + 1):
        values[m, :, m] = diagonal
        if m + 1 < count:
            values[m, :, m + 1] = np.sqrt(2 * m + 3.0) * sines * diagonal
        for n in range(m + 2, count):
            values[m, :, n] = (sines * values[m, :, n - 1] - e(n - 1, m) * values[m, :, n - 2]) / e(n, m)
        diagonal = diagonal * cosines * np.sqrt((2 * m + 3.0) / (2 * m + 2))
    steep = np.zeros((top + 1, len(sines), top + 1))
    for m in range(top + 1):
        for n in range(m, top + 1):
            below = (n + 1) * e(n, m) * values[m, :, n - 1] if n > m else 0.0
            steep[m, :, n] = below - n * e(n + 1, m) * values[m, :, n + 1]
    return values[:, :, :-1], steep


class Water:
    """Solver of some runs at once; ``state`` is ``[3, orders, degrees, runs]``."""

    def __init__(self, runs: list[Run], top: int = 42, diffusion: float = 1.0e16) -> None:
        self.harmonics, self.diffusion = Harmonics(top), diffusion  # m^4/s
        north = np.arcsin(self.harmonics.sines)[:, None]
        east = (np.arange(self.harmonics.columns) * 2 * np.pi / self.harmonics.columns)[None]
        parts = [self.beginning(run, north, east) for run in runs]
        self.coriolis, self.bed, vorticity, depth = (np.stack(one) for one in zip(*parts))
        self.bed_spectrum = self.harmonics.spectrum(self.bed) * self.harmonics.kept
        self.bed = self.harmonics.grid(self.bed_spectrum)
        spectra = [self.harmonics.spectrum(one) * self.harmonics.kept for one in (vorticity, depth)]
        self.state = np.stack([spectra[0], 0 * spectra[0], spectra[1]])

    @staticmethod
    def beginning(run: Run, north: Array, east: Array) -> tuple[Array, Array, Array, Array]:
        """Return Coriolis's parameter, bed, vorticity and depth."""
        upright = np.sin(north) * np.cos(run.angle) - np.cos(east) * np.cos(north) * np.sin(run.angle)
        surface = run.depth - (RADIUS * TURNS * run.speed + run.speed**2 / 2) * upright**2 / GRAVITY
        height, at, along = run.mountain
        turn = (east - along + np.pi) % (2 * np.pi) - np.pi
        away = np.minimum(np.sqrt((north - at) ** 2 + turn**2), np.pi / 9)
        bed = height * (1 - away / (np.pi / 9))
        height, at, along, width = run.bump
        near = np.sin(at) * np.sin(north) + np.cos(at) * np.cos(north) * np.cos(east - along)
        surface = surface + height * np.exp((near - 1) / width**2)
        return 2 * TURNS * upright, bed, 2 * run.speed / RADIUS * upright, surface - bed

    def change(self, state: Array) -> Array:
        """Return the derivative in time."""
        own = self.harmonics
        vorticity, depth = own.grid(state[0]), own.grid(state[2])
        east, north = own.wind(state[0], state[1])
        total = vorticity + self.coriolis
        energy = (east**2 + north**2) / (2 * own.cosines[:, None] ** 2) + GRAVITY * (depth + self.bed)
        turning = own.divergence(total * north, -total * east)
        squeeze = turning - own.laplacian[:, None] * own.spectrum(energy)
        both = [-own.divergence(total * east, total * north), squeeze, -own.divergence(depth * east, depth * north)]
        return np.stack(both) * own.kept

    def step(self, seconds: float) -> None:
        """Take a step."""
        first = self.change(self.state)
        second = self.change(self.state + seconds / 2 * first)
        third = self.change(self.state + seconds / 2 * second)
        fourth = self.change(self.state + seconds * third)
        self.state = self.state + seconds / 6 * (first + 2 * second + 2 * third + fourth)
        damping = 1 / (1 + seconds * self.diffusion * self.harmonics.laplacian**2)
        self.state = self.state * damping[:, None]

    def frame(self, latitudes: Array, columns: int) -> dict[str, Array]:
        """Return surface height and speeds ``[runs, latitudes, columns]`` at degrees north."""
        sines = np.sin(np.radians(latitudes))
        functions = legendre(sines, self.harmonics.top)
        east, north = self.harmonics.wind(self.state[0], self.state[1], functions, columns)
        surface = self.harmonics.grid(self.state[2] + self.bed_spectrum, functions[0], columns)
        cosines = np.sqrt(1 - sines**2)[:, None]
        return {"height": surface, "u": east / cosines, "v": north / cosines}


def write_course(
    runs: list[Run], paths: list[Path], frames: int, hours: int = 3, rows: int = 64, top: int = 31
) -> None:
    """Write a netCDF file per run with fields every few ``hours``, as CF asks for."""
    import xarray

    water = Water(runs, top)
    north = (np.arange(rows) + 0.5) * 180 / rows - 90
    east = np.arange(2 * rows) * 180 / rows
    states = [water.frame(north, 2 * rows)]
    for _ in range(frames - 1):
        for _ in range(hours * STEPS_PER_HOUR):
            water.step(HOUR / STEPS_PER_HOUR)
        states.append(water.frame(north, 2 * rows))
    calm = [Run(run.speed, run.depth, run.angle) for run in runs]
    steady = Water(calm, top).frame(north, 2 * rows)
    functions = legendre(np.sin(np.radians(north)), top)
    bed = water.harmonics.grid(water.bed_spectrum, functions[0], 2 * rows)
    for number, (run, path) in enumerate(zip(runs, paths)):
        axes = {
            "time": ("time", hours * np.arange(frames), {"units": "hours since 2026-01-01", "standard_name": "time"}),
            "lat": ("lat", north, {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": ("lon", east, {"units": "degrees_east", "standard_name": "longitude"}),
        }
        place, units = ("time", "lat", "lon"), {"height": "m", "u": "m s**-1", "v": "m s**-1"}
        values: dict[str, Any] = {
            name: (place, np.stack([one[name][number] for one in states]).astype(np.float32), {"units": unit})
            for name, unit in units.items()
        }
        north_, east_ = np.radians(north)[:, None], np.radians(east)[None]
        coriolis = Water.beginning(run, north_, east_)[0]
        area = np.broadcast_to(np.cos(np.radians(north))[:, None], bed[number].shape)
        mean = np.average(values["height"][1][0], weights=area)
        for name, unit in units.items():
            own = steady[name][number]
            values[f"departed_{name}"] = (place, (values[name][1] - own).astype(np.float32), {"units": unit})
            values[f"steady_{name}"] = (place[1:], own - (mean if name == "height" else 0), {"units": unit})
        values["mean_height"] = (place[1:], np.full(area.shape, mean), {"units": "m"})
        values["orography"] = (place[1:], bed[number].astype(np.float32), {"units": "m"})
        values["coriolis"] = (place[1:], coriolis.astype(np.float32), {"units": "s**-1"})
        xarray.Dataset(values, axes, {"Conventions": "CF-1.11"}).to_netcdf(path, engine="h5netcdf")
