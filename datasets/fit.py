"""Normalisation fitted on the training part of a store."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.formats.memory import field_named
from hydragnn.datasets.normalisation import Normalisation, Scale
from hydragnn.datasets.split import species_counts
from hydragnn.datasets.store import GraphStore
from hydragnn.datasets.survey import BLOCK, FieldSummary, Survey, joint_summary
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, is_labelled
from hydragnn.graphs.units import label_factors

SPECIES = 119  # atomic numbers, with 0
COARSE = 1e-3
"""Numbers that stand farther apart than this part of their spread have lost digits that a model could learn."""


@runtime_checkable
class _Fitted(Protocol):
    """Target as far as the normalisation needs it.

    Values that are ``extensive`` grow with the number of nodes. ``references`` per atomic number are taken off first, those of the
    user if there are. A ``derivative`` (forces or stress) belongs to the energy ``source``. The ``total`` is a graph input
    that nodes add up to (empty: zero; None: nothing). What is not ``centred`` keeps zero, and has one scale, for relative errors.
    """

    @property
    def field(self) -> Field: ...
    @property
    def extensive(self) -> bool: ...
    @property
    def references(self) -> bool: ...
    @property
    def given_references(self) -> tuple[tuple[int, float], ...]: ...
    @property
    def derivative(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def total(self) -> str | None: ...
    @property
    def centred(self) -> bool: ...


def fit_normalisation(
    store: GraphStore,
    indices: Int64[ndarray, " chosen"],
    *,
    inputs: Sequence[Field],
    targets: Sequence[_Fitted],
    survey: Survey | None = None,
) -> Normalisation:
    """Return scales of inputs and targets from the training graphs ``indices``.

    A ``survey`` of this store and training part saves reading what it knows already, and shares the reading with other
    processes.

    Scalars: mean and standard deviation per component (0 becomes 1). Vectors and targets that are not centred:
    mean 0 and one common root mean square, so that rotations still act on them; tensors: the mean trace over dim on the diagonal, and
    one common root mean square of the rest. Extensive targets: mean 0 and the root mean square of value minus
    references per node; with forces, the root mean square of all force components, shared by energy, forces and stress (times the
    factor between the units of their labels, where these differ). Values of nodes with a total: mean 0 and the standard deviation; the total shares it,
    so that normalised values add up to the normalised total.
    InputError where a field is missing or has no value in the training part.
    """
    survey = survey or Survey(store, indices)
    fields = store.fields()
    scales: dict[str, Scale] = {}
    references: dict[str, dict[int, float]] = {}
    for field in inputs:
        if not field.classes:
            field = field_named(fields, field.name)
            scales[field.name] = _scale_of(survey.summary(field), field)
    for target in targets:
        field = field_named(fields, target.field.name)
        if target.references:
            values = dict(target.given_references)
            references[field.name] = _given(survey, field, values) if values else fitted_references(survey, field)
        if target.derivative or field.classes:
            continue
        if target.extensive and field.on == "graph":
            derived = {other.derivative: other.field.name for other in targets if other.source == field.name}
            own = {what: field_named(fields, name) for what, name in derived.items()}
            factors = label_factors(field, own, store.attributes, store.dim)
            scales |= _extensive_scales(survey, field, own, factors, references.get(field.name, {}))
        else:
            scales[field.name] = _scale_of(survey.summary(field), field, centred=target.centred)
    for total in {target.total for target in targets if target.total is not None}:
        scales |= _scales_with_total(scales, total, [target.field for target in targets if target.total == total])
    return Normalisation(scales=scales, references=references)


def _scales_with_total(scales: Mapping[str, Scale], total: str, fields: Sequence[Field]) -> dict[str, Scale]:
    """Return scales without a mean of fields and their ``total``.

    Fields that add up to zero keep their own standard deviations.
    """
    if not total:
        return {field.name: Scale(mean=(0.0,) * field.width, std=scales[field.name].std) for field in fields}
    stds = np.sqrt(np.square([scales[field.name].std for field in fields]).mean(axis=0))
    shared = Scale(mean=(0.0,) * len(stds), std=tuple(stds.tolist()))
    return dict.fromkeys([total, *(field.name for field in fields)], shared)


def joint_scale(summaries: Sequence[FieldSummary], field: Field) -> Scale:
    """Return the scale of an input that several data sets share."""
    rows = [np.concatenate([[each.squares], each.items, each.mean, each.deviations]) for each in summaries]
    return _scale_of(joint_summary(np.stack(rows), field.width), field)


def _scale_of(summary: FieldSummary, field: Field, *, centred: bool = True) -> Scale:
    if not summary.items.any() and field.on == "edge":
        return Scale(mean=(0.0,) * field.width, std=(1.0,) * field.width)  # graphs without edges are legal
    if not summary.items.any():
        raise InputError(f"no graph of the training part has a value of {field.name}; choose another split or field")
    mean, variance = summary.mean, summary.deviations / np.maximum(summary.items, 1)
    if field.parity == "tensor" and centred:
        mean, variance = _along_identity(mean, variance, summary.items > 0, field)
    elif field.parity != "scalar" or not centred:
        mean, variance = np.zeros(field.width), np.full(field.width, summary.squares / summary.items.sum())
    std = np.sqrt(variance)
    std = np.where(std <= 1e-12 * np.abs(mean), 1.0, std)  # of components that are constant up to rounding
    return Scale(mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _along_identity(
    mean: NDArray[np.float64], variance: NDArray[np.float64], labelled: NDArray[np.bool_], field: Field
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean along the identity, and the common residual mean square.

    These are the only shift and scale that turning the axes does not change. Components without labels do not count.
    """
    of_tensors, known = (values.reshape(-1, *field.shape[-2:]) for values in (mean, labelled))
    diagonal = np.trace(known, axis1=-2, axis2=-1, dtype=np.int64)
    traces = np.trace(of_tensors, axis1=-2, axis2=-1) / np.maximum(diagonal, 1)
    isotropic = (traces[:, None, None] * np.eye(field.shape[-1])).reshape(-1)
    return isotropic, np.full(field.width, (variance + np.square(mean - isotropic))[labelled].mean())


