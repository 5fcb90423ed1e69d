"""Atoms as nodes, and pairs within a cutoff as edges."""

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Float, Int
from numpy import ndarray

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.search import completed_cell, edge_order, pairs_within
from hydragnn.graphs.texts import NAME, name_among, number_in
from hydragnn.graphs.validate import graph_from_arrays

ATOMIC_NUMBERS_FIELD = Field(name=ATOMIC_NUMBERS, on="node", classes=119, dtype="int64")
CLOSEST = 1e-3  # Angstrom; atoms nearer than this are taken for duplicates
WHOLE = 1e-3  # part of an atom by which the occupancy of a site may miss 1
OCCUPANCY = re.compile(r"((atom_)?site_?)?(occ|occup|occupanc(y|ies)|occupations?)", re.IGNORECASE)
"""Names of columns with the share of each atom."""
REACH = 1 + 1e-6
"""Times the cutoff: pairs as near to it as coordinates are rounded are within, so that a shell of a perfect crystal or of a grid is there as a whole."""
_STATE = ("numbers", "positions", "initial_charges", "initial_magmoms")
_VOIGT = ((0, 5, 4), (5, 1, 3), (4, 3, 2))  # ASE's order: xx, yy, zz, yz, xz, xy
_TIE = 1e-8  # Angstrom, or times a cutoff below 1; distances closer than this count as equal when neighbours are cut


@dataclass(frozen=True, slots=True)
class ReadResults:
    """Results that came with a structure, in place of a calculator."""

    results: dict[str, Any]


def snapshot(atoms: Atoms) -> Atoms:
    """Return a copy with results; generators may move their atoms on."""
    copy, results = atoms.copy(), getattr(atoms.calc, "results", {})
    if atoms.calc is not None:
        changed = bool(results) and hasattr(atoms.calc, "check_state") and atoms.calc.check_state(atoms)
        copy.calc = ReadResults({key: None if changed else deepcopy(value) for key, value in results.items()})
    return copy


def from_ase(
    atoms: Atoms,
    cutoff: float,
    *,
    fields: Iterable[Field] = (),
    keys: Mapping[str, str] | None = None,
    optional: Iterable[str] = (),
    max_neighbours: int | None = None,
    name: str = "structure",
) -> GraphBatch:
    """Return the graph of one structure, through every periodic image.

    ``cutoff`` is in Angstrom and may exceed the cell. ``max_neighbours`` keeps, at every receiver, its nearest
    neighbours (equal distances in the order of the image and then of the sender), so that edges need no longer come in pairs.

    Every structure has the field ``atomic_numbers``. Values of other ``fields`` are taken, under their name or the name
    that ``keys`` gives, from the calculator's stored results (nothing is computed), from ``atoms.info`` (graph fields)
    or ``atoms.arrays`` (node fields); two values that differ are refused. Energies are eV, forces eV/Angstrom, stress eV/Angstrom^3 in ASE's sign: the
    derivative of the energy with respect to strain, divided by the volume (tension is positive). Six stress components
    (xx, yy, zz, yz, xz, xy) become a 3 x 3 tensor. A field named in ``optional`` may be absent, and labels of these targets missing (NaN, of classes -1). The graph's name is that of
    ``atoms.info`` (``NAME_KEYS``), where there is one.

    Raises InputError for no atoms, two atoms nearer than 0.001 Angstrom, a cell that is singular along periodic axes,
    a missing label, a stress without a volume, and everything that ``graph_from_arrays`` refuses.

    >>> from ase.build import bulk
    >>> from_ase(bulk("Cu", "fcc", a=3.6), cutoff=2.6).num_edges
    12
    """
    if not cutoff > 0:
        raise InputError(f"{name}: cutoff {cutoff} is not a positive length; give Angstrom")
    if not len(atoms):
        raise InputError(f"{name} has no atoms; leave empty structures out")
    periodic = np.asarray(atoms.pbc, dtype=bool)
    cell = completed_cell(np.asarray(atoms.cell.array, dtype=np.float64), periodic, name)
    positions = np.asarray(atoms.positions, dtype=np.float64)
    if not np.isfinite(positions).all():
        raise InputError(f"{name}, positions: NaN or infinite; remove the structure")
    senders, receivers, shifts = neighbour_list(positions, cell, periodic, cutoff, max_neighbours, name=name)
    optional = set(optional)
    labels = labels_of(atoms, fields, keys or {}, optional, name)
    on_nodes = {field.name: value for field, value in labels if field.on == "node"}
    graph = graph_from_arrays(
        positions,
        senders,
        receivers,
        fields=[ATOMIC_NUMBERS_FIELD, *(field for field, _ in labels)],
        nodes={ATOMIC_NUMBERS: np.asarray(atoms.numbers), **on_nodes},
        graphs={field.name: value for field, value in labels if field.on == "graph"},
        edge_shifts=shifts @ cell,
        cell=np.asarray(atoms.cell.array, dtype=np.float64),
        periodic=periodic,
        optional=optional,
        name=name,
    )
    own = name_among(atoms.info)
    return graph.with_texts({NAME: [own]}) if own else graph


