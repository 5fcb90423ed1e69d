"""Bits turned in files of every kind that stores, runs, campaigns, ensembles and predictions leave: none is silently wrong.

The files are found by walking the folders, and every kind of them (a path without its numbers) gets as many of the flips. Whatever
reads a folder reads it after each flip: it says what it said before, or refuses in a sentence.
"""

import os
import random
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest

import hydragnn
from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.settings import read_toml
from hydragnn.config import config_from_table
from hydragnn.datasets import BatchSettings, MemoryStore, check_graphs, open_store
from hydragnn.ensemble import predict_to_file
from hydragnn.ensemble.building.build import check_finished
from hydragnn.ensemble.prediction import work
from hydragnn.ensemble.prediction.work import Joiner
from hydragnn.hpo import finished_runs
from hydragnn.hpo.final import best_runs, given_runs
from hydragnn.hpo.status import campaign_status
from hydragnn.hpo.submit import submit_campaign
from hydragnn.runs import preparation, statistics_cache, train
from hydragnn.runs.folder import decisive
from hydragnn.scripts.report.collect import collect
from tests.charged_rings import RUN, SEARCH
from tests.ensemble.finished import arrays_of

GRAPHS, SIZE = 16, 5
BUILD = """
kind = "npz"
files = ["rings.npz"]
positions = "places"
edges = "pairs"
undirected = true
[[fields]]
name = "charge"
on = "node"
[[fields]]
name = "moment"
on = "graph"
unit = "D"
role = "target"
"""
JOB = """
[job]
site = "slurm"
nodes = 1
hours = 1
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the commands leave; two predictions and one of the runs were interrupted."""
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        for module in (statistics_cache, preparation):
            patch.setattr(module, "LEAST_GRAPHS", 1)
        write_inputs(folder)
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        for name in ("rings.h5", "rings.bp"):
            hydragnn.build_store(folder / "build.toml", folder / name, quiet=True)
        hydragnn.train(folder / "run.toml", folder / "run")
        train(config_of(folder), folder / "paused", until=1)
        hydragnn.submit(folder / "search.toml", folder / "campaign")
        hydragnn.search(folder / "search.toml", folder / "campaign", workers=1, resume=True)
        hydragnn.build_ensemble(folder / "campaign", folder / "ensemble", top_k=2)
        leave_predictions(folder)
        yield folder


def write_inputs(folder: Path) -> None:
    here = np.arange(SIZE)
    angle, charge = here * 2 * np.pi / SIZE, np.random.default_rng(0).random((GRAPHS, SIZE))
    np.savez(
        folder / "rings.npz",
        places=np.stack([np.cos(angle), np.sin(angle)], 1),
        pairs=np.stack([here, (here + 1) % SIZE], 1),
        charge=charge,
        moment=(charge * charge[:, (here + 1) % SIZE]).sum(1),
    )
    (folder / "build.toml").write_text(BUILD)
    (folder / "run.toml").write_text(RUN)
    (folder / "search.toml").write_text(RUN + SEARCH + JOB)
    (folder / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (folder / "sbatch").chmod(0o755)


def leave_predictions(folder: Path) -> None:
    """Leave two interrupted predictions: one of a store with a segment per batch, one of a BUILD.toml."""

    def interrupted(joiner: Joiner) -> Never:
        raise KeyboardInterrupt

    hydragnn.predict(folder / "ensemble", folder / "rings.h5", folder / "stored" / "out.h5")
    (folder / "stored" / "out.h5").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Joiner, "finish", interrupted)
        for name, seconds in (("stored", 0.0), ("built", work.KEEP_SECONDS)):
            patch.setattr(work, "KEEP_SECONDS", seconds)
            with pytest.raises(Interrupted):
                predict(folder / name)


def predict(prediction: Path) -> None:
    folder, out = prediction.parent, prediction / "out.h5"
    source = folder / {"stored": "rings.h5", "built": "build.toml"}[prediction.name]
    predict_to_file(folder / "ensemble", source, out, resume=True, batch=BatchSettings(max_graphs=6))


def config_of(folder: Path) -> Any:
    return config_from_table(read_toml(folder / "run.toml"), folder / "run.toml")


def bits(value: Any) -> str:
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return repr(value)


def graphs_in(store: Path) -> str:
    opened = open_store(store)
    numbers = np.arange(len(opened))
    check_graphs(opened, numbers, ["charge", "moment"])
    flat = MemoryStore(opened.read(numbers)).flat
    return bits([hydragnn.store_info(store), flat.node_offsets, flat.edge_offsets, sorted(flat.arrays.items())])


