"""Runs that pool, from the files of a store to the predictions of an ensemble."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.io import write

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.conformance.cases import small_settings
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import (
    CLUSTERS,
    Field,
    GraphBatch,
    clusters_field,
    coarse,
    concatenate,
    levels,
    with_contracted_levels,
)
from hydragnn.models import build_model, load_model, parse_head
from hydragnn.runs import train
from hydragnn.scripts import api
from tests.graphs.geometry import cells

HEAD = {"kind": "scalar", "field": "answer"}
FIELDS = (Field(name="load", on="node"), Field(name="answer", on="node", role="target"))


def problem(seed: int) -> GraphBatch:
    """Cells that each ask for the mean load of their whole graph: farther away than a few layers reach."""
    graph = with_contracted_levels(cells(120, seed=seed), 3)
    load = torch.from_numpy(np.random.default_rng(seed).normal(np.sin(seed), 1.0, 120)).float()
    return graph.with_fields({"load": load, "answer": load.mean().expand(120).clone()}, fields=FIELDS)


@pytest.fixture(scope="module")
def far() -> MemoryStore:
    return MemoryStore([problem(seed) for seed in range(24)])


def config_for(kind: str = "gin", **model: Any) -> RunConfig:
    table = {"data": {"store": "in memory"}, "split": {"train": 0.7, "valid": 0.3}, "batch": {"max_graphs": 4}}
    model = {"kind": kind, "hidden_dim": 8, "num_layers": 4, **model}
    training = {"epochs": 12, "learning_rate": 0.01, "checkpoint_seconds": 0}
    return RunConfig.parse({**table, "model": model, "heads": [{**HEAD, "hidden_dims": [8]}], "train": training})


POOLING: dict[str, Any] = {"pooling": {"levels": 3}}


def test_with_levels_a_network_sees_what_is_far_away(far: MemoryStore, tmp_path: Path) -> None:
    kind, units, error = "egnn", {"cutoff": 0.6, "radial": "sinc"}, "valid/answer/rmse"
    pooled = train(config_for(kind, **units, **POOLING), tmp_path / "pooled", store=far)
    plain = train(config_for(kind, **units), tmp_path / "plain", store=far)
    assert pooled.best[error] < 0.7 * plain.best[error]
    assert pooled.best[error] < 0.5 * pooled.trivial[error]


def test_the_cluster_numbers_are_no_feature(far: MemoryStore, tmp_path: Path) -> None:
    """Numbered in another way the same clusters give the same predictions, and models that do not pool do not read them."""
    settings, heads = small_settings("gin", num_layers=3, pooling={"levels": 2}), [parse_head(HEAD)]
    fields = [*FIELDS, clusters_field(3)]
    model = build_model(settings, heads, fields, inputs=["load", CLUSTERS], dim=2, seed=0).double()
    batch = concatenate([problem(seed) for seed in range(3)]).to(dtype=torch.float64)
    other = batch.with_fields({CLUSTERS: 1000 - 7 * batch[CLUSTERS]})
    torch.testing.assert_close(model(other)["answer"].mean, model(batch)["answer"].mean)
    train(config_for(), tmp_path / "plain", store=far, until=1)
    assert CLUSTERS not in (tmp_path / "plain" / "model" / "model.json").read_text()


BUILD = """
kind = "ase"
files = ["molecules.xyz"]
cutoff = 3.0

[[fields]]
name = "energy"
on = "graph"
role = "target"

[coarsening]
levels = 2
"""


def test_files_get_levels_as_their_builds_say_in_training_and_in_prediction(tmp_path: Path) -> None:
    molecules = [molecule(name) for name in ("CH3CH2OH", "C6H6", "CH3COCH3", "C2H6")] * 3
    for number, atoms in enumerate(molecules):
        atoms.rattle(0.05, seed=number)
        atoms.info["energy"] = float(len(atoms))
    write(tmp_path / "molecules.xyz", molecules)
    (tmp_path / "BUILD.toml").write_text(BUILD)
    api.build_store(tmp_path / "BUILD.toml", tmp_path / "store.h5")
    graphs = open_store(tmp_path / "store.h5").read(range(12))
    assert torch.equal(with_contracted_levels(graphs.with_fields(drop=[CLUSTERS]), 2)[CLUSTERS], graphs[CLUSTERS])
    table = config_for("schnet", num_layers=3, pooling={"levels": 2}).to_json()
    table["data"]["store"] = str(tmp_path / "store.h5")
    table["heads"] = [{"kind": "scalar", "field": "energy", "pool": "sum"}]
    for seed in (0, 1):
        table["train"] = {"epochs": 1, "seed": seed}
        train(RunConfig.parse(table), tmp_path / f"run-{seed}")
    build_ensemble([tmp_path / "run-0", tmp_path / "run-1"], tmp_path / "ensemble")
    ensemble = api.load(tmp_path / "ensemble")
    of_atoms = ensemble.predict(molecules[:4])["energy"]
    of_graphs = ensemble.predict(graphs.select(range(4)))["energy"]
    torch.testing.assert_close(of_atoms.mean, of_graphs.mean)


def test_a_file_with_a_crystal_has_levels_by_contraction_alone(tmp_path: Path) -> None:
    structures = [molecule("C2H6"), bulk("Cu", cubic=True)]
    for atoms in structures:
        atoms.info["energy"] = 1.0
    write(tmp_path / "molecules.xyz", structures)
    for words, text in (
        (r"coarsening\.by is gone: contraction makes all levels.*with_clusters", 'by = "voxels"'),
        (r"coarsening\.side is gone", "side = 2.0"),
    ):
        (tmp_path / "BUILD.toml").write_text(BUILD.replace("levels = 2", f"levels = 2\n{text}"))
        with pytest.raises(InputError, match=words):
            api.build_store(tmp_path / "BUILD.toml", tmp_path / "store.h5")
    (tmp_path / "BUILD.toml").write_text(BUILD)
    api.build_store(tmp_path / "BUILD.toml", tmp_path / "store.h5")
    assert open_store(tmp_path / "store.h5").read([1])[CLUSTERS][:, 0].tolist() == [0, 0, 1, 1]


def test_a_store_without_levels_is_refused_before_anything_starts(tmp_path: Path) -> None:
    plain = MemoryStore([problem(seed).with_fields(drop=[CLUSTERS]) for seed in range(6)])
    words = r"model\.pooling needs the node field clusters of levels; give the BUILD\.toml"
    with pytest.raises(InputError, match=words):
        train(config_for(**POOLING), tmp_path / "run", store=plain)


def test_members_make_levels_of_a_batch_once(far: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = coarse.next_level

    def counted(finer: coarse.Finer) -> tuple[coarse.Level, coarse.Finer]:
        made.append(finer.graphs)
        return make(finer)

    train(config_for("schnet", **POOLING), tmp_path / "run", store=far, until=1)
    monkeypatch.setattr(levels, "next_level", counted)
    batch, member = far.read(range(6)), load_model(tmp_path / "run" / "model")
    first, second = member.predict(batch)["answer"].mean, member.predict(batch)["answer"].mean
    assert sum(made) == POOLING["pooling"]["levels"] * 6 and torch.equal(first, second)