def neighbour_list(
    positions: Float[ndarray, "nodes 3"],
    cell: Float[ndarray, "3 3"],
    periodic: Any,
    cutoff: float,
    max_neighbours: int | None = None,
    *,
    name: str = "structure",
) -> tuple[Int[ndarray, " edges"], Int[ndarray, " edges"], Int[ndarray, "edges 3"]]:
    """Return senders, receivers and cell shifts of all pairs within ``cutoff``.

    Pairs up to a millionth farther count too (``REACH``). They are sorted by receiver. Order at a receiver: sender,
    then shift; with ``max_neighbours``: the nearest first are kept. InputError for pairs nearer than 0.001 and a
    thousandth of the cutoff, since points of a mesh may be in metres.
    """
    receivers, senders, shifts, distance = pairs_within(positions, cell, periodic, cutoff * REACH, name)
    if len(distance) and distance.min() < min(CLOSEST, 1e-3 * cutoff):
        worst = int(distance.argmin())
        pair = sorted((int(receivers[worst]), int(senders[worst])))
        raise InputError(f"{name}: nodes {pair[0]} and {pair[1]} are {distance[worst]:.2g} apart; remove the duplicate")
    order = edge_order(receivers, senders, shifts, len(positions))
    if max_neighbours is not None:
        if max_neighbours < 1:
            raise InputError(f"{name}: max_neighbours = {max_neighbours}; give at least 1")
        rounded = np.rint(distance[order] / min(_TIE, _TIE * cutoff)).astype(np.int64)
        sorted_receivers = receivers[order]
        nearest = np.lexsort((senders[order], *shifts[order].T, rounded, sorted_receivers))
        rank = np.arange(len(nearest)) - np.searchsorted(sorted_receivers, sorted_receivers[nearest])
        order = order[np.sort(nearest[rank < max_neighbours])]
    return senders[order], receivers[order], shifts[order]


def labels_of(
    atoms: Atoms, fields: Iterable[Field], keys: Mapping[str, str], optional: Collection[str], name: str
) -> list[tuple[Field, Any]]:
    """Return a structure's fields with values; InputError where one is missing."""
    labels: list[tuple[Field, Any]] = []
    fields = list(fields)
    _check_sites(atoms, {keys.get(field.name, field.name) for field in fields}, name)
    for field in fields:
        if field.name == ATOMIC_NUMBERS:
            continue
        key = keys.get(field.name, field.name)
        value = _label(atoms, field, key, name)
        own = np.asarray(value)
        if field.name in optional and own.dtype.kind == "f" and bool(np.isnan(own).all()):
            continue
        if value is not None:
            labels.append((field, value))
        elif field.name not in optional:
            raise InputError(_missing(atoms, field, key, name))
    return labels


def _check_sites(atoms: Atoms, known: Collection[str], name: str) -> None:
    """Raise InputError where sites are occupied in part or by several elements."""
    sites = atoms.info.get("occupancy")
    for site in sites.values() if isinstance(sites, dict) and "occupancy" not in known else ():
        shares = (
            [1.0 if share in ("?", ".") else share for share in site.values()] if isinstance(site, dict) else [site]
        )
        if len(shares) != 1 or abs(shares[0] - 1) > WHOLE:
            raise InputError(f"{name}: a site is occupied by {site}; order it: one element with occupancy 1")
    for key in [key for key in atoms.arrays if OCCUPANCY.fullmatch(key) and key not in known]:
        share = atoms.arrays[key]
        if ((share > WHOLE) & (share < 1 - WHOLE)).any():  # zeros everywhere are of programs that fill the column in
            raise InputError(
                f"{name}: atoms are there in part, by their {key}; order the structure: atoms with {key} 1"
            )


