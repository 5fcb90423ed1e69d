"""From finished runs to one calibrated ensemble in a folder that moves."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.datasets import Budget, GraphStore, Split, WithoutEdges, open_store
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.estimates import AnyCalibration
from hydragnn.ensemble.evaluation import Evaluation, Part, part_evaluation
from hydragnn.ensemble.held_out import joint_split
from hydragnn.ensemble.manifest import Manifest, MemberEntry, checksum, write_manifest
from hydragnn.ensemble.member_outputs import MemberOutputs, member_outputs
from hydragnn.ensemble.members import Member, load_run
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.selection import Evidence
from hydragnn.ensemble.training_domain import flag_evaluation, training_domain
from hydragnn.errors import InputError, nearest
from hydragnn.files import flush_directory, is_free, kind_of_folder, replace_atomically, write_json
from hydragnn.models import Target
from hydragnn.training import errors_on, trivial_predictor

MEMBER_FILES = ("model.json", "weights.safetensors", "record.json", "config.json")


def build_ensemble(
    runs: Sequence[Path],
    out: Path,
    *,
    weights: Sequence[float] | None = None,
    selection: Mapping[str, Any] | None = None,
    nominal: float = 0.9,
    store: GraphStore | None = None,
    others: Mapping[str, GraphStore] | None = None,
    branch: str = "",
) -> Evaluation:
    """Make the folder ``out`` from finished runs: members, calibration, training domain, evaluation; gives the latter.

    The calibration sees the calibration part only, or validation where there is none; the evaluation covers validation, test
    and every store in ``others``. The store is the runs' own unless given. The folder is complete or absent. InputError where runs do not fit together, the
    store is not the one they were trained on, or ``out`` is there already. Of runs with several branches, the ensemble is of
    the one that is named.
    """
    check_out(out)
    if not runs:
        raise InputError("an ensemble needs at least one finished run; give some")
    weights = list(weights) if weights is not None else [1.0 / len(runs)] * len(runs)
    members = [
        replace(load_run(run, weight=weight, branch=branch), name=name)
        for run, weight, name in zip(runs, weights, distinct_names(runs), strict=True)
    ]
    raw = ensemble_of(members)
    store = store or open_store(members[0].config.data.store)
    split = _split(members, store)
    inputs = raw.needed(store)

    valid = member_outputs(members, store, split.valid, inputs)
    apart = member_outputs(members, store, split.calibration, inputs) if len(split.calibration) else None
    calibrations = with_calibration(raw, valid, apart, nominal)
    domain = training_domain(raw, store, split, [valid, *([apart] if apart else [])], calibrations)
    parts = {"valid": (store, valid)}
    if len(split.test):
        parts["test"] = (store, member_outputs(members, store, split.test, inputs))
    for name, other in (others or {}).items():
        parts[name] = (other, member_outputs(members, other, np.arange(len(other)), raw.needed(other)))
    evaluation, arrays = evaluate_parts(raw, parts, calibrations, store, split, nominal)
    flagged, flags = flag_evaluation(raw, domain, parts, calibrations)
    evaluation = replace(evaluation, domain=flagged)

    manifest = replace(
        raw.manifest,
        nominal=nominal,
        calibration=calibrations,
        domain=domain,
        data=_data(members[0], store, split, out),
        selection={**(selection or {}), "diversity": _diversity(raw, valid)},
    )
    _write(out, runs, manifest, evaluation, arrays | flags)
    return evaluation


def check_out(out: Path) -> None:
    """Raise InputError where something is at ``out`` already; an empty folder will do."""
    if not is_free(out):
        kind = kind_of_folder(out)
        raise InputError(f"{out} exists already{kind and f' and is {kind}'}; choose another --out or delete it")


def distinct_names(runs: Sequence[Path]) -> list[str]:
    """The names of the runs' folders, with a number where two are the same.

    >>> distinct_names([Path("a/0003"), Path("b/0003"), Path("b/0001")])
    ['0003', '0003-2', '0001']
    """
    names: list[str] = []
    for run in runs:
        name, number = run.resolve().name, 1
        while name in names:
            number += 1
            name = f"{run.resolve().name}-{number}"
        names.append(name)
    return names


def _split(members: Sequence[Member], store: GraphStore) -> Split:
    """The split that the members were trained with; InputError where the store is another one."""
    member = members[0]
    known = {store.fingerprint, WithoutEdges(store).fingerprint}
    if member.record.data_hash not in known:
        raise InputError(
            f"the store {member.config.data.store} is not what member {member.name} was trained on (fingerprint "
            f"{store.fingerprint}, trained on {member.record.data_hash}); give the original store"
        )
    return joint_split(members, store)


def with_calibration(
    ensemble: Ensemble, valid: MemberOutputs, apart: MemberOutputs | None, nominal: float
) -> dict[str, AnyCalibration]:
    """The calibration of every field on graphs ``apart`` from validation; on validation where none of them is labelled."""
    result: dict[str, AnyCalibration] = {}
    for target in ensemble.targets:
        own = apart.labelled(target, "calibration") if apart else None
        result[target.name] = estimates_of(target).calibration(
            target, valid.labelled(target, "valid"), own or None, ensemble.weights, nominal
        )
    return result


def evaluate_parts(
    ensemble: Ensemble,
    parts: Mapping[str, tuple[GraphStore, MemberOutputs]],
    calibrations: Mapping[str, AnyCalibration],
    store: GraphStore,
    split: Split,
    nominal: float,
) -> tuple[Evaluation, dict[str, NDArray[Any]]]:
    """The evaluation of all parts, and the rows behind it as arrays; the trivial predictor is fitted on the training part."""
    model = ensemble.members[0].model
    trivial = trivial_predictor(store, split.train, model.targets, model.normalisation)
    names = [member.name for member in ensemble.members]
    metrics: dict[str, Part] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for part, (where, outputs) in parts.items():
        fine = np.setdiff1d(outputs.graphs, np.array(sorted(outputs.failures), dtype=np.int64))
        baseline = errors_on(trivial, where, fine, model.targets, Budget(max_graphs=1024)) if len(fine) else {}
        metrics[part], rows = part_evaluation(
            ensemble.targets, outputs, names, ensemble.weights, calibrations, baseline
        )
        arrays |= {f"{part}/{name}": values for name, values in rows.items()}
    return _evaluation(names, {part: outputs for part, (_, outputs) in parts.items()}, metrics, nominal), arrays


def _evaluation(
    names: Sequence[str], parts: Mapping[str, MemberOutputs], metrics: Mapping[str, Part], nominal: float
) -> Evaluation:
    graphs = sum(len(outputs.graphs) for outputs in parts.values())
    return Evaluation(
        nominal=nominal,
        parts=metrics,
        failed={part: outputs.failures for part, outputs in parts.items()},
        seconds_per_graph={
            name: sum(outputs.seconds[i] for outputs in parts.values()) / graphs for i, name in enumerate(names)
        },
    )


def evaluate_ensemble(
    ensemble: Ensemble, store: GraphStore, graphs: Int[NDArray[np.int64], " graphs"] | None = None
) -> Evaluation:
    """Metrics of every field on the labelled graphs of any store (all, or those with these numbers), without the trivial predictor's.

    InputError where the store lacks an input or a label, and for a run, which has no calibrated uncertainty.
    """
    if not ensemble.manifest.calibration:
        raise InputError(
            "a run alone has no calibrated uncertainty; make an ensemble of it with build_ensemble([RUN], OUT)"
        )
    numbers = np.arange(len(store)) if graphs is None else graphs
    names = [field.name for field in store.fields()]
    for field in ensemble.fields:
        if field.name not in names:
            raise InputError(f"the store has no labels {field.name}; {nearest(field.name, names)}")
    outputs = member_outputs(ensemble.members, store, numbers, ensemble.needed(store))
    members = [member.name for member in ensemble.members]
    part, _ = part_evaluation(ensemble.targets, outputs, members, ensemble.weights, ensemble.manifest.calibration, {})
    return _evaluation(members, {"all": outputs}, {"all": part}, ensemble.manifest.nominal)


def evidence_of(outputs: MemberOutputs, targets: Sequence[Target]) -> dict[str, Evidence]:
    """What all members said about labelled items, for selection and diversity."""
    result: dict[str, Evidence] = {}
    for target in targets:
        use = outputs.usable(target)
        result[target.name] = estimates_of(target).evidence(
            target, outputs.labels[target.name][use], outputs.of(target, use)
        )
    return result


def _diversity(ensemble: Ensemble, valid: MemberOutputs) -> dict[str, dict[str, float]]:
    return {name: one.diversity(ensemble.weights) for name, one in evidence_of(valid, ensemble.targets).items()}


def _data(member: Member, store: GraphStore, split: Split, out: Path) -> dict[str, Any]:
    """Where training data came from; the place of the store counts from the ensemble's folder."""
    return {
        "store": os.path.relpath(member.config.data.store, out.resolve()),
        "fingerprint": store.fingerprint,
        "graphs": len(store),
        "parts": split.counts,
        "attributes": dict(store.attributes),
    }


def _write(
    out: Path,
    runs: Sequence[Path],
    manifest: Manifest,
    evaluation: Evaluation,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Fill a folder beside ``out`` and give it its name at the end."""
    making = out.with_name(f".{out.name}.making")
    try:
        shutil.rmtree(making, ignore_errors=True)
        entries: list[MemberEntry] = []
        for run, entry in zip(runs, manifest.members):
            folder = making / entry.folder
            folder.mkdir(parents=True)
            for name in MEMBER_FILES:
                source = run / "model" / name if name in ("model.json", "weights.safetensors") else run / name
                shutil.copyfile(source, folder / name)
            entries.append(replace(entry, checksums={name: checksum(folder / name) for name in MEMBER_FILES}))
        write_manifest(replace(manifest, members=tuple(entries)), making)
        write_json(making / "evaluation.json", evaluation.to_json())
        _save_arrays(making / "evaluation.npz", arrays)
        making.rename(out)
        flush_directory(out.parent)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror or error}; free space or choose another place"
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())

    replace_atomically(path, save)
