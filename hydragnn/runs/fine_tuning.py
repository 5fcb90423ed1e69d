"""Fine-tuning: weights, scales, reference energies, new elements, forgetting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from numpy.typing import NDArray
from torch import Tensor

from hydragnn import datasets
from hydragnn.architectures import GraphStatistics
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.places import text_of
from hydragnn.config import RunConfig, parse_config
from hydragnn.datasets import GraphStore, Normalisation, Split
from hydragnn.datasets.fit import elements_of
from hydragnn.datasets.normalisation import ELEMENTS
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import length_in_angstrom
from hydragnn.layers import FieldTokens
from hydragnn.layers.inputs import ClassEmbedding
from hydragnn.models import GraphModel, ModelDescription, TrainedModel, build_from_description, load_graph_model
from hydragnn.models.executor import Eager
from hydragnn.start import StartSettings, check_settings, difference, folder_of, kept_heads, with_digest
from hydragnn.training.evaluate import Metrics, errors_on

NOBLE_GASES = (0, 2, 10, 18, 36, 54, 86, 118)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenStart:
    """An open start: the function that a run begins with."""

    settings: StartSettings
    trained: TrainedModel
    """The start's model, with rows for new elements."""
    retained: Mapping[int, int]
    """The start's head of every head that is kept."""
    heads: Mapping[str, str]
    """``kept`` or the reason why it is new, by field."""
    new_elements: Mapping[int, int]
    """Atomic numbers that the start does not know, and those whose rows they begin with."""
    earlier: tuple[GraphStore, Split] | None
    """Data that the start was trained on, where they are at hand."""
    notes: Sequence[str]

    @property
    def description(self) -> ModelDescription:
        """Return the description of the start's model."""
        return self.trained.model.description

    def to_json(self) -> dict[str, Any]:
        """Return what a record says of the start."""
        table: dict[str, Any] = {"model": str(self.settings.model), "digest": self.settings.digest}
        table |= {"heads": dict(self.heads), "new_elements": symbols_of(self.new_elements)}
        if self.earlier is not None:
            store, split = self.earlier
            table["earlier_data"] = store.fingerprint
            table["replayed_per_epoch"] = round(self.settings.replay * len(split.train))
        return table


def symbols_of(numbers: Mapping[int, int]) -> dict[str, str]:
    """Return pairs of elements by their symbols."""
    return {chemical_symbols[one]: chemical_symbols[other] for one, other in numbers.items()}


def open_start(settings: StartSettings, model: ModelDescription, store: GraphStore, split: Split) -> OpenStart:
    """Return the start of a run; InputError where it does not fit."""
    folder = folder_of(with_digest(settings))
    trained, normalisation = load_graph_model(folder, settings.branch)
    old = trained.description = replace(trained.description, branch="")
    earlier = earlier_data(settings, folder)
    check_fits(settings, old, model)
    check_replay(settings, model, earlier)
    lengths = {length_in_angstrom(one.attributes) for one in (store, *(earlier[:1] if earlier else ()))}
    if len(lengths | ({old.close_range.angstrom} if old.close_range else set())) > 1:
        raise InputError(f"the positions of {settings.model} have another unit of length than these; convert the store")
    elements, new = known_elements(old, normalisation, earlier), {}
    if ATOMIC_NUMBERS in model.inputs and elements:
        new = {one: nearest_element(one, elements) for one in elements_of(store) if one not in elements}
    extended = extended_model(trained, new).eval().requires_grad_(False)
    retained, heads = kept_heads(old, model)
    notes = [f"the head of {field} is {word}" for field, word in heads.items() if word != "kept"]
    for one, other in symbols_of(new).items():
        notes.append(f"{one} is new to the start: its embedding begins as that of {other}")
    if earlier is None:
        notes.append(
            "forgetting is not measured: the data of the start are not where they were, or have changed; start.store names them"
        )
    elif earlier[0].fingerprint == store.fingerprint:
        held_out = np.concatenate([split.valid, split.calibration, split.test])
        if count := len(np.intersect1d(earlier[1].train, held_out)):
            notes.append(
                f"{count} graphs outside of the training part trained the start, so that their errors are too small"
            )
    return OpenStart(
        settings=settings,
        trained=TrainedModel(model=extended, normalisation=normalisation, executor=Eager(model=extended)),
        retained=retained,
        heads=heads,
        new_elements=new,
        earlier=earlier,
        notes=notes,
    )