def predicted(model: Path) -> str:
    """What a model says about a store, to the bit."""
    store = next(place / "rings.h5" for place in model.parents if (place / "rings.h5").exists())
    found = hydragnn.load(model).predict(open_store(store))
    moment = found["moment"]
    return bits([found.status, found.domain, found.domain_scores, moment.mean, moment.std, moment.lower, moment.upper])


def trained_on(run: Path, store: Path | None = None) -> str:
    """What the rest of an interrupted training comes to, but for its time."""
    config = config_of(run.parent)
    data = config.data.model_copy(update={"store": store or config.data.store})
    record = train(config.model_copy(update={"data": data}), run, resume=store is None)
    return bits([record.curves, record.best, record.trivial, (run / "model" / "weights.safetensors").read_bytes()])


def trained_anew(store: Path) -> str:
    shutil.rmtree(store.parent / "new", ignore_errors=True)
    return trained_on(store.parent / "new", store)


def status_of(campaign: Path) -> str:
    """How the campaign stands, but for the time since."""
    return bits({**campaign_status(campaign).to_json(), "silence": None})


def members_of(campaign: Path) -> str:
    """The finished trials as members of an ensemble."""
    runs = finished_runs(campaign)
    return bits([run.name for run in runs]) + "".join(map(member, runs))


def member(run: Path) -> str:
    """A finished run as a member of an ensemble, and what it predicts."""
    check_finished(run)
    return predicted(run)


def report_of(folder: Path) -> str:
    return bits(collect(folder))


def final_trainings(campaign: Path) -> str:
    runs = given_runs(best_runs(campaign), campaign)
    return bits([(decisive(run.config.to_json()), run.work, run.scaling) for run in runs])


def next_job(campaign: Path) -> str:
    return str(submit_campaign(campaign.parent / "search.toml", campaign, resume=True, dry_run=True).text)


def searched_on(campaign: Path) -> str:
    found = hydragnn.search(campaign.parent / "search.toml", campaign, resume=True, workers=1)
    return bits({"status": found.status, "trials": found.trials, "best": found.best})


def predicted_on(prediction: Path) -> str:
    predict(prediction)
    return bits(arrays_of(prediction / "out.h5"))


Door = Callable[[Path], str]
DOORS: Mapping[str, tuple[Door, ...]] = {
    "rings.h5": (graphs_in, trained_anew),
    "rings.bp": (graphs_in, trained_anew),
    "run": (report_of, member),
    "paused": (trained_on,),
    "campaign": (status_of, report_of, members_of, final_trainings, next_job, searched_on),
    "ensemble": (predicted, report_of),
    "stored": (predicted_on,),
    "built": (predicted_on,),
}
"""What reads a folder; only the last one may change it."""


def kind_of(file: Path, folder: Path) -> str:
    """The place of a file without its numbers and hashes."""
    return re.sub(r"[0-9a-f]{16}|[0-9]+", "#", file.relative_to(folder).as_posix())


def outcomes(folder: Path) -> list[str]:
    """What every door says; an empty text where it refuses, in a sentence."""
    said = []
    for door in DOORS[folder.name]:
        try:
            said.append(door(folder))
        except InputError as error:
            assert "\n" not in str(error), error
            said.append("")
    return said


def test_flips_over_all_kinds_of_files_are_never_silent(left: Path, tmp_path: Path) -> None:
    """Files that nothing reads, such as logs, change nothing."""
    inputs = {"rings.npz", "build.toml", "run.toml", "search.toml", "sbatch"}
    assert {path.name for path in left.iterdir()} - inputs == set(DOORS)
    kinds, expected = defaultdict(list), dict[str, list[str]]()
    for name in DOORS:
        for file in sorted((left / name).rglob("*")):
            if file.is_file() and not file.is_symlink() and file.stat().st_size:
                kinds[kind_of(file, left)].append(file)
    for name in DOORS:
        shutil.copytree(left / name, tmp_path / name, symlinks=True)
        expected[name] = outcomes(left / name)
        assert all(expected[name]), name
    generator, refused, silent = random.Random(0), defaultdict(int), []
    for kind in sorted(kinds):
        file = generator.choice(kinds[kind])
        name = file.relative_to(left).parts[0]
        shutil.rmtree(left / name)
        shutil.copytree(tmp_path / name, left / name, symlinks=True)
        content = bytearray(file.read_bytes())
        place = generator.randrange(len(content))
        content[place] ^= 1 << generator.randrange(8)
        file.write_bytes(content)
        said = outcomes(left / name)
        refused[kind] += "" in said
        doors = zip(DOORS[name], expected[name], said)
        silent += [(kind, place, door.__name__) for door, before, after in doors if after not in ("", before)]
    assert not silent, silent
    assert sum(refused.values()) > len(kinds) / 2 and len(kinds) > 50
