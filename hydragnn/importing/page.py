"""Import of files of the public HydraGNN, and its page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as member
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Any

import pydantic

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json, write_atomically, write_json
from hydragnn.base.shown import Shown
from hydragnn.datasets import GraphStore, open_store
from hydragnn.ensemble.building.build import build_ensemble, check_out, in_making
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.importing.configuration import import_configuration, toml
from hydragnn.importing.data import cause_of_nan, with_data, write_data
from hydragnn.importing.diagnosis import Finding, diagnose, diagnose_configuration
from hydragnn.importing.evidence import case_of
from hydragnn.importing.finding import find_data, find_models
from hydragnn.importing.runs import TUNE, Imported, imported_models, parts_of, write_run, write_tuning
from hydragnn.importing.trials import RESULTS, best, losses_of, results_text
from hydragnn.importing.variables import Source
from hydragnn.training.evaluate import Metrics

WRITERS = {
    "2024": "the code of the ensemble of 2024",
    "v4.0": "v4.0 or sc25",
    "v4.0+": "v4.0 or later",
    "v5.0": "v5.0 or the code of the runs of 2026",
    "main": "main of August 2026",
    "variables": "pull request 527",
}
"""Versions by generation; some leave the same files."""
STORED = "import.json"
"""File with the page, in a run or ensemble."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One imported model."""

    run: str
    file: str
    kind: str
    generation: str
    evidence: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    test: Metrics
    """Errors on the writer's test part, in units of the data."""
    notes: Sequence[str]
    findings: Sequence[Finding] = ()

    @property
    def writer(self) -> str:
        """Return what it is, and the version that wrote it."""
        return f"{self.kind}, written by {WRITERS.get(self.generation, self.generation)} of the public HydraGNN"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of what is known."""
        yield "evidence", "; ".join(self.evidence)
        yield "reads", ", ".join(self.inputs)
        yield "predicts", ", ".join(self.outputs)
        for name, errors in self.test.items():
            pairs = [f"{key} {value:.6g}" for key in ("mae", "rmse") if (value := errors[key]) is not None]
            yield f"test part, {name}", ", ".join(pairs)
        yield from (("note", note) for note in self.notes)
        for one in self.findings:
            if one.verdict == "suffered":
                yield f"suffered {one.number}", "; ".join(filter(None, (f"{one.name}: {one.evidence}", one.size)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Import(Shown):
    """Runs that were written, what they are, and what to do next."""

    out: Path
    source: str
    models: Sequence[Page]
    ensemble: str = ""
    data: str = ""
    left_out: Sequence[str] = member(default_factory=list)
    next: Sequence[str] = member(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "out": str(self.out)}

    def __str__(self) -> str:
        return f"{self.out}: {len(self.models)} models of the public HydraGNN"

    def lines(self) -> Iterator[str]:
        """Yield the page as text."""
        for one in self.models:
            yield f"{one.run or self.out.name}: {one.writer}"
            yield from (f"  {name}: {value}" for name, value in one.facts())
            for verdict in ("cannot be told", "not suffered"):
                if numbers := [str(own.number) for own in one.findings if own.verdict == verdict]:
                    yield f"  {verdict}: {', '.join(numbers)} (docs/silent-failures.md; all evidence with --json)"
        yield from (f"note: {sentence}" for sentence in self.left_out)
        yield f"data: {self.data}"
        yield from (f"next: {command}" for command in self.next)


def read_page(folder: Path) -> Import | None:
    """Return the page of an import; None for others."""
    place = folder / STORED
    try:
        return pydantic.TypeAdapter(Import).validate_python(read_json(place)) if place.exists() else None
    except pydantic.ValidationError as error:
        raise InputError(f"{place} is damaged ({error.errors()[0]['msg']}); import again, or remove it") from error


def import_folder(path: Path, out: Path, top_k: int | None = None) -> Import:
    """Write models as runs, and several as an ensemble.

    All, or the ``top_k`` of a search. InputError, with nothing written, where no model can be read.
    """
    check_out(out)
    if path.suffix == ".json":
        return _import_configuration(path, out)
    models, failures, checkpoints = list[Imported](), list[InputError](), find_models(path)
    losses = losses_of(checkpoints, path)
    for files in checkpoints if top_k is None else best(checkpoints, losses, top_k):
        try:
            models += imported_models(files)
        except InputError as error:
            failures.append(error)
    if not models:
        raise failures[0]
    if top_k is not None and (lacking := len(checkpoints) - len(losses)) > 0:
        failures.append(InputError(f"{lacking} models without a validation loss were no candidates"))
    pages, stores, names = list[Page](), list[Store](), list[str]()
    for one in models:
        numbered = (f"{one.name}-{number}" for number in count(2))
        names.append(next(name for name in chain([one.name], numbered) if name not in ("ensemble", *names)))
    with in_making(out) as making:
        alone = len(models) == 1
        for model, name in zip(models, names):
            model, store = _with_data(model, making, stores)
            stores += [store] if store not in stores else []
            run = making if alone else making / name
            try:
                errors = write_run(model, store.path, run, out)
            except InputError as error:
                failures.append(InputError(f"{error}{'' if store.place is None else cause_of_nan(model, store.place)}"))
                continue
            write_tuning(model, store.path, run)
            findings = diagnose(case_of(model, run, store.path, store.place))
            pages.append(_page(model, "" if alone else name, errors, store, findings))
        if not pages:
            raise failures[0]
        ensemble = "" if alone else _ensemble(making, [page.run for page in pages], stores, failures)
        if trials := results_text(losses):
            write_atomically(making / RESULTS, trials)
        result = Import(
            out=out,
            source=str(path.resolve()),
            models=pages,
            ensemble=ensemble,
            data="; ".join(f"{out / one.path.name}: {one.words}" if one.path else one.words for one in stores),
            left_out=[str(error) for error in failures],
            next=[*_next(out, pages, ensemble, bool(trials))],
        )
        for page in pages:
            write_json(making / page.run / STORED, replace(result, models=[page]).to_json())
        if ensemble:
            write_json(making / ensemble / STORED, result.to_json())
    return result


def _import_configuration(path: Path, out: Path) -> Import:
    """Write a configuration as a run file and a build file."""
    files = import_configuration(path)
    with in_making(out) as making:
        write_atomically(making / "run.toml", toml(files.run, files.notes))
        write_atomically(making / "build.toml", toml(files.build))
    builds, branches = f"hydragnn data build {quote(str(out / 'build.toml'))}", files.run.get("branches", [])
    commands = [
        f"{builds} --set {quote('files=' + json.dumps([file], ensure_ascii=False))} --out {quote(str(out / branch['data']['store']))}"
        for file, branch in zip(files.build["files"], branches)
    ] or [f"{builds} --out {quote(str(out / files.run['data']['store']))}"]
    notes = [*files.notes, *diagnose_configuration(Source(read_json(path), path))]
    commands.append(f"hydragnn train {quote(str(out / 'run.toml'))} --out RUN")
    words = "a configuration names them"
    return Import(out=out, source=str(path.resolve()), models=(), data=words, left_out=notes, next=commands)


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Graphs of models that read them alike."""

    words: str
    """Origin of the graphs, or the reason for none."""
    key: tuple[Any, ...] = ()
    place: Path | None = None
    path: Path | None = None
    notes: tuple[str, ...] = ()