def check_references(field: Field, store: GraphStore) -> None:
    """Raise InputError where references of a field cannot be fitted."""
    if field.on != "graph" or field.width != 1:
        raise InputError(f"references need one value per graph, but {field.name} is {field.on} of shape {field.shape}")
    if ATOMIC_NUMBERS not in {other.name for other in store.fields()}:
        raise InputError(f"references of {field.name} need the node field {ATOMIC_NUMBERS}; the store has none")


def _given(survey: Survey, field: Field, references: dict[int, float]) -> dict[int, float]:
    """Return the references; InputError where an element of the store lacks one."""
    check_references(field, survey.store)

    def occurs(_: int) -> NDArray[np.float64]:
        return np.isin(np.arange(SPECIES), species_counts(survey.store)[1]).astype(np.float64)

    check_elements(field.name, references, np.flatnonzero(survey.rows(1, SPECIES, occurs)[0]).tolist())
    return references


def check_elements(field: str, references: Collection[int], elements: Iterable[int]) -> None:
    """Raise InputError where an element of a store has no given reference."""
    lacking = sorted(set(elements) - set(references))
    if lacking:
        problem = f"the references of {field} have no energy for atomic number {lacking[0]}, which the store holds"
        raise InputError(f"{problem}; add it, or say references = true to fit them")


def elements_of(store: GraphStore) -> list[int]:
    """Return the atomic numbers of a store, ascending."""
    occurs = np.zeros(SPECIES, dtype=np.bool_)
    for start in range(0, len(store), BLOCK):
        numbers = store.column(ATOMIC_NUMBERS, start, min(start + BLOCK, len(store))).values
        occurs[numbers[(numbers >= 0) & (numbers < SPECIES)]] = True
    return np.flatnonzero(occurs).tolist()


