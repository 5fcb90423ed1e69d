"""Fields on a sphere: files of netCDF and zarr, graphs of their grids, weighted scores, and a solver of shallow water."""

import itertools
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.datasets.sources.base import made
from hydragnn.datasets.sources.registry import source_named
from hydragnn.ensemble import rollout
from hydragnn.ensemble.estimates.metrics import volume_scores
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays
from hydragnn.graphs.sphere import grid_mesh, points_at, refined_icosahedron, vectors_of

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from tests.benchmarks.bench_sphere import symmetries, with_coefficients  # noqa: E402
from tests.benchmarks.sphere_water import CASE_2, GRAVITY, Run, Water  # noqa: E402

NORTH, EAST = np.arange(-80.0, 81, 20), np.arange(0.0, 360, 30)
TEMPERATURE = {"name": "t", "on": "node", "unit": "K"}
LATER = {**TEMPERATURE, "name": "next", "key": "t", "step": 1, "role": "target"}


def data(hours: Any = (0, 6, 12), north: Any = NORTH, east: Any = EAST, **changes: Any) -> Any:
    """Return a data set whose temperature is z + 100 times the hour of the frame."""
    hours = np.asarray(hours)
    values = np.sin(np.radians(north))[None, :, None] + 100.0 * hours[:, None, None] + 0 * np.asarray(east)
    units = {"units": "hours since 2001-01-01"}
    axes = {
        "time": ("time", hours, units | changes.pop("time", {})),
        "lat": ("lat", north, {"units": "degrees_north"} | changes.pop("lat", {})),
        "lon": ("lon", east, {"units": "degrees_east", "standard_name": "longitude"} | changes.pop("lon", {})),
    }
    own = xarray.Dataset({"t": (("time", "lat", "lon"), values, {"units": "K"})}, axes)
    return own.assign(**changes)


def graphs(files: Any, **table: Any) -> list[GraphBatch]:
    """Return the graphs of files."""
    files = [str(one) for one in ([files] if isinstance(files, Path) else files)]
    table = {"kind": "climate", "files": files, "fields": [TEMPERATURE, LATER], **table}
    build = source_named("climate", "test").parse(table)
    build.check_fields("test")
    return [*made(build.makers())]


def write(one: Any, path: Path, **more: Any) -> Path:
    """Write a data set as netCDF or zarr."""
    if path.suffix == ".zarr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.to_zarr(path, **more)
    else:
        one.to_netcdf(path, engine=more.pop("engine", "h5netcdf"), **more)
    return path


FILL = {"dtype": "i2", "_FillValue": -32768}
VALID: list[tuple[dict[str, Any], dict[str, Any], float]] = [
    ({"valid_range": [-1.0, 1200.0]}, {}, 1300),
    ({"valid_max": 1200.0}, {"dtype": "f4"}, 1300),
    ({"valid_range": np.array([-20, 12000], "i2")}, {**FILL, "scale_factor": 0.1}, 1300),
    ({"valid_min": np.int16(-12000)}, {**FILL, "scale_factor": -0.1}, 1300),
    ({"valid_range": [-1.0, 1200.0]}, {**FILL, "scale_factor": 0.1}, 1300),  # floats are not packed
    ({}, {"dtype": "i2", "scale_factor": 2.0}, 2 * -32767.0),  # where nothing was written
]


@pytest.mark.parametrize(("attributes", "encoding", "odd"), VALID)
def test_values_that_the_file_calls_invalid_lack(
    attributes: dict[str, Any], encoding: dict[str, Any], odd: float, tmp_path: Path
) -> None:
    one, later = data(), {**LATER, "optional": True}
    one["t"].values[2] = np.where(np.arange(12) == 4, odd, 1200)
    one.t.attrs |= attributes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # packed without a fill value
        path = write(one, tmp_path / "a.nc", encoding={"t": encoding})
    _, graph = graphs(path, fields=[TEMPERATURE, later])
    assert graph["next"].isnan().sum() == 9 and float(graph["next"].nan_to_num(1200).min()) == pytest.approx(1200)


