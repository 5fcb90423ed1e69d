"""Stores as a stranger, a bad disk or a careless script might leave them, by count: every door says what is wrong in a sentence, or gives what is there.

No door ends in another exception, waits for ever, takes all memory, or computes with other graphs than the store's.
"""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Never

import h5py
import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, check_store, convert_store, disk, open_store
from hydragnn.datasets.fingerprint import graph_digests
from hydragnn.datasets.manifest import checksum
from hydragnn.datasets.store import read_checked
from hydragnn.graphs import Field
from tests.charged_rings import ring
from tests.ensemble.finished import arrays_of

FIELDS = (
    Field(name="charge", on="node"),
    Field(name="kind", on="node", classes=3, dtype="int64"),
    Field(name="moment", on="graph", unit="D", role="target"),
)
CONFIG = {
    "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 4, "envelope": "none"},
    "heads": [{"kind": "scalar", "field": "moment"}],
    "train": {"epochs": 1},
}
Change = Callable[[Path], None]
GRAPHS = 12
SECONDS = 30
"""More than any door takes."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound store of both backends and a model trained on it."""
    folder = tmp_path_factory.mktemp("given")
    for name in ("rings.h5", "rings.bp"):
        with StoreWriter(folder / name, FIELDS, dim=2) as writer:
            for number in range(GRAPHS):
                graph = ring(4 + number % 3, np.random.default_rng(number))
                writer.write(graph.with_fields({"kind": torch.arange(graph.num_nodes) % 3}, fields=[FIELDS[1]]))
    hydragnn.train({**CONFIG, "data": {"store": str(folder / "rings.h5")}}, folder / "run")
    return folder


def saying(key: str, value: Any, *where: Any) -> Change:
    """The manifest says something else at a place; without its checksum, as whoever changes it on purpose leaves it."""

    def change(store: Path) -> None:
        table = json.loads((store / "manifest.json").read_text())
        table.pop("checksum", None)
        here = table
        for step in where:
            here = here[step]
        here[key] = value
        (store / "manifest.json").write_text(json.dumps(table))

    return change


def text(content: bytes) -> Change:
    return lambda store: (store / "manifest.json").write_bytes(content) and None


def holding(edit: Callable[[h5py.File], None]) -> Change:
    """The file of an HDF5 store holds something else, and its digests and the manifest are forged to fit."""

    def change(store: Path) -> None:
        (part,) = store.glob("part-*.h5")
        made: list[Any] = []
        with h5py.File(part, "r+") as file:
            edit(file)
        resealed(store, part)
        with pytest.MonkeyPatch.context() as patch, suppress(Exception):
            patch.setattr(disk, "graph_digests", lambda flat: made.append(graph_digests(flat)) or made[-1])
            read_checked(open_store(store), np.arange(GRAPHS))
        if made:
            with h5py.File(part, "r+") as file:
                file["digests"][...] = made[-1]
            resealed(store, part)

    return change


def resealed(store: Path, part: Path) -> None:
    whole = checksum(part)
    saying("files", {part.name: {"bytes": whole.bytes, "blake2b": whole.blake2b}}, "parts", 0)(store)


def put(name: str, place: Any, value: Any) -> Change:
    return holding(lambda file: file[name].__setitem__(place, value))


def instead(name: str, make: Callable[[h5py.File, Any], Any]) -> Change:
    """Something else is under the name of an array; ``make`` is given what was there."""

    def edit(file: h5py.File) -> None:
        before = file[name][...]
        del file[name]
        made = make(file, before)
        if made is not None:
            file[name] = made

    return holding(edit)


def dataset(name: str, **how: Any) -> Change:
    return instead(name, lambda file, before: bool(file.create_dataset(name, data=before, **how)) and None)