def check_fits(settings: StartSettings, old: ModelDescription, new: ModelDescription) -> None:
    """Raise InputError for another architecture or other inputs."""
    check_settings(old.model, new.model, settings)
    more = {*new.inputs} - {*old.inputs}
    takes_more = new.architecture.takes_new_inputs and not any(new.fields[name].on == "edge" for name in more)
    for what in ("dim", "edges", *([] if takes_more and {*old.inputs} < {*new.inputs} else ["inputs"])):
        theirs, ours = getattr(old, what), getattr(new, what)
        if theirs != ours:
            raise InputError(
                f"{what} = {ours} in this run, and {theirs} in the start {settings.model}; make them equal"
            )
    for one, other in ((field, new.fields[field.name]) for field in old.input_fields):
        if words := difference(one, other):
            raise InputError(f"input {one.name} means something else in {settings.model}: {words}; convert the store")
    if lost := [name for name in old.optional_inputs if name not in new.optional_inputs]:
        problem = f"model.optional_inputs lacks {', '.join(lost)}, which graphs of the start {settings.model} may lack"
        raise InputError(f"{problem}; add them")
    if settings.freeze > old.model.num_layers:
        raise InputError(f"start.freeze = {settings.freeze}, and the model has {old.model.num_layers} layers; lower it")


def check_replay(settings: StartSettings, new: ModelDescription, earlier: tuple[GraphStore, Split] | None) -> None:
    """Raise InputError where data cannot be replayed."""
    if settings.replay and earlier is None:
        raise InputError(f"start.replay needs a run, and {settings.model} has no config.json; leave replay out")
    fields = {field.name: field for field in earlier[0].fields()} if earlier else {}
    learned = [target.field.name for target in new.targets]
    spared = {*new.optional_inputs, *learned} if any(name in fields for name in learned) else set()
    for name, field in new.fields.items() if settings.replay else ():
        words = "there is none" if name not in fields else difference(replace(fields[name], parity=field.parity), field)
        if words and not (name in spared and name not in fields):
            raise InputError(f"start.replay: {name} in the data of the start: {words}; leave replay out")


def earlier_data(settings: StartSettings, folder: Path) -> tuple[GraphStore, Split] | None:
    """Return the start's data; None where they are gone and not needed."""
    places = (folder, folder.parent) if folder.name == "model" else (folder,)
    path = next((place / "config.json" for place in places if (place / "config.json").is_file()), None)
    if path is None:
        return None
    config: RunConfig = parse_config(read_json(path), str(path)).of_branch(settings.branch)
    try:
        store = datasets.open_store(settings.store or config.data.store)
    except InputError as error:
        if settings.replay or settings.store:
            raise InputError(f"{error} (start.store says where the data of the start lie)") from error
        return None
    visible = store if config.data.edges else datasets.WithoutEdges(store)
    record = path.with_name("record.json")
    known = read_json(record) if record.is_file() else {}
    seen = known.get("branches", {}).get(settings.branch, known).get("data_hash")
    if seen not in (None, "", visible.fingerprint):  # other graphs would fall into other parts
        if settings.replay or settings.store:
            raise InputError(
                f"{text_of(settings.store or config.data.store)} holds other graphs than {settings.model} was trained on, so that its parts are unknown; "
                "say in start.store where the store of that training lies"
            )
        return None
    return visible, datasets.make_split(visible, config.split)


def with_absent(store: GraphStore, model: ModelDescription) -> GraphStore:
    """Return the store with all fields of the model; graphs lack others."""
    names = {field.name for field in store.fields()}
    absent = [field for name, field in model.fields.items() if name not in names]
    return datasets.WithAbsent(store, absent) if absent else store