def _with_data(model: Imported, making: Path, stores: list[Store]) -> tuple[Imported, Store]:
    """Return a model as its data have it, and their store."""
    try:
        place = find_data(model.files, model.branch)
    except InputError as error:
        return model, Store(words=str(error))
    if place is None:
        return model, Store(words="none beside the checkpoint, so that nothing is measured")
    try:
        own, source, graphs = with_data(model, place)
        key = (place, own.branch, repr(own.reading), own.settings.radius, own.settings.max_neighbours)
        if (same := next((one for one in stores if one.key == key), None)) is not None:
            return own, same
        path = making / f"data{len(stores) + 1 if stores else ''}.h5"
        write_data(source, graphs, own, path)
        notes = tuple(_scales(source, own))
        words = f"{len(graphs)}{f' of {len(source)}' * (len(graphs) < len(source))} graphs of {place}"
        return own, Store(words=words, key=key, place=place, path=path, notes=notes)
    except InputError as error:
        return model, Store(words=f"{place} is left out: {error}", place=place)


def _scales(source: GraphStore, model: Imported) -> Iterator[str]:
    """Yield what the writer did to values and no file undoes."""
    yield from (f"{key} of the set: {why}" for key, why in source.attributes.get("left_out", {}).items())
    if model.reading.references:
        yield "energies are total: those of elements, which the set's labels are without, are added to labels and predictions"
    elif "energy_linear_regression_coeff" in source.attributes:
        yield (
            "energies are without the references that the set holds: add energy_linear_regression_coeff[Z - 1] of every "
            "atom for total energies"
        )
    scaled = [name for name in ("minmax_node_feature", "minmax_graph_feature") if name in source.attributes]
    if source.attributes.get("edge_attr_unit") and not parts_of(source):
        yield "no file tells the writer's parts of these raw files, which were drawn anew in every run: nothing is measured"
    if scaled and not any(one.span for one in model.reading.variables):
        yield f"the set was scaled ({', '.join(scaled)}), which config.json does not undo: values are in the scaled units"


def _page(model: Imported, run: str, errors: Metrics, store: Store, findings: Sequence[Finding]) -> Page:
    settings, reading, notes = model.settings, model.reading, [*store.notes]
    if store.path is None and any(one.field.name == ATOMIC_NUMBERS for one in reading.inputs):
        notes.append("a column is the atomic number by its name; without data nothing tells whether it was scaled")
    if store.path is None and reading.edge_lengths:
        notes.append("edge features are lengths in Angstrom; without data nothing tells whether they were scaled")
    return Page(
        run=run,
        file=str(model.files.checkpoint),
        kind=settings.kind,
        generation=settings.generation,
        evidence=settings.evidence,
        inputs=[one.field.name for one in reading.inputs],
        outputs=[one.field.name for one in reading.outputs],
        test=errors,
        notes=notes,
        findings=findings,
    )


def _ensemble(making: Path, names: Sequence[str], stores: Sequence[Store], failures: list[InputError]) -> str:
    """Build the ensemble of all models; empty where there is none."""
    try:
        if len(stores) != 1 or stores[0].path is None:
            raise InputError(
                "no ensemble: its members need one set of graphs, with validation graphs that calibrate it"
            )
        build_ensemble([making / name for name in names], making / "ensemble", store=open_store(stores[0].path))
    except InputError as error:
        failures.append(error)
        return ""
    return "ensemble"


def _next(out: Path, pages: Sequence[Page], ensemble: str, trials: bool) -> Iterator[str]:
    """Yield commands that go on from here."""
    model = quote(str(out / (ensemble or pages[0].run)))
    yield f"hydragnn predict {model} STRUCTURES.xyz --out predictions.h5"
    yield f"hydragnn report {model}"
    yield f"hydragnn train {quote(str(out / pages[0].run / TUNE))} --out TUNED"
    if trials:
        table = quote(f"search.warm_start={json.dumps([str(out.resolve() / RESULTS)], ensure_ascii=False)}")
        yield f"hydragnn search CAMPAIGN.toml --set {table} --out CAMPAIGN"