PACKED = {"dtype": "int16", "scale_factor": 0.05, "add_offset": 700.0, "_FillValue": -9}
NETCDF = [{}, {"engine": "scipy"}, {"encoding": {"t": PACKED}}, {"encoding": {"time": {"calendar": "noleap"}}}]
FORMS = [("a.nc", one) for one in NETCDF]
FORMS += [("a.zarr", {"zarr_format": v, "consolidated": one}) for v in (2, 3) for one in (True, False)]


def test_a_missing_value_that_no_attribute_names_lacks(tmp_path: Path) -> None:
    one = data()
    one["t"].values[2, 3, 4] = -999
    later = {**LATER, "missing_value": -999, "optional": True}
    _, graph = graphs(write(one, tmp_path / "a.nc"), fields=[TEMPERATURE, later], refinement=1)
    known = graph["next"][~graph["next"].isnan()]
    assert 0 < len(graph["next"]) - len(known) < 8 and float(known.min()) > 1198


@pytest.mark.parametrize(("name", "more"), FORMS)
def test_frames_are_pairs_of_states(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    one = data()
    if "calendar" in str(more):
        one["time"] = ("time", one.time.values, {"units": "hours since 2001-01-01", "calendar": "noleap"})
        more = {}
    lead = {"name": "lead_time", "on": "graph", "unit": "h", "step": 1}
    first, second = graphs(write(one, tmp_path / name, **more), fields=[TEMPERATURE, LATER, lead])
    z = first.positions[:, 2].double().numpy()
    np.testing.assert_allclose(first["t"], z, atol=0.03)
    np.testing.assert_allclose(second["next"], z + 1200, atol=0.03)
    assert (first["lead_time"].item(), first.texts["run"]) == (6.0, [name])


SAME = [
    data(north=NORTH[::-1]),
    data(east=(EAST + 180) % 360 - 180),
    data(east=np.append(EAST, 360.0)),
    data(east=np.random.default_rng(0).permutation(EAST)),
    data(lat={"units": "degreesN"}, lon={"units": "degreeE"}),
    data().transpose("lon", "time", "lat"),
    data().rename(lat="y", lon="x"),
    data().expand_dims(z=[500.0, 850.0], axis=1),
    data().drop_vars("lat").assign_coords(lat=("lat", NORTH, {"standard_name": "latitude"})),
]


@pytest.mark.parametrize("one", SAME)
def test_order_and_names_of_axes_do_not_matter(one: Any, tmp_path: Path) -> None:
    expected, other = (
        graphs(write(own, tmp_path / name), level=level)[0]
        for own, name, level in ((data(), "a.nc", None), (one, "b.nc", 500.0 if "z" in one.dims else None))
    )
    assert expected.num_edges == other.num_edges
    rows = [np.lexsort(np.round(g.positions.numpy(), 4).T) for g in (expected, other)]
    for name in ("positions", "t", "next"):
        values = [np.asarray(getattr(g, name) if name == "positions" else g[name]) for g in (expected, other)]
        np.testing.assert_allclose(values[0][rows[0]], values[1][rows[1]], atol=1e-5)


def test_files_are_joined_in_time_and_by_variables_and_gaps_are_left_out(tmp_path: Path, capsys: Any) -> None:
    static = xarray.Dataset({"mask": data().t[0].drop_vars("time") > 0}).astype(float)
    files = [write(data(hours), tmp_path / f"{name}.nc") for name, hours in (("1", (0, 6)), ("2", range(12, 60, 6)))]
    files += [write(data(range(66, 126, 6)), tmp_path / "3.nc"), write(static, tmp_path / "mask.nc")]
    some = graphs(files, fields=[TEMPERATURE, LATER, {"name": "mask", "on": "node"}])
    assert [float(one["next"].mean() - one["t"].mean()) for one in some] == pytest.approx([600.0] * 18, abs=0.1)
    assert len(graphs(write(data((0, 1 / 3, 2 / 3)), tmp_path / "minutes.nc"))) == 2
    assert "frames are left out" in capsys.readouterr().err and set(some[0]["mask"].tolist()) == {0.0, 1.0}


def header(folder: Path, **keys: Any) -> Path:
    """Write a zarr whose header has other keys."""
    path = write(data(), folder / "a.zarr", zarr_format=2, consolidated=False)
    file = path / "t" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    return path


def cut_off(folder: Path) -> Path:
    """Write a zarr with half a chunk."""
    path = write(data(), folder / "a.zarr", zarr_format=2, consolidated=False)
    chunk = max((path / "t").glob("0*"))
    chunk.write_bytes(chunk.read_bytes()[:9])
    return path


def text(folder: Path, content: str) -> Path:
    path = folder / "a.nc"
    path.write_text(content)
    return path


HUGE, OBJECTS = [3, 90000, 90000], {"filters": [{"id": "pickle"}], "dtype": "|O"}
missing = data()
missing["t"][1, 2, 3] = np.nan
curvilinear = data().rename(lat="y", lon="x").drop_vars(["x", "y"])
curvilinear = curvilinear.assign_coords(lat=(("y", "x"), np.add.outer(NORTH, 0 * EAST), {"units": "degrees_north"}))
two = data().assign(v=(("time", "n", "lon"), np.zeros((3, 4, 12)))).assign_coords(n=("n", [1.0, 2, 3, 4]))
two.n.attrs["units"] = "degrees_north"
unwritten, winds = data(), {"u": data().t.assign_attrs(units="m s-1"), "v": data().t.assign_attrs(units="m s**-1")}
unwritten["t"][1, 2, 3] = 9.969209968386869e36
WIND = {"name": "wind", "on": "node", "shape": [3], "unit": "m/s", "key": ["u", "v"]}


def grouped(folder: Path, name: str) -> Path:
    """Write a file whose variables are in a group."""
    return write(data(), folder / name, group="model/surface")


knots = data().assign(winds).assign(v=data().t.assign_attrs(units="knots"))
levels, units = data().expand_dims(z=[500.0, 850.0], axis=1), data()
units.t.attrs["units"] = "degC"
FAULTS: list[tuple[Any, dict[str, Any], str]] = [
    (data(time={"units": "h"}), {}, "time has no units with a date"),
    (data().rename(lat="y").assign_coords(y=("y", NORTH)), {}, "no latitude among time, y, lon"),
    (data(lat={"units": "radians"}), {}, "lat is in radians"),
    (curvilinear, {}, "lat is in degrees_north on (y, x)"),
    (levels, {}, "lies on z, too; choose one with level"),
    (data().assign_coords(plev=850.0), {"level": 500.0}, "no variable lies on levels; leave level out"),
    (levels, {"level": 700}, "no level 700; z has 500, 850"),
    (two, {"fields": [TEMPERATURE, {"name": "v", "on": "node"}]}, "lie on other grids"),
    (data(time={"units": "months since 2001-01-01"}), {}, "write times in hours since a date"),
    (data(time={"calendar": "lunar"}), {}, "name a calendar of CF"),
    (data().assign(t=data().t.assign_attrs(valid_range=[300, 200])), {}, "write two numbers that rise, or none"),
    (data((0, 12, 6)), {}, "frame 2 is not after frame 1"),
    (data((0, 6, 6)), {}, "frame 2 is not after frame 1"),
    (data().assign_coords(time=np.array(["NaT", "2001-01-01", "2001-01-02"], "M8[ns]")), {}, "frame 1 is not after"),
    (data((0, 6, 30)), {}, "not equally spaced in time"),
    (data((0,)), {}, "1 times that all fields have are too few; t has 1"),
    (data(north=NORTH[:0]), {}, "a latitude or longitude is there twice, or alone"),
    (data(()), {}, "0 times that all fields have are too few; t has 0"),
    (data().assign_coords(time=np.array(list("abc"), object)), {}, "time has no units with a date"),
    (data().expand_dims(n=["a", "b"]), {"level": 3.0}, "t lies on n, too"),
    (data(north=np.radians(NORTH), lat={"units": ""}), {}, "lat is in no unit on (lat)"),
    (unwritten, {}, "lack values on 1 of 108 nodes"),
    (knots, {"fields": [WIND]}, "v is in knots, not m/s"),
    (missing, {}, "lack values on 1 of 108 nodes"),
    (units, {}, "t is in degC, not K"),
    (data(), {"fields": [{**TEMPERATURE, "name": "tt"}]}, "no variable tt"),
    (data(), {"fields": [TEMPERATURE, {**LATER, "on": "graph"}]}, "nothing for next on graphs"),
    (data(), {"refinement": 3}, "takes as many cells that cover the sphere, not 108"),
    (data(north=NORTH[:5]), {"refinement": 0}, "on 59% of it"),
    (data(north=NORTH + 20), {}, "beyond a pole"),
    (partial(text, content="GRIB and more"), {}, "convert it (GRIB by"),
    (partial(text, content="hello"), {}, "is no readable netCDF or zarr"),
    (partial(header, **OBJECTS), {}, "holds pickle, which might run code"),
    (partial(header, dtype="|O"), {}, "is no readable netCDF or zarr"),
    (partial(header, chunks=HUGE), {}, "claims chunks [3, 90000, 90000]"),
    (cut_off, {}, "is damaged"),
    (
        partial(grouped, name="a.nc"),
        {},
        "a.nc has variables in groups alone; write /model/surface to a file of its own",
    ),
    (partial(grouped, name="a.zarr"), {}, "has variables in groups alone"),
]


@pytest.mark.parametrize(("one", "table", "words"), FAULTS)
def test_a_file_that_lacks_something_is_refused_in_a_sentence(one: Any, table: Any, words: str, tmp_path: Path) -> None:
    path = one(tmp_path) if callable(one) else write(one, tmp_path / "a.nc")
    with pytest.raises(InputError) as error:
        graphs(path, **table)
    assert words in str(error.value)


def test_files_of_a_frame_data_sets_and_units_of_cf_are_read(tmp_path: Path) -> None:
    decoded = xarray.decode_cf(data().assign(winds))
    files = [write(decoded.isel(time=number), tmp_path / f"{number}.nc") for number in range(3)]
    expected = graphs(files, fields=[TEMPERATURE, LATER, WIND])
    table = {"kind": "climate", "fields": [TEMPERATURE, LATER, WIND]}
    for number, one in enumerate(([decoded], data().assign(winds))):
        store = hydragnn.build_store(table, tmp_path / f"{number}.h5", data=one)
        assert store.graphs == 2 and torch.equal(
            open_store(tmp_path / f"{number}.h5")[[1]]["next"], expected[1]["next"]
        )
    with pytest.raises(InputError, match="data 0 is a str; give data sets of xarray"):
        hydragnn.build_store(table, tmp_path / "c.h5", data=["a"])


def test_a_constant_in_one_file_and_in_time_in_another_is_refused(tmp_path: Path) -> None:
    constant = write(data().isel(time=0).drop_vars("time"), tmp_path / "1.nc")
    for files in itertools.permutations((constant, write(data(), tmp_path / "2.nc"))):
        with pytest.raises(InputError, match="have values of the same time"):
            graphs(list(files), fields=[TEMPERATURE])


def test_months_of_other_calendars_and_equal_times_are_refused(tmp_path: Path) -> None:
    files = [write(data(), tmp_path / "1.nc"), write(data((18, 24), time={"calendar": "360_day"}), tmp_path / "2.nc")]
    with pytest.raises(InputError, match="the calendars differ"):
        graphs(files)
    with pytest.raises(InputError, match="values of the same time; give each once, or say joined = false"):
        graphs([files[0], write(data(), tmp_path / "3.nc")])
    assert len(graphs([files[0], tmp_path / "3.nc"], joined=False)) == 4
    warm = data((18, 24)).assign(t=data((18, 24)).t.assign_attrs(units="degC"))
    for joined in (True, False):
        with pytest.raises(InputError, match="and 1\\.nc: t in K; bring them to one"):
            graphs([files[0], write(warm, tmp_path / "4.nc")], fields=[{"name": "t", "on": "node"}], joined=joined)


def test_areas_and_poles() -> None:
    mesh = grid_mesh(np.linspace(-90, 90, 7), EAST)
    assert mesh.areas.sum() == pytest.approx(4 * np.pi, rel=1e-14) and len(mesh.positions) == 5 * 12 + 2
    lengths = np.linalg.norm(mesh.positions[mesh.edges[0]] - mesh.positions[mesh.edges[1]], axis=1)
    assert lengths.min() > 0.2 and np.bincount(mesh.edges[0]).tolist() == [12] + [4] * 60 + [12]
    ends = np.linspace(-90, 90, 7)
    exact = np.repeat(np.diff(np.sin(np.radians(ends))) * np.pi / 6, 12)
    np.testing.assert_allclose(grid_mesh((ends[1:] + ends[:-1]) / 2, EAST).areas, exact, rtol=1e-13)


@pytest.mark.parametrize("refinement", [0, 1, 2, 3])
def test_an_icosahedral_mesh_keeps_integrals(refinement: int) -> None:
    north, east = np.arange(-88.0, 90, 4), np.arange(0.0, 360, 4)
    grid, mesh = grid_mesh(north, east), grid_mesh(north, east, refinement=refinement)
    assert (len(mesh.positions), mesh.edges.shape[1]) == (10 * 4**refinement + 2, 60 * 4**refinement)
    values = np.random.default_rng(0).normal(size=len(grid.areas))
    assert mesh.areas @ mesh.values(values) == pytest.approx(grid.areas @ grid.values(values), rel=1e-12)
    points, sides = refined_icosahedron(refinement)
    lengths = np.linalg.norm(points[sides[:, 0]] - points[sides[:, 1]], axis=1)
    assert lengths.max() < 1.2 * lengths.min() and mesh.areas.min() > 0.6 * mesh.areas.max()


def test_solid_rotation_is_one_vector_field_at_the_poles() -> None:
    north, east = np.array([90.0, 89.9, -90.0]), np.array([10.0, 200.0, 300.0])
    eastward = -np.sin(np.radians(north)) * np.sin(np.radians(east))
    vectors = vectors_of(eastward, -np.cos(np.radians(east)), north, east)  # turned about the second axis
    np.testing.assert_allclose(vectors, np.cross([0, 1, 0], points_at(north, east)), atol=1e-11)


def test_weighted_scores_follow_their_sums() -> None:
    random = np.random.default_rng(1)
    truth, found, areas, usual = random.normal(size=40), random.normal(size=40), random.random(40), np.ones(40)
    one = volume_scores(truth, found, areas, usual)
    assert one["volume_rmse"] == pytest.approx(np.sqrt(np.average((found - truth) ** 2, weights=areas)))
    a, b = (found - 1) * np.sqrt(areas), (truth - 1) * np.sqrt(areas)
    assert one["anomaly_correlation"] == pytest.approx(a @ b / np.sqrt(a @ a * (b @ b)))
    gaps = np.where(np.arange(40) < 20, truth, np.nan)
    assert volume_scores(gaps, found, areas, usual) == volume_scores(truth[:20], found[:20], areas[:20], usual[:20])


def test_case_2_stays_as_it_is() -> None:
    water = Water([CASE_2, Run(40.0, 3000.0, 1.2)], 21, 0.0)
    before = water.frame(np.arange(-75.0, 76, 15), 48)
    for _ in range(24):
        water.step(900)
    for name, tolerance in (("height", 1e-5), ("u", 1e-7), ("v", 1e-7)):
        np.testing.assert_allclose(
            water.frame(np.arange(-75.0, 76, 15), 48)[name], before[name], rtol=0, atol=tolerance
        )


def test_derivatives_equal_those_of_torch_harmonics() -> None:
    examples = pytest.importorskip("torch_harmonics.examples")
    own = Water([Run(25.0, 5960.0, bump=(300.0, 0.5, 2.0, 0.4))], 21, 0.0)
    for _ in range(4):
        own.step(900)
    rows, scale = own.harmonics.columns // 2, np.array([GRAVITY, 1, 1])[:, None, None]
    other = examples.ShallowWaterSolver(rows, 2 * rows, 900.0, 22, 22, grid="legendre-gauss").double()
    state, change = (
        scale * np.concatenate([own.harmonics.grid(one) for one in values[[2, 0, 1]]])[:, ::-1]
        for values in (own.state, own.change(own.state))
    )
    found = other.spec2grid(other.dudtspec(other.grid2spec(torch.from_numpy(state.copy())))).numpy()
    assert (np.abs(found - change).max((1, 2)) < 1e-6 * np.abs(change).max((1, 2))).all()


def test_coefficients_of_edges_turn_and_mirror_with_the_graph() -> None:
    points, sides = refined_icosahedron(1)
    senders, receivers = np.concatenate([sides, sides[:, ::-1]]).T
    names = ("coriolis", "mean_height", "steady_height", "orography", "steady_velocity")
    fields = [Field(name=name, on="node", shape=(3,) if name == names[-1] else ()) for name in names]
    fields += [Field(name="normal", on="node", shape=(3,)), Field(name="direction", on="edge", shape=(3,))]
    away = points[senders] - points[receivers]
    edges = {"direction": away / np.linalg.norm(away, axis=1, keepdims=True)}
    random = np.random.default_rng(0)
    values: dict[str, Any] = {field.name: random.normal(size=(len(points), *field.shape)) for field in fields[:5]}

    def coefficients(own: dict[str, Any]) -> GraphBatch:
        nodes = own | {"normal": points}
        graph = graph_from_arrays(points, senders, receivers, fields=fields, nodes=nodes, edges=edges)
        return with_coefficients(graph)

    one = coefficients(values)
    number = {pair: n for n, pair in enumerate(zip(one.senders.tolist(), one.receivers.tolist()))}
    turns, sources = symmetries(points, np.bincount(receivers))
    for turn, nodes in [(turns[k], sources[k]) for k in (7, 80)]:
        side = np.linalg.det(turn).round()
        turned = {name: own[nodes] for name, own in values.items()}
        turned |= {"coriolis": side * turned["coriolis"], names[-1]: turned[names[-1]] @ turn.T}
        other = coefficients(turned)
        same = [number[pair] for pair in zip(nodes[other.senders].tolist(), nodes[other.receivers].tolist())]
        assert np.allclose(other["flow"], one["flow"][same], atol=1e-4)
        assert np.allclose(other["depth"], one["depth"][same].numpy() @ turn.T, atol=1e-4)
        assert np.allclose(other["spin"], side * one["spin"][same].numpy() @ turn.T, atol=1e-4)


def test_evaluation_report_and_roll_out_know_areas_and_lead_times(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    files = [data(range(0, 30, 6), shift=((), random.normal())) for _ in range(10)]
    for number, one in enumerate(files):
        one["t"] += one["shift"] * np.cos(np.radians(one.lat)) - one.t.mean(("lat", "lon"))
        write(one.drop_vars("shift"), tmp_path / f"{number}.nc")
    extra = [{"name": "volume", "on": "node", "role": "auxiliary"}]
    extra += [{"name": "lead_time", "on": "graph", "unit": "h", "step": 1, "role": "auxiliary"}]
    table = {"kind": "climate", "files": ["*.nc"], "joined": False, "fields": [TEMPERATURE, LATER, *extra]}
    hydragnn.build_store(table, "t.h5")
    run = {"data": {"store": "t.h5"}, "split": {"group": "run"}, "train": {"epochs": 1}}
    run["heads"] = [{"kind": "scalar", "field": "next", "correction_of": "t"}]
    hydragnn.train(run | {"model": {"kind": "egnn", "hidden_dim": 4, "num_layers": 1, "cutoff": 1.0}}, "run")
    evaluation = hydragnn.build_ensemble(["run"], "ensemble")
    one = evaluation.parts["test"]["next"]
    usual = one.baselines["climatology"]
    assert one.baselines["persistence"]["mae"] == 0.0 < usual["mae"]  # states stay as they are
    assert 0 < usual["volume_rmse"] != usual["rmse"] and usual["anomaly_correlation"] == 0.0
    assert {"volume_rmse", "anomaly_correlation"} <= {*one.ensemble} & {*one.members[one.best_member]}
    assert "RMSE by volume" in hydragnn.report("ensemble", out="r.html").read_text()
    course = rollout(hydragnn.load("ensemble"), open_store("t.h5")[[0]], 3)
    assert (course.lead_times, course.lead_unit) == ((6.0, 12.0, 18.0), "h")
