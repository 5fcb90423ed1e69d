"""Building of a calibrated ensemble from finished runs."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.base import files
from hydragnn.base.errors import InputError, Interrupted, nearest, print_note
from hydragnn.base.places import absent_store, distinct_names, paths_of, text_of, weights_folder
from hydragnn.datasets import GraphStore, Split, open_store
from hydragnn.ensemble.building.basis import cross_validated, validated, weighted
from hydragnn.ensemble.building.evaluation import (
    HELD_OUT,
    Evaluation,
    joint_evaluation,
    part_evaluation,
    with_baselines,
)
from hydragnn.ensemble.building.held_out import Fold, Setup, calibrating_split
from hydragnn.ensemble.building.training_domain import part_scores, with_latent_spaces
from hydragnn.ensemble.domain import FALSE_ALARMS
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.estimates.moments import are_shares
from hydragnn.ensemble.manifest import Manifest, MemberEntry, checksum, write_manifest
from hydragnn.ensemble.members.member import Member, check_members, check_no_copies, load_member
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.ensemble.uses.foreign import Baseline, aligned_baseline
from hydragnn.record import FINISHED, read_record
from hydragnn.runs.folder import is_data, trained_config
from hydragnn.runs.signals import STOPPING, raise_signals
from hydragnn.training.baselines import fitted_baselines

SPACE = "free space or choose another place"
MEMBER_FILES = ("model.json", "weights.safetensors", "record.json", "config.json")


def build_ensemble(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    weights: Sequence[float] | None = None,
    by_field: bool | None = None,
    selection: Mapping[str, Any] | None = None,
    nominal: float = 0.9,
    false_alarms: float = FALSE_ALARMS,
    store: GraphStore | None = None,
    branch: str = "",
    baselines: Sequence[str] = (),
) -> Evaluation:
    """Build the ensemble ``out`` from finished runs; return its evaluation.

    Validation graphs set weights of members per field, from ``weights`` on; ``by_field`` turns that off or on, and without it
    weights that are passed stand.
    The calibration uses the calibration part only, or validation where there is none; the evaluation covers validation
    and test. Members whose splits together leave every graph out are an ensemble by
    cross-validation: members calibrate and are evaluated on graphs that they have not seen. The store is by default that
    of the runs. The folder is complete or absent. InputError where runs did not finish or do not fit together, the store
    is another one, ``false_alarms`` is no share above 0, or ``out`` exists; Interrupted after a stop signal. Of runs with branches one is named.
    Each of ``baselines`` is a function ``package.module:name`` that returns a calculator of ASE, which is evaluated beside the simple predictors.
    """
    folders = [Path(one) for one in runs]
    out = Path(out)
    if not 0 < false_alarms < 1:
        raise InputError(
            f"false_alarms is {false_alarms}; give the share of usual graphs that may be flagged, such as 0.02"
        )
    check_out(out)

    def interrupted(kind: signal.Signals) -> Interrupted:
        stands = "is complete" if (out / "ensemble.json").is_file() else "was not made; the same command begins again"
        return Interrupted(f"stopped by {kind.name}; {out} {stands}")

    with raise_signals(STOPPING, interrupted) as check, in_making(out) as making:
        members = _members(folders, weights, branch)
        store = _store_of(members[0], store)
        compared = _baselines(folders, baselines, members[0], store, check)
        split, folds = calibrating_split(members, store)
        setup = Setup(
            ensemble=with_latent_spaces(ensemble_of(members), store),
            store=store,
            split=split,
            baselines=fitted_baselines(store, split.train, members[0].model.targets, members[0].model.inputs),
            nominal=nominal,
            false_alarms=false_alarms,
        )
        check()
        learns = not folds and (weights is None if by_field is None else by_field)
        setup, valid = weighted(setup) if learns else (setup, None)
        parts = {"test": setup.outputs(split.test)} if len(split.test) else {}
        check()
        basis = cross_validated(setup, parts, folds) if folds else validated(setup, parts, valid)
        held_out = np.concatenate([fold.graphs for fold in folds] or [split.test[:0]])
        graphs_of = {"valid": split.valid, "test": split.test, HELD_OUT: held_out}
        evaluation = with_baselines(basis.evaluation, compared, store, graphs_of)
        manifest = replace(
            setup.ensemble.manifest,
            nominal=nominal,
            calibration=basis.calibrations,
            domain=basis.domain,
            data=_data(members[0], store, split, folds, out),
            selection={**(selection or {}), "diversity": basis.diversity},
        )
        _write(out, making, folders, manifest, evaluation, basis.arrays, check)
    if evaluation.caveat:
        print_note(evaluation.caveat)
    return evaluation


def _baselines(
    folders: Sequence[Path], references: Sequence[str], run: Member, store: GraphStore, check: Callable[[], None]
) -> list[Baseline]:
    """Return calculators with the zeros of the store's energies."""
    places = [*(one.resolve() for one in folders), *(Path(one.replace(":", "/")) for one in references)]
    baselines = list[Baseline]()
    for name, reference in zip(distinct_names(places)[len(folders) :], references, strict=True):
        check()
        baseline, sentence = aligned_baseline(name, reference, run, store)
        print_note(sentence)
        baselines.append(baseline)
    return baselines