def known_elements(
    old: ModelDescription, normalisation: Normalisation, earlier: tuple[GraphStore, Split] | None
) -> list[int]:
    """Return the elements that trained the start; none if unknown."""
    if old.statistics is not None and old.statistics.species:
        return [*old.statistics.species]
    if old.close_range is not None:
        return [*old.close_range.species]
    if earlier is not None and ATOMIC_NUMBERS in old.inputs:
        return elements_of(earlier[0])
    return sorted({number for references in normalisation.references.values() for number in references})


def nearest_element(number: int, elements: Sequence[int]) -> int:
    """Return the element with the least difference of group and period together.

    >>> nearest_element(42, [14, 24, 29]), nearest_element(14, [6, 8, 29])
    (24, 6)
    """

    def distance(other: int) -> tuple[int, int]:
        (group, period), (own_group, own_period) = place_in_table(other), place_in_table(number)
        return abs(group - own_group) + abs(period - own_period), abs(other - number)

    return min(elements, key=distance)


def place_in_table(number: int) -> tuple[int, int]:
    """Return group and period of an element; lanthanides have group 3.

    >>> place_in_table(1), place_in_table(2), place_in_table(42), place_in_table(82)
    ((1, 1), (18, 1), (6, 5), (14, 6))
    """
    period = next(row for row, last in enumerate(NOBLE_GASES) if number <= last)
    place = number - NOBLE_GASES[period - 1]
    return (place if place <= 2 and number != 2 else max(3, 18 + number - NOBLE_GASES[period])), period


def extended_model(model: GraphModel, new: Mapping[int, int]) -> GraphModel:
    """Return the model with rows of new elements, copies of others."""
    if not new:
        return model
    old, weights, rows = model.description, model.state_dict(), [0]
    statistics = old.statistics
    if statistics is not None and statistics.species:
        kinds = [*statistics.species]
        statistics = replace(statistics, species=tuple(sorted({*kinds, *new})))
        rows = [*(kinds.index(new.get(one, one)) for one in statistics.species), len(kinds)]
    result = build_from_description(replace(old, statistics=statistics), seed=0).to(model.node_inputs.origin.dtype)
    with torch.no_grad():
        for name, value in result.state_dict().items():
            same = weights[name].shape == value.shape
            # weights by species have a block of rows for each, and one for all others
            value.copy_(weights[name] if same else weights[name].unflatten(0, (max(rows) + 1, -1))[rows].flatten(0, 1))
        for table in tables_of_elements(result):
            table[[*new]] = table[[*new.values()]]
    return result


def tables_of_elements(model: GraphModel) -> list[Tensor]:
    """Return the embeddings of atomic numbers."""
    modules = [one for one in model.node_inputs.modules() if isinstance(one, ClassEmbedding)]
    return [one.table.weight for one in modules if one.field.name == ATOMIC_NUMBERS]


def start_normalisation(
    start: OpenStart, fitted: Normalisation, model: ModelDescription, store: GraphStore, train: NDArray[np.int64]
) -> Normalisation:
    """Return the scales with which a run begins.

    With them predictions in physical units are the start's. Inputs and kept heads have the start's scales, and new heads those of
    the new data. A derivative's scale is that of its energy times the factor between their units. Reference energies of kept heads
    are fitted on what the start's model leaves. InputError where they would be lost.
    """
    old = start.trained.normalisation
    scales, references = dict(fitted.scales), dict(fitted.references)
    scales |= {name: old.scales[name] for name in model.inputs if name in old.scales}
    targets = {target.name: target for target in model.targets}
    for number, head in enumerate(model.heads):
        target = targets[head.field]
        if number not in start.retained:
            scales |= {head.field: scales[target.total]} if target.total else {}
            continue
        if head.field in old.scales:
            scales[head.field] = old.scales[head.field]
        for name in head.derivatives.values():
            factor = fitted.scales[name].std[0] / fitted.scales[head.field].std[0]
            std = (scales[head.field].std[0] * factor,) * model.fields[name].width
            scales[name] = replace(fitted.scales[name], std=std)
        fits = getattr(start.description.heads[start.retained[number]], "references", False) is True
        if head.field in old.references and (not target.references or (fits and target.given_references)):
            raise InputError(
                f"head {head.field}: the start {start.settings.model} has {'fitted' if fits else 'given'} reference energies; say "
                "references = true to fit them on these data"
            )
        if target.given_references:
            references[head.field] = {**old.references.get(head.field, {}), **references[head.field]}
        elif target.references:
            references[head.field] = refitted_references(start, head.field, store, train)
    return Normalisation(scales=scales, references=references)


