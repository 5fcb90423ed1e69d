"""Fe-Pt alloys on a lattice: mixing enthalpy, charge transfer and magnetic moment as three heads of one model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from pydantic import Field as Setting

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, StoreWriter, find_files, open_store, rule_of
from hydragnn.datasets.sources.table_files import read_npz
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import (
    ATOMIC_NUMBERS_FIELD,
    Field,
    GraphBatch,
    Topology,
    from_ase,
    relation_field,
)
from hydragnn.record import RunRecord
from hydragnn.scripts.recipes.clusters import Clusters, clusters_of, correlations
from hydragnn.scripts.recipes.edge_kinds import shell_radii, with_shell_relations
from hydragnn.scripts.recipes.raw import array_like, raw_arrays
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import make_store, model_of, recipe_table, rmse, subsets, train_recipe

CELL = (20.872, 10.436, 14.116)  # Bohr; body-centred tetragonal, 32 sites
CUTOFF = 10.6  # Bohr; eight neighbour shells
ELEMENTS = (26, 78)  # Fe, Pt
REACHES = ((2, 54), (3, 18), (4, 12))  # pairs, triples and fours among so many nearest neighbours of a site
ORBITS = 248  # kinds of these clusters
SUBSETS = ("validation", "compositions left out", "compositions left out near the ends")
TARGETS = {"enthalpy": "Ry/atom", "charge_transfer": "e", "moment": "muB"}
GOALS = {
    "validation": {"enthalpy": 2.5e-3, "charge_transfer": 0.015, "moment": 0.015},
    "compositions left out": {"enthalpy": 6e-3, "charge_transfer": 0.018, "moment": 0.018},
}
LINEAR = {  # of the best linear model of neighbour shells, as published with the data
    "validation": {"enthalpy": 1.6e-2, "charge_transfer": 0.034, "moment": 0.032},
    "compositions left out": {"enthalpy": 2.1e-2, "charge_transfer": 0.035, "moment": 0.033},
}
COMMON = 500  # cells of a composition that may take part in choosing the epoch
TWIN_EPOCHS = 10  # length of the comparison of one model with three heads and three models with one
MEMBERS = 3
LEFT_OUT = (8, 16, 24)  # compositions (numbers of Fe) that training never sees
ENDS = (4, 28)  # the same near the ends of the range: the last compositions with hundreds of symmetry classes
INPUTS = (ATOMIC_NUMBERS_FIELD, relation_field(8, "shell"), Field(name="clusters", on="node", shape=(ORBITS,)))
LABELS = (
    Field(name="enthalpy", on="graph", unit="Ry/atom", role="target", dtype="float64"),
    Field(name="charge_transfer", on="node", unit="e", role="target"),
    Field(name="moment", on="node", unit="muB", role="target"),
    Field(name="part", on="graph", classes=4, dtype="int64", role="auxiliary"),
    Field(name="iron", on="graph", classes=33, dtype="int64", role="auxiliary"),
)
FIELDS = (*INPUTS, *LABELS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The raw file: one row per configuration."""

    numbers: NDArray[np.int64]
    enthalpy: NDArray[np.float64]
    charge_transfer: NDArray[np.float32]
    moment: NDArray[np.float32]
    part: NDArray[np.int64]

    @property
    def iron(self) -> NDArray[np.int64]:
        """Fe atoms of every cell."""
        return (self.numbers == 26).sum(axis=1)