def _members(runs: Sequence[Path], weights: Sequence[float] | None, branch: str) -> list[Member]:
    """Return members for these runs, with equal weights unless they are passed.

    InputError where they do not fit together.
    """
    if not runs:
        raise InputError("an ensemble needs at least one finished run; give some")
    for run in runs:
        check_finished(run)
    shares = list(weights) if weights is not None else [1.0 / len(runs)] * len(runs)
    if len(shares) != len(runs) or not are_shares(shares):
        raise InputError(
            f"weights {shares} are no shares for {len(runs)} runs; give one each, from 0 on, that add up to 1"
        )
    members = [
        load_member(run, name=name, weight=weight, branch=branch)
        for run, weight, name in zip(runs, shares, distinct_names([run.resolve() for run in runs]), strict=True)
    ]
    check_members(members)
    check_no_copies(members)
    return members


def check_finished(run: Path) -> None:
    """Raise InputError unless the run has finished with its own configuration."""
    record = read_record(run)
    if record.status == "failed":
        why = f" ({record.failure.kind}: {record.failure.message})" if record.failure else ""
        raise InputError(f"{run} failed{why} and cannot become a member; leave it out or train it again")
    if record.status not in FINISHED:
        raise InputError(
            f"{run} is {record.status} after {record.epochs} epochs and cannot become a member yet; finish it with "
            f"hydragnn train {run} --resume (a trial by resuming its search), or leave it out"
        )
    trained_config(run)


def check_out(out: Path) -> None:
    """Raise InputError where ``out`` exists and is no empty folder."""
    files.check_utf8(out)
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        kind = files.kind_of_folder(out)
        raise InputError(f"{out} exists already{kind and f' and is {kind}'}; choose another --out or delete it")


def _store_of(member: Member, store: GraphStore | None) -> GraphStore:
    """Return the store that a member was trained on; InputError for another."""
    path = member.config.data.store
    if store is None:
        if (absent := absent_store(path)) is not None:
            raise InputError(
                f"the store {absent}, which member {member.name} was trained on, is not there any more; its graphs calibrate and "
                "judge the ensemble: put it back, or say where it or a copy lies (--store PATH)"
            )
        store = open_store(path)
    if not is_data(store, member.record.data_hash):
        raise InputError(
            f"the store {text_of(path)} is not what member {member.name} was trained on (fingerprint "
            f"{store.fingerprint}, trained on {member.record.data_hash}); give the original store"
        )
    return store


def evaluate_ensemble(
    ensemble: Ensemble, store: GraphStore, graphs: Int[np.ndarray, " graphs"] | None = None
) -> Evaluation:
    """Evaluate an ensemble on labelled graphs of any store, by default all.

    The trivial predictor and simple baselines have no metrics. InputError where the store lacks an input or a label, and for a run, which has
    no calibrated uncertainty.
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
    outputs = member_outputs(ensemble.members, store, numbers, ensemble.needed(store), ensemble.manifest.simple)
    calibrations = ensemble.manifest.calibration
    scores = part_scores(ensemble, ensemble.manifest.domain, store, outputs, calibrations)
    outputs = replace(outputs, distances=scores.distances)
    part, _ = part_evaluation(ensemble, outputs, calibrations)
    return joint_evaluation(ensemble.names, {"all": outputs}, {"all": part}, ensemble.manifest.nominal)


def _data(member: Member, store: GraphStore, split: Split, folds: Sequence[Fold], out: Path) -> dict[str, Any]:
    """Return the origin of training data, with the relative store path."""
    places = [os.path.relpath(path, out.resolve()) for path in paths_of(member.config.data.store)]
    held_out = {HELD_OUT: sum(len(fold.graphs) for fold in folds)} if folds else {}
    return {
        "store": places if len(places) > 1 else places[0],
        "fingerprint": store.fingerprint,
        "graphs": len(store),
        "parts": {**split.counts, **held_out},
        "attributes": dict(store.attributes),
    }


@contextmanager
def in_making(out: Path) -> Iterator[Path]:
    """Give an empty folder beside ``out``, which it becomes at the end of the block.

    Busy where another process makes ``out``; InputError where nothing can be written.
    """
    making = out.with_name(f".{out.name}.making")
    with files.alone_in_folder(out, "makes"):
        shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
        try:
            with files.file_errors(f"cannot write {out}", SPACE):
                making.mkdir()
            yield making
            with files.file_errors(f"cannot write {out}", SPACE):
                files.rename_all({making: out})
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _write(
    out: Path,
    making: Path,
    runs: Sequence[Path],
    manifest: Manifest,
    evaluation: Evaluation,
    arrays: Mapping[str, NDArray[Any]],
    check: Callable[[], None],
) -> None:
    """Fill the folder that becomes ``out``, unless ``check`` raises."""
    with files.file_errors(f"cannot write {out}", SPACE):
        entries: list[MemberEntry] = []
        for run, entry in zip(runs, manifest.members, strict=True):
            folder = making / entry.folder
            folder.mkdir(parents=True)
            for name in MEMBER_FILES:
                source = weights_folder(run) / name if name in ("model.json", "weights.safetensors") else run / name
                shutil.copyfile(source, folder / name)
            entries.append(replace(entry, checksums={name: checksum(folder / name) for name in MEMBER_FILES}))
        write_manifest(replace(manifest, members=tuple(entries)), making)
        files.write_sealed(making / "evaluation.json", evaluation.to_json())
        content = BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        files.write_atomically(making / "evaluation.npz", content.getvalue())
        check()