def of_earlier_data(start: OpenStart, normalisation: Normalisation, model: ModelDescription) -> Normalisation:
    """Return scales of a run for the start's data and references."""
    old = start.trained.normalisation.references
    kept = {model.heads[number].field for number in start.retained} & old.keys()
    of_fields = {name: {**normalisation.references.get(name, {}), **old[name]} for name in kept}
    return replace(normalisation, references={**normalisation.references, **of_fields})


def refitted_references(start: OpenStart, field: str, store: GraphStore, train: NDArray[np.int64]) -> dict[int, float]:
    """Return reference energies by least squares on labels minus the start's predictions.

    They stay as near to the start's as the labels allow; elements that the training part lacks keep them.
    """
    old = start.trained.normalisation.references
    begin = dict.fromkeys(elements_of(store), 0.0) | dict(old.get(field, {}))
    normalisation = replace(start.trained.normalisation, references={**old, field: begin})
    model, counts, residuals = replace(start.trained, normalisation=normalisation), [], []
    for _, batch in datasets.Loader(store, train, datasets.Budget(max_graphs=32), shuffle=False).epoch(0):
        with torch.no_grad():
            predicted = model.predict(batch)[field].tensors()["mean"].cpu().reshape(-1)
        numbers = batch.owner("node") * ELEMENTS + batch[ATOMIC_NUMBERS]
        labelled = batch.labelled(field).reshape(-1)
        counts.append(torch.bincount(numbers, minlength=len(batch) * ELEMENTS).reshape(-1, ELEMENTS)[labelled])
        residuals.append((batch[field].to(torch.float64).reshape(-1) - predicted)[labelled])
    composition = torch.cat(counts).to(torch.float64).numpy()
    present = np.flatnonzero(composition.any(axis=0)).tolist()
    change = np.linalg.lstsq(composition[:, present], torch.cat(residuals).numpy(), rcond=None)[0]
    return begin | {number: begin[number] + float(one) for number, one in zip(present, change)}


def merged_limits(start: OpenStart, model: ModelDescription) -> ModelDescription:
    """Return the description with the wider limits of both trainings."""
    old, new = start.description.close_range, model.close_range
    if old is None or new is None:
        return model
    pairs = {(a, b): length for a, b, length in new.shortest}
    pairs |= {(a, b): min(length, pairs.get((a, b), length)) for a, b, length in old.shortest}
    shortest = tuple((a, b, length) for (a, b), length in sorted(pairs.items()))
    species = tuple(sorted({*old.species, *new.species}))
    limits = replace(new, shortest=shortest, share=min(old.share, new.share), species=species)
    # each pair has the stiffness that was measured at the smaller distance
    ranked: dict[tuple[int, int], tuple[float, float, float]] = {}
    for one in (old, new):
        lengths = {(a, b): length for a, b, length in one.shortest}
        for a, b, share in one.stiffness or ():
            entry = (lengths.get((a, b), np.inf), one.share, -share)
            ranked[a, b] = min(ranked.get((a, b), entry), entry)
    if new.stiffness is not None:  # as that of a run of 0.2.0 that goes on
        limits = replace(limits, stiffness=tuple((a, b, -entry[-1]) for (a, b), entry in sorted(ranked.items())))
    return replace(model, close_range=limits)