def _labels(survey: Survey, field: Field) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return training values ``[graphs, width]`` of a field, and whose they are."""
    column = survey.store.column(field.name)
    used = survey.train & column.present
    return column.values[used].reshape(int(used.sum()), field.width).astype(np.float64), used


def fitted_references(survey: Survey, field: Field) -> dict[int, float]:
    """Return references by least squares on species counts, the shortest solution."""
    check_references(field, survey.store)

    def solution(_: int) -> NDArray[np.float64]:
        """Return a number per species, NaN outside the training part."""
        values, used = _labels(survey, field)
        counts, species = species_counts(survey.store)
        counts = counts[used]
        present = counts.any(axis=0)
        fitted = np.full(SPECIES, np.nan)
        fitted[species[present]] = np.linalg.lstsq(counts[:, present].astype(np.float64), values[:, 0], rcond=None)[0]
        return fitted

    fitted = survey.rows(1, SPECIES, solution)[0]
    return {int(z): float(fitted[z]) for z in np.flatnonzero(~np.isnan(fitted))}


def _extensive_scales(
    survey: Survey, field: Field, derived: dict[str, Field], factors: dict[str, float], references: dict[int, float]
) -> dict[str, Scale]:
    """Return one std for an energy and its derivatives, in their units."""
    if "forces" in derived:
        forces = derived["forces"]
        std = _scale_of(survey.summary(forces), forces, centred=False).std[0] / factors["forces"]
    else:
        std = _rms_per_node(survey, field, references)
    std = std if std > 0 else 1.0
    stds = {field: std, **{one: std * factors[what] for what, one in derived.items()}}
    return {one.name: Scale(mean=(0.0,) * one.width, std=(own,) * one.width) for one, own in stds.items()}


def _rms_per_node(survey: Survey, field: Field, references: dict[int, float]) -> float:
    if not survey.summary(field).items.any():
        raise InputError(f"no graph of the training part has a value of {field.name}; choose another split or field")

    def root(_: int) -> NDArray[np.float64]:
        values, used = _labels(survey, field)
        if references:
            per_species = np.zeros(SPECIES)
            per_species[list(references)] = list(references.values())
            counts, species = species_counts(survey.store)
            values = values - (counts[used] @ per_species[species])[:, None]
        nodes = np.maximum(survey.store.sizes().nodes[used], 1)
        per_node = values / nodes[:, None]
        return np.array([np.sqrt(np.square(per_node[is_labelled(per_node, field)]).mean())])

    return float(survey.rows(1, 1, root)[0, 0])


def lost_digits(survey: Survey, field: Field, *, extensive: bool = False) -> str:
    """Return a sentence where float32 steps exceed a thousandth of the spread.

    Empty where none do. Of an ``extensive`` field the spread is that of what is left after reference energies, where
    the store has atomic numbers.
    """
    if field.dtype != "float32" or field.parity == "vector":
        return ""
    if field.on == "graph" and not field.shape:
        size, spread = survey.rows(1, 2, lambda _: _size_and_spread(survey, field, extensive))[0].tolist()
        return _digits_sentence(field, size, spread, extensive)
    summary = survey.summary(field)
    spreads = np.sqrt(summary.deviations / np.maximum(1, summary.items))
    sizes = np.hypot(summary.mean, spreads)
    sentences = (_digits_sentence(field, size, spread, False) for size, spread in zip(sizes.tolist(), spreads.tolist()))
    return next(filter(None, sentences), "")


def _size_and_spread(survey: Survey, field: Field, extensive: bool) -> NDArray[np.float64]:
    """Return root mean square and spread of training labels."""
    values, used = _labels(survey, field)
    if not len(values):
        return np.zeros(2)
    rest = values
    if extensive and ATOMIC_NUMBERS in {one.name for one in survey.store.fields()}:
        counts = species_counts(survey.store)[0][used].astype(np.float64)
        rest = values - counts @ np.linalg.lstsq(counts, values, rcond=None)[0]
    return np.array([np.sqrt(np.square(values).mean()), rest.std()])


def _digits_sentence(field: Field, size: float, spread: float, extensive: bool) -> str:
    step = float(np.spacing(np.float32(size)))
    if not 0 < spread * COARSE < step:
        return ""
    suffix = " after reference energies" if extensive else ""
    return (
        f"{field.name}: float32 numbers as large as {size:.3g} stand {step:.2g} apart, and the spread{suffix} is {spread:.2g}, so that "
        f'digits are lost; build the store with dtype = "float64" for {field.name}'
    )


def precision_notes(store: GraphStore) -> Iterator[str]:
    """Sentences on all fields of a store that have lost digits."""
    survey = Survey(store, np.arange(len(store)))
    for field in store.fields():
        if not field.classes:
            yield from filter(None, [lost_digits(survey, field, extensive=field.role == "target")])