def _label(atoms: Atoms, field: Field, key: str, name: str) -> Any:
    stored, own = _stored_label(atoms, field, key, name), value_on(atoms, field, key)
    if field.shape == (3, 3):
        stored, own = (None if value is None else _as_tensor(np.asarray(value)) for value in (stored, own))
    both = stored is not None and own is not None  # values agree up to the digits of a text file
    if both and not (
        np.shape(stored) == np.shape(own) and np.allclose(stored, own, rtol=1e-6, atol=1e-8, equal_nan=True)
    ):
        raise InputError(
            f"{name} has two values of {key} that differ: one among the results of its calculator, one in {_place(field)}; remove one"
        )
    value = own if stored is None else stored
    is_stress = value is not None and key == "stress" and field.shape == (3, 3)
    if is_stress and not (np.any(atoms.pbc) and np.linalg.det(atoms.cell.array)):
        raise InputError(
            f"{name} has a stress and no volume (no periodic axis, or a cell vector of length zero); give its cell, or take the "
            f"stress out of the structure and list {field.name} as optional"
        )
    return value


def _place(field: Field) -> str:
    return "atoms.arrays" if field.on == "node" else "atoms.info"


def _stored_label(atoms: Atoms, field: Field, key: str, name: str) -> Any:
    """Return a value of the calculator's results, under ASE's names too."""
    results = getattr(atoms.calc, "results", {})
    if not results:
        return None
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io.extxyz import REV_PROPERTY_NAME_MAP  # half a second, which runs need not wait for

    also = REV_PROPERTY_NAME_MAP.get(key, key) if field.on == "node" else key
    stored = next((known for known in (key, also) if known in results), None)
    if stored is None:
        return None
    # ASE compares the structure with the calculator's copy of it, within 1e-15, for every result; the same bits tell it in a tenth of the time
    known = type(atoms.calc) is SinglePointCalculator and _is_same(atoms.calc.atoms, atoms)
    if known or isinstance(atoms.calc, ReadResults):
        value = atoms.calc.results[stored]
        value = value.copy() if isinstance(value, np.ndarray) else value
    else:
        value = atoms.calc.get_property(stored, atoms, allow_calculation=False)
    if value is None:
        raise InputError(
            f"{name}: the stored {key} belongs to other positions than these; recompute it, or set atoms.calc = None"
        )
    return value


def value_on(atoms: Atoms, field: Field, key: str) -> Any:
    """Return what the structure, without its calculator, holds for a field."""
    value = (atoms.arrays if field.on == "node" else atoms.info).get(key)
    return number_in(value) if isinstance(value, str) else value


def _is_same(one: Atoms, other: Atoms) -> bool:
    """Return True where everything that a calculator looks at has equal values."""
    pairs = [(one.cell.array, other.cell.array), (one.pbc, other.pbc)]
    pairs += [(one.arrays.get(name), other.arrays.get(name)) for name in _STATE]
    return all(
        left is right or (left is not None and right is not None and np.array_equal(left, right))
        for left, right in pairs
    )


def _as_tensor(value: ndarray) -> ndarray:
    """Return Voigt components as 3 x 3 tensors, others unchanged."""
    if value.shape[-1:] == (6,):
        return value[..., np.array(_VOIGT)]
    return value.reshape(*value.shape[:-1], 3, 3) if value.shape[-1:] == (9,) else value


def _missing(atoms: Atoms, field: Field, key: str, name: str) -> str:
    source = _place(field)
    stored = sorted(getattr(atoms.calc, "results", {})) if atoms.calc is not None else []
    names = sorted(atoms.arrays if field.on == "node" else atoms.info)
    return (
        f"{name}: no {key} for the field {field.name}; {source} has {', '.join(names) or 'nothing'} and the calculator "
        f"{', '.join(stored) or ('nothing' if atoms.calc is None else 'nothing yet')}; name the right key, or list the field as optional"
    )