def merged_ranges(old: GraphStatistics | None, new: GraphStatistics | None) -> GraphStatistics | None:
    """Return the start's statistics with the ranges of both trainings."""
    if old is None or new is None:
        return old
    ends = {name: (*new.ranges.get(name, span), *span) for name, span in old.ranges.items()}
    return replace(old, ranges={name: (min(span), max(span)) for name, span in ends.items()})


def load_start(model: GraphModel, start: OpenStart) -> list[str]:
    """Load the start's weights, except new heads; return names that it lacks."""
    weights, absent = start.trained.model.state_dict(), []
    with torch.no_grad():
        for name, value in model.state_dict().items():
            room, _, rest = name.partition(".")
            if room == "heads":
                number, _, rest = rest.partition(".")
                if int(number) not in start.retained:
                    continue
                name = f"heads.{start.retained[int(number)]}.{rest}"
            if name not in weights:
                absent.append(name)
            elif weights[name].shape != value.shape:
                raise InputError(
                    f"the start {start.settings.model} has {name} of shape {[*weights[name].shape]}, and this model {[*value.shape]}, since "
                    "heads read other states; take a start whose heads read the same"
                )
            else:
                value.copy_(weights[name])
    if isinstance(model.node_inputs, FieldTokens):
        model.node_inputs.begin_fields({*model.description.inputs} - {*start.description.inputs})
    return absent


def rate_factors(model: GraphModel, start: OpenStart) -> dict[str, float]:
    """Return the rate factor of every parameter by name, 0 if frozen."""
    settings, layers = start.settings, start.description.model.num_layers
    prefix = "encoder.layers.0.layers." if start.description.model.pooling else "encoder.layers."
    of_elements = tables_of_elements(model) if start.new_elements else []
    factors = {}
    for name, parameter in model.named_parameters():
        inputs = name.startswith(("node_inputs", "edge_inputs", "condition_inputs"))
        number = 0 if inputs else layers
        if name.startswith(prefix):
            number = int(name.removeprefix(prefix).split(".")[0]) + 1
        is_open = any(parameter is table for table in of_elements)
        is_frozen = number <= settings.freeze and settings.freeze > 0 and not is_open
        factors[name] = 1.0 if name.startswith("heads.") else 0.0 if is_frozen else settings.encoder_rate
    return factors


def forgetting(start: OpenStart, model: GraphModel, normalisation: Normalisation) -> dict[str, Any]:
    """Return errors on the start's test part before and after training.

    Both with the start's reference energies, since another zero of energy is nothing forgotten. Fields that only one of them predicts, or that these data lack, do not count.
    Empty where these data are not at hand, or have no test part or lack an input that is needed.
    """
    if start.earlier is None or not len(start.earlier[1].test):
        return {}
    store, test = with_absent(start.earlier[0], model.description), start.earlier[1].test
    fields = {field.name: field for field in start.earlier[0].fields()}
    if not {*model.description.required_inputs} <= fields.keys():
        return {}
    scales = of_earlier_data(start, normalisation, model.description)
    tuned = TrainedModel(model=model, normalisation=scales, executor=Eager(model=model))
    units = {target.name: target.field.unit for target in tuned.targets}
    shared = {
        one.name for one in start.trained.targets if one.name in fields and fields[one.name].unit == units.get(one.name)
    }
    zeros = dict.fromkeys(elements_of(store), 0.0) if scales.references else {}  # of energies that are not compared
    references = {name: own if name in shared else {**zeros, **own} for name, own in scales.references.items()}
    tuned = replace(tuned, normalisation=replace(scales, references=references))

    def errors_by(one: TrainedModel) -> Metrics:
        targets = [target for target in one.targets if target.name in shared]
        return errors_on(one.predict, store, test, targets, datasets.Budget(max_graphs=32))

    with torch.no_grad():
        old, new = errors_by(start.trained), errors_by(tuned)
    model.train()
    errors = {
        f"{field}/{metric}": {"before": value, "after": new[field][metric]}
        for field in old
        for metric, value in old[field].items()
        if metric != "count" and value is not None
    }
    return {"graphs": len(test), "errors": dict(sorted(errors.items()))}