def read_cells(path: Path, seed: int = 0) -> tuple[Cells, NDArray[np.float64]]:
    """The configurations with their parts, and the positions of the sites.

    Equal labels up to symmetry would leak between parts: parts are made of whole symmetry classes, and training keeps
    one configuration of each. Part 2 judges: the file's validation classes and all cells of the left-out
    compositions. Part 1 (one class in twenty of the rest, from compositions with at least 500 cells: the few cells that
    are nearly pure have labels so large that they alone would decide) chooses the epoch. Part 3 (one class in twenty of
    what is left, of any composition) calibrates intervals.
    """
    with raw_arrays(path, "Z", "pos", "header", "symmetry_class", "is_validation") as raw:
        numbers, energy = raw["Z"].astype(np.int64), raw["header"][:, 0]
        iron = (numbers == 26).sum(axis=1)
        pure = {count: energy[iron == count].mean() / 32 for count in (0, 32)}
        enthalpy = energy / 32 - (iron * pure[32] + (32 - iron) * pure[0]) / 32
        classes, first = np.unique(raw["symmetry_class"], return_index=True)
        common = classes[np.bincount(iron, minlength=33)[iron[first]] >= COMMON]
        generator = np.random.default_rng(seed)
        valid_classes = generator.permutation(common)[: len(common) // 20]
        held_out = raw["is_validation"] | np.isin(iron, (*LEFT_OUT, *ENDS))
        others = np.setdiff1d(classes, np.concatenate([valid_classes, raw["symmetry_class"][held_out]]))
        calibrating = generator.permutation(others)[: len(others) // 20]
        part = np.isin(raw["symmetry_class"], valid_classes) + 3 * np.isin(raw["symmetry_class"], calibrating)
        part[held_out] = 2
        keep = held_out.copy()
        keep[first] = True
        cells = Cells(
            numbers=numbers[keep],
            enthalpy=enthalpy[keep],
            charge_transfer=raw["charge_transfer"][keep],
            moment=raw["magmom"][keep],
            part=part[keep],
        )
        return cells, raw["pos"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sites:
    """Sites, neighbours and clusters that all cells share."""

    graph: GraphBatch
    """32 sites, edges to eight shells of neighbours, the shell as the kind of edge."""
    clusters: Clusters


def lattice(positions: NDArray[np.float64]) -> Sites:
    """The sites that all cells share; InputError where there are not eight shells of neighbours."""
    site = from_ase(Atoms("Fe32", positions=positions, cell=CELL, pbc=True), CUTOFF)
    radii = shell_radii(site)
    if len(radii) != 8:
        raise InputError(
            f"the sites have {len(radii)} shells of neighbours within {CUTOFF} Bohr, not 8; give those of the published file"
        )
    return Sites(graph=with_shell_relations(site, radii), clusters=clusters_of(site, REACHES))


class FePt(OwnBuild):
    """Source of cells in npz files.

    ``Z`` [cells, 32] are atomic numbers of Fe and Pt. ``pos``, where it is there, has to be the sites.
    """

    kind: str = "hydragnn.scripts.recipes.fept:FePt"

    sites: list[tuple[float, float, float]] = Setting(min_length=32, max_length=32)
    """Positions that all cells share, in Bohr, in the order of ``Z``."""

    def graphs(self) -> Iterator[Make]:
        """One graph per cell without labels; InputError where a file has other arrays or other sites."""
        positions = np.array(self.sites)
        sites = lattice(positions)
        for path in find_files(self.files):
            table = read_npz(path)
            numbers = array_like(table, "Z", ("cells", len(positions)), path, kinds="iu").astype(np.int64)
            if "pos" in table and not np.allclose(
                array_like(table, "pos", positions.shape, path), positions, atol=1e-3
            ):
                raise InputError(f"{path}: pos are other sites than those of training; give cells on the same lattice")
            for number, row in enumerate(numbers):
                yield partial(cell_as_graph, row, sites, f"{path.name}, cell {number}")


def cell_as_graph(numbers: NDArray[np.int64], sites: Sites, name: str) -> GraphBatch:
    """One cell as a graph without labels; InputError where a site is neither Fe nor Pt."""
    other = numbers[~np.isin(numbers, ELEMENTS)]
    if len(other):
        raise InputError(f"{name}: atomic number {other[0]} is neither Fe (26) nor Pt (78); leave the cell out")
    return cells_as_batch(numbers[None], sites)


def cells_as_batch(numbers: NDArray[np.int64], sites: Sites) -> GraphBatch:
    """Cells ``[cells, sites]`` as graphs without geometry: on an ideal lattice shells and clusters say it all.

    The spins of clusters are 1 on iron and -1 on platinum, less their mean over the cell.
    """
    site, count = sites.graph, len(numbers)
    nodes, edges = site.num_nodes, site.num_edges
    base = torch.arange(count).repeat_interleave(edges) * nodes
    spins = np.where(numbers == ELEMENTS[0], 1.0, -1.0)
    around = correlations(sites.clusters, spins - spins.mean(axis=1, keepdims=True))
    return GraphBatch(
        positions=torch.zeros(count * nodes, 0, dtype=torch.float64),
        topology=Topology.square(site.senders.repeat(count) + base, site.receivers.repeat(count) + base, count * nodes),
        edge_shifts=torch.zeros(count * edges, 0, dtype=torch.float64),
        cell=torch.zeros(count, 3, 3, dtype=torch.float64),
        periodic=torch.zeros(count, 3, dtype=torch.bool),
        node_offsets=torch.arange(count + 1) * nodes,
        edge_offsets=torch.arange(count + 1) * edges,
        fields={field.name: field for field in INPUTS},
        nodes={
            "atomic_numbers": torch.from_numpy(numbers.flatten()),
            "clusters": torch.from_numpy(around.reshape(-1, ORBITS)),
        },
        edges={"shell": site.edges["relation"].repeat(count)},
        graphs={},
    )


def with_labels(batch: GraphBatch, cells: Cells, rows: slice) -> GraphBatch:
    """The cells ``rows`` with what was computed of them, and the part that each plays."""
    values = {
        "enthalpy": torch.from_numpy(cells.enthalpy[rows]),
        "charge_transfer": torch.from_numpy(cells.charge_transfer[rows]).flatten(),
        "moment": torch.from_numpy(cells.moment[rows]).flatten(),
        "part": torch.from_numpy(cells.part[rows]),
        "iron": torch.from_numpy(cells.iron[rows]),
    }
    return batch.with_fields(values, fields=LABELS)


def write_store(raw: Path, store: Path) -> None:
    """The raw npz file as a store that remembers how other such files become graphs."""
    cells, positions = read_cells(raw)
    sites = lattice(positions)
    rule = rule_of(FePt(files=[raw.name], sites=[tuple(row) for row in positions.tolist()]))
    attributes = {"source": "LSMS Fe-Pt, github allaffa/GCNN b0bc200f", "build": rule}
    with StoreWriter(store, FIELDS, dim=0, attributes=attributes) as writer:
        for start in range(0, len(cells.numbers), 256):
            rows = slice(start, start + 256)
            writer.write(with_labels(cells_as_batch(cells.numbers[rows], sites), cells, rows))


def run(data: Path, out: Path, epochs: int | None) -> None:
    """The store, three models with three heads each, their ensemble, its errors, and what sharing costs each head."""
    store = out / "fept.h5"
    make_store(store, FIELDS, partial(write_store, data / "fept_32atoms.npz"))
    runs = [out / "members" / str(seed) for seed in range(MEMBERS)]
    records = [
        train_recipe("fept", store, folder, f"train.seed={seed}", epochs=epochs) for seed, folder in enumerate(runs)
    ]
    held_out = held_out_graphs(store)
    if not (out / "ensemble").exists():
        build_ensemble(runs, out / "ensemble", others=subsets(store, held_out))
    evaluation = evaluation_of(out / "ensemble")
    figures = [figure for name in SUBSETS for figure in _figures(name, evaluation, baselines(store, held_out[name]))]
    costs, compared = sharing_costs(
        store, out / "twins", held_out["validation"], min(TWIN_EPOCHS, epochs or TWIN_EPOCHS)
    )
    for field, cost in costs.items():
        what = f"{field}: RMSE above that of its single-task twin, {TWIN_EPOCHS} epochs each"
        figures.append(Figure(what=what, value=cost, unit="%", goal=15.0))
    show_figures("fept", figures, [*records, *compared], out, epochs=epochs)
    hydragnn.report(out / "ensemble", out / "report.html")


def _figures(name: str, evaluation: dict[str, Any], means: dict[str, float]) -> list[Figure]:
    """Return RMSEs of a member and the ensemble, and interval coverage.

    The promise is about the first member.
    """
    figures, part = [], evaluation["parts"][name]
    for field, unit in TARGETS.items():
        beside = f"means {means[field]:.2g}" + (
            f"; linear model of shells {LINEAR[name][field]:.2g}" if name in LINEAR else ""
        )
        one, together = part[field]["members"][0]["rmse"], part[field]["ensemble"]
        goal = GOALS.get(name, {}).get(field)
        figures.append(Figure(what=f"{name}: {field} RMSE, one model", value=one, unit=unit, goal=goal, beside=beside))
        figures.append(Figure(what=f"{name}: {field} RMSE, ensemble", value=together["rmse"], unit=unit))
        for what, score in (("coverage (90 nominal)", "coverage"), ("coverage unknown", "unknown")):
            if score in together:  # no coverage where all cells lie too far outside for intervals
                figures.append(Figure(what=f"{name}: {field} {what}", value=100 * together[score], unit="%"))
    flagged = 100 * evaluation["domain"]["flagged"][name]
    return [*figures, Figure(what=f"{name}: cells flagged as outside the training domain", value=flagged, unit="%")]


def held_out_graphs(store: Path) -> dict[str, list[int]]:
    """Graphs of the test part: validation classes of the published file, and the compositions left out."""
    batch = open_store(store)
    part, iron = (batch.column(name).values.reshape(-1) for name in ("part", "iron"))
    inside, ends = np.isin(iron, LEFT_OUT), np.isin(iron, ENDS)
    masks = ((part == 2) & ~inside & ~ends, inside, ends)
    return {name: np.flatnonzero(mask).tolist() for name, mask in zip(SUBSETS, masks)}


def baselines(store: Path, graphs: list[int]) -> dict[str, float]:
    """Return the RMSE of means of the training part.

    Per composition for the enthalpy, per species and composition on sites.

    A composition without training cells takes what lies between its two neighbours.
    """
    reader = open_store(store)
    training = np.flatnonzero(reader.column("part").values.reshape(-1) == 0)
    results = {}
    for field in TARGETS:
        (key, label), (key_held_out, label_held_out) = (_keyed(store, rows, field) for rows in (training, graphs))
        keys, where = np.unique(key, return_inverse=True)
        means = np.bincount(where, weights=label) / np.bincount(where)
        results[field] = _rms(np.interp(key_held_out, keys, means) - label_held_out)
    return results


def _keyed(
    store: Path, graphs: NDArray[np.int64] | list[int], field: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Composition, plus 1000 on iron sites where the field is one of sites, and the labels."""
    batch = open_store(store).read(graphs, ["atomic_numbers", "iron", field])
    content = batch["iron"].double()
    if field != "enthalpy":
        content = content[batch.owner("node")] + 1000.0 * (batch["atomic_numbers"] == 26).double()
    return content.numpy(), batch[field].double().numpy()


def _rms(error: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(error).mean()))


def sharing_costs(store: Path, out: Path, graphs: list[int], epochs: int) -> tuple[dict[str, float], list[RunRecord]]:
    """Return percents by which shared heads exceed their single-task twins.

    With the runs that show it.
    """
    shared = train_recipe("fept", store, out / "shared", epochs=epochs)
    together = rmse(model_of(out / "shared"), store, graphs)
    records, costs = [shared], {}
    heads = {head["field"]: head for head in recipe_table("fept")["heads"]}
    for field in TARGETS:
        twin = train_recipe("fept", store, out / field, heads=[heads[field]], epochs=epochs)
        records.append(twin)
        costs[field] = 100 * (together[field] / rmse(model_of(out / field), store, graphs)[field] - 1)
    return costs, records