def replaced(name: str, plant: Callable[[Path], object]) -> Change:
    def change(store: Path) -> None:
        (path,) = store.glob(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        plant(path)

    return change


def plugin_filter(file: h5py.File, before: Any) -> None:
    """An array that only a library of somebody else could unpack."""
    kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kind.set_chunk((8,))
    kind.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, as nobody has it here
    array = h5py.h5d.create(file.id, b"senders", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple(before.shape), kind)
    for start in range(0, len(before), 8):
        array.write_direct_chunk((start,), bytes(20))


def huge(file: h5py.File, before: Any) -> None:
    """An array of a petabyte that takes no place on the disk."""
    file.create_dataset("positions", shape=(10**14, 2), dtype="f8", chunks=(1024, 2))


DAMAGED: dict[str, Change] = {
    # what the manifest says
    "no JSON": text(b"{"),
    "no text": text(b"\xff\xfe{}"),
    "nothing": text(b""),
    "a list": text(b"[]"),
    "nested without end": text(b"[" * 100_000),
    "a number of ten thousand digits": text(b'{"format": ' + b"9" * 10_000 + b"}"),
    "another format": saying("format", "other"),
    "a later version": saying("version", 99),
    "a backend that there is not": saying("backend", "pickle"),
    "the other backend": saying("backend", "adios2"),
    "no dimension": saying("dim", None),
    "many dimensions": saying("dim", 10**9),
    "another dimension": saying("dim", 3),
    "no fields": saying("fields", None),
    "fields without names": saying("fields", [{}]),
    "a field that comes twice": saying("fields", [FIELDS[0].to_json()] * 2),
    "a field on nothing": saying("on", "moon", "fields", 0),
    "a field of another shape": saying("shape", [3], "fields", 0),
    "a field without end": saying("shape", [10**9, 10**9], "fields", 0),
    "a field of another dtype": saying("dtype", "float64", "fields", 0),
    "a field of objects": saying("dtype", "object", "fields", 0),
    "a field of more classes than there are numbers": saying("classes", 10**30, "fields", 1),
    "a field of fewer classes": saying("classes", 2, "fields", 1),
    "a field with a name that leads out": saying("name", "../../x", "fields", 0),
    "a field with a name of control characters": saying("name", "\x1b[2Jx\n", "fields", 0),
    "a field that is not there": saying("name", "absent", "fields", 0),
    "no parts": saying("parts", []),
    "a part without end": saying("graphs", 10**30, "parts", 0),
    "a part of fewer graphs": saying("graphs", 3, "parts", 0),
    "a part of negative graphs": saying("graphs", -12, "parts", 0),
    "a part of NaN nodes": saying("nodes", float("nan"), "parts", 0),
    "a part above": saying("name", "../part-00000.h5", "parts", 0),
    "a part in a folder above": saying("name", "a/../../b.h5", "parts", 0),
    "a part at the root": saying("name", "/etc/passwd", "parts", 0),
    "a part that is the folder": saying("name", ".", "parts", 0),
    "a part without files": saying("files", {}, "parts", 0),
    "files above": saying("files", {"../../x": {"bytes": 1, "blake2b": ""}}, "parts", 0),
    "blocks of another sum": saying("blocks", [[12, 1, 1]], "parts", 0),
    "masks of what there is not": saying("masked", ["other"], "parts", 0),
    "no fingerprint": saying("fingerprint", None),
    "attributes that are none": saying("attributes", []),
    "one more graph in all": saying("graphs", GRAPHS + 1),
    "a block that is not there": saying("stored", {"positions": [0, 7]}, "parts", 0),
    "half a graph": saying("graphs", float(GRAPHS), "parts", 0),
    # what lies in its place
    "a pipe as manifest": replaced("manifest.json", os.mkfifo),
    "a folder as manifest": replaced("manifest.json", Path.mkdir),
    "a device as manifest": replaced("manifest.json", lambda path: path.symlink_to("/dev/zero")),
    "a pipe as part": replaced("part-*", os.mkfifo),
    "an empty part": replaced("part-*", Path.touch),
    "a device as part": replaced("part-*", lambda path: path.symlink_to("/dev/zero")),
    "a link to nowhere as part": replaced("part-*", lambda path: path.symlink_to("nowhere")),
    # what the file holds
    "a sender in the next graph": put("senders", 0, 5),
    "a sender beyond all": put("senders", 3, 2**31 - 1),
    "a negative receiver": put("receivers", 3, -1),
    "edges without order": put("receivers", slice(0, 3), [3, 0, 2]),
    "nodes that stop before they begin": put("node_stops", 2, 1),
    "edges that stop beyond all": put("edge_stops", 11, 10**12),
    "negative stops": put("node_stops", 0, -4),
    "positions that are no numbers": put("positions", 0, np.nan),
    "an infinite label": put("graph/moment", 3, np.inf),
    "a class that there is not": put("node/kind", 3, 7),
    "a negative class": put("node/kind", 3, -1),
    "a group as array": instead("senders", lambda file, before: file.create_group("senders") and None),
    "no array": instead("node/charge", lambda file, before: None),
    "one node fewer": instead("positions", lambda file, before: before[:-1]),
    "reals for indices": instead("senders", lambda file, before: before.astype("f8")),
    "a scalar as array": instead("node/charge", lambda file, before: 1.0),
    "texts as array": instead("node/charge", lambda file, before: ["x"] * len(before)),
    "complex numbers": instead("node/charge", lambda file, before: before.astype("c8")),
    "references as array": instead(
        "node/charge", lambda file, before: np.array([file.ref] * len(before), dtype=h5py.ref_dtype)
    ),
    "rows of any length": instead(
        "node/charge",
        lambda file, before: file.create_dataset("node/charge", before.shape, h5py.vlen_dtype("f4")) and None,
    ),
    "a petabyte of nothing": instead("positions", huge),
    "a plugin": instead("senders", plugin_filter),
    "a link within": instead("senders", lambda file, before: h5py.SoftLink("/receivers")),
    "a link to itself": instead("senders", lambda file, before: h5py.SoftLink("/senders")),
    "a link to another file": instead("senders", lambda file, before: h5py.ExternalLink("/etc/passwd", "/x")),
}
HARMLESS: dict[str, Change] = {
    "nothing changed": lambda store: None,
    "keys of a later version": saying("more", {"x": 1}),
    "a name of markup": saying("description", "<script>alert(1)</script>", "attributes"),
    "another file beside": lambda store: (store / "notes.txt").write_text("mine") and None,
    "packed": dataset("node/charge", compression="gzip", chunks=(8,)),
    "with checksums": dataset("senders", fletcher32=True, chunks=(8,)),
}
ALLOWED = {"an infinite label": {"info", "predict"}}
"""Doors that read such a store all the same, because they do not need what is wrong; ``info`` reads no graph."""
OF_BP = {
    **{name: DAMAGED[name] for name in DAMAGED if name.startswith(("blocks", "a block", "a part of"))},
    "the other backend": saying("backend", "hdf5"),
    "an empty file": replaced("part-*/md.idx", Path.touch),
    "a pipe within": replaced("part-*/data.0", os.mkfifo),
    "a device within": replaced("part-*/data.0", lambda path: path.symlink_to("/dev/zero")),
}


def info(store: Path) -> str:
    return repr(hydragnn.store_info(store))


def check(store: Path) -> str:
    problems = check_store(store)
    if problems:
        raise InputError(problems[0])
    return ""


def train(store: Path) -> str:
    hydragnn.train({**CONFIG, "data": {"store": str(store)}}, store.parent / "new")
    return (store.parent / "new" / "model" / "weights.safetensors").read_bytes().hex()


def predict(store: Path) -> str:
    result = hydragnn.predict(store.parent / "run", store, store.parent / "out.h5")
    if result.failed:
        raise InputError(f"{result.failed} graphs failed")
    return repr({name: array.tolist() for name, array in arrays_of(store.parent / "out.h5").items()})


def convert(store: Path) -> str:
    copy = store.parent / "copy.h5"
    convert_store(store, copy)
    return open_store(copy).fingerprint


DOORS = (info, check, train, predict, convert)


def answers(store: Path) -> dict[str, str | None]:
    """What every door says; None where it refuses in a sentence."""

    def stuck(*_: object) -> Never:
        raise AssertionError("it waits")

    said: dict[str, str | None] = {}
    before = signal.signal(signal.SIGALRM, stuck)
    for door in DOORS:
        signal.alarm(SECONDS)
        try:
            said[door.__name__] = door(store)
        except InputError as error:
            assert "\n" not in str(error), error
            said[door.__name__] = None
        finally:
            signal.alarm(0)
        for left in ("new", "copy.h5", "out.h5.parts"):
            shutil.rmtree(store.parent / left, ignore_errors=True)
        for left in ("out.h5", "out.h5.plan.json"):
            (store.parent / left).unlink(missing_ok=True)
    signal.signal(signal.SIGALRM, before)
    return said


Answers = dict[str, str | None]


def runs_of(given: Path, place: Path, changes: dict[str, Change], suffix: str) -> Iterator[tuple[str, Answers]]:
    """What all doors say of each of these stores."""
    shutil.copytree(given / "run", place / "run", dirs_exist_ok=True)
    store = place / f"rings{suffix}"
    for name, change in changes.items():
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(given / store.name, store)
        change(store)
        yield name, answers(store)


def test_damaged_stores_are_refused_by_all_who_read_them(given: Path, tmp_path: Path) -> None:
    """What a manifest says of fields can also be other fields, which ``info`` then shows as they are."""
    problems, count = [], 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for suffix, changes in ((".h5", DAMAGED), (".bp", OF_BP)):
        for name, said in runs_of(given, tmp_path, changes, suffix):
            count += len(said)
            answered = {door for door, answer in said.items() if answer is not None}
            problems += [(suffix, name, door) for door in answered - ALLOWED.get(name, {"info"})]
    assert not problems, problems
    assert count == len(DOORS) * (len(DAMAGED) + len(OF_BP))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_stores_that_only_look_strange_are_read_as_they_are(given: Path, tmp_path: Path) -> None:
    answers_of = dict(runs_of(given, tmp_path, HARMLESS, ".h5"))
    sound = answers_of["nothing changed"]
    assert None not in sound.values()
    for name, said in answers_of.items():
        assert {**said, "info": ""} == {**sound, "info": ""}, name
