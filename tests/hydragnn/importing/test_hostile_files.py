"""Damaged and hostile files of the public HydraGNN: one sentence each, nothing written, nothing executed, little memory."""

import io
import json
import os
import pickle
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import convert_store
from hydragnn.graphs.pyg import torch_geometric
from tests.datasets.public_files import samples, write_bp
from tests.hydragnn.importing.public_runs import Code, config_of, write_model
from tests.hydragnn.importing.test_importing import HOSTILE as CHECKPOINTS

Data = torch_geometric("data").Data
MOST, SECONDS = 2**30, 10
"""Bytes and time that a file may take."""
Write = Callable[[Path], object]
"""Function that writes files into a folder."""
HUGE = 2_500_000_000
"""Numbers of 10 GB."""


def bp(**changes: Any) -> Write:
    values = {name: np.array(value) if name.count("/") > 1 else value for name, value in changes.items()}
    return lambda folder: write_bp(folder / "set.bp", {"trainset": samples(8)}, {}, **values)


def changed(name: str, change: Callable[[Path], object]) -> Write:
    def write(folder: Path) -> None:
        change(write_bp(folder / "set.bp", {"trainset": samples(8)}, {}) / name)

    return write


def cut(left: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * left))


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def pickled(*contents: Any, count: Any = None, names: str = "total-{}.pkl") -> Write:
    """Return a writer of a folder of samples: bytes, or what is pickled as one."""

    def write(folder: Path) -> None:
        (folder / "set").mkdir()
        with (folder / "set" / "total-meta.pkl").open("wb") as file:
            for one in (None, None, len(contents) if count is None else count, False, 1000, {}):
                pickle.dump(one, file)
        for number, one in enumerate(contents):
            content = one if isinstance(one, bytes) else pickle.dumps(one)
            (folder / "set" / names.format(number)).write_bytes(content)

    return write


class State(Code):
    """Object with a state that its maker gets."""

    def __init__(self, state: Any, *call: Any) -> None:
        super().__init__(*call)
        self.state = state

    def __reduce__(self) -> Any:
        return *super().__reduce__(), self.state


def array(shape: tuple[int, ...], dtype: str, content: Any) -> State:
    made = np._core.multiarray._reconstruct, np.ndarray, (0,), b"b"
    return State((1, shape, np.dtype(dtype), False, content), *made)


class Stored:
    """Storage in the old format of torch, which may claim more than it has."""

    def __init__(self, numel: int) -> None:
        self.pid = ("storage", torch.FloatStorage, "0", "cpu", numel, None)

    def content(self) -> bytes:
        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                return value.pid if isinstance(value, Stored) else None

        file, system = io.BytesIO(), {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
        for one in (MAGIC_NUMBER, PROTOCOL_VERSION, system, self, ["0"]):
            Pickler(file, protocol=2).dump(one)
        numel = self.pid[-2]
        assert isinstance(numel, int)
        return file.getvalue() + numel.to_bytes(8, "little") + b"\0" * 12


def stored(content: bytes) -> Code:
    return Code(torch.storage._load_from_bytes, content)


def tensor(shape: tuple[int, ...], strides: tuple[int, ...] = (1,), offset: int = 0, storage: Any = None) -> Code:
    storage = stored(Stored(3).content()) if storage is None else storage
    return Code(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict())


def archived(storage: Any) -> bytes:
    content = io.BytesIO()
    torch.save(storage, content)
    return content.getvalue()


def sparse_sample(folder: Path) -> None:
    pickled(WHOLE)(folder)
    os.truncate(folder / "set" / "total-0.pkl", 3 * 10**9)


PAIRS = [b"q%ch%c\x86" % (place, place) for place in range(60)]
HASH = b"\x80\x02)" + b"".join(PAIRS) + b"q\x3c"
"""Pickle of pairs of pairs, whose hash visits each of them."""
MOLECULE = {"pos": torch.rand(4, 3), "edge_index": torch.tensor([[0, 1], [1, 0]])}
WHOLE = pickle.dumps(Data(**MOLECULE))
SETS: dict[str, tuple[Write, str]] = {
    "offsets that lie": (bp(**{"trainset/x/variable_offset": [*range(8)]}), "counts and offsets of trainset/x"),
    "counts past the end": (bp(**{"trainset/x/variable_count": [3, 4, 5, 3, 4, 5, 3, 99]}), "of its shape .31, 1."),
    "negative counts": (bp(**{"trainset/x/variable_count": [-3] * 8}), "counts and offsets of trainset/x"),
    "counts beyond whole numbers": (
        bp(**{"trainset/x/variable_count": [2**62, 2**62, 2**62, 2**62, 31, 0, 0, 0]}),
        "counts and offsets of trainset/x",
    ),
    "fewer counts than samples": (bp(**{"trainset/x/variable_count": [3]}), "one whole number for each of 8 graphs"),
    "counts that are no numbers": (bp(**{"trainset/x/variable_count": [np.nan] * 8}), "one whole number for each"),
    "an axis that there is not": (bp(**{"trainset/x/dim": 7}), "counts and offsets of trainset/x"),
    "an axis before the first": (bp(**{"trainset/x/dim": -1}), "counts and offsets of trainset/x"),
    "more samples than there are": (bp(**{"trainset/ndata": 10**12}), "for each of 1000000000000 graphs"),
    "fewer samples than none": (bp(**{"trainset/ndata": -8}), "one whole number for each"),
    "keys that there are not": (bp(**{"trainset/keys": ["mass"]}), "is damaged"),
    "nodes of other graphs": (bp(**{"trainset/edge_index": np.full((2, 94), 10**6)}), "out of range; the graph has 3"),
    "negative nodes": (bp(**{"trainset/edge_index": np.full((2, 94), -1)}), "out of range; the graph has 3 nodes"),
    "10 GB in a header": (bp(**{"trainset/x/shape": [HUGE, 1]}), "claims 10,000,0.* bytes"),
    "many rows of no size": (bp(**{"trainset/x/shape": [10**15, 0], "trainset/x": np.zeros((0, 0))}), "claims"),
    "positions that are no numbers": (bp(**{"trainset/pos": np.full((31, 3), np.nan, dtype="f4")}), "positions"),
    "elements that are none": (bp(**{"trainset/x": np.full((31, 1), np.inf, dtype="f4")}), "field x: inf in row 0"),
    "numbers that doubles do not hold": (bp(**{"trainset/x": np.full((31, 1), 2**60)}), "above 2.53"),
    "data of 9 in 10 bytes": (changed("data.0", cut(0.9)), "copy it again"),
    "no data": (changed("data.0", cut(0.0)), "copy it again"),
    "data that are gone": (changed("data.0", os.unlink), "copy it again"),
    "data that are a pipe": (changed("data.0", pipe), "no regular file"),
    "half the metadata": (changed("md.0", cut(0.5)), "copy it again"),
    "metadata of noise": (changed("md.0", noise), "copy it again"),
    "metadata of zeros": (changed("md.0", zeros), "copy it again"),
    "half the index": (changed("md.idx", cut(0.5)), "copy it again"),
    "an index of noise": (changed("md.idx", noise), "copy it again"),
    "half the description": (changed("mmd.0", cut(0.5)), "copy it again"),
    "a description of noise": (changed("mmd.0", noise), "copy it again"),
    "a call": (pickled(Code(os.mkdir, "ran")), "names (posix|os).mkdir"),
    "a module": (pickled(Code(__import__, "antigravity")), "names builtins.__import__"),
    "a call in a Data": (pickled(Data(pos=torch.ones(1, 3), z=Code(os.mkdir, "ran"))), "names (posix|os).mkdir"),
    "a call in a storage": (
        pickled(tensor((3,), storage=stored(pickle.dumps(Code(os.mkdir, "ran"), protocol=2)))),
        "code from files is not run",
    ),
    "a whole pickle in a storage": (pickled(stored(pickle.dumps(Code(os.mkdir, "ran")))), "is not run"),
    "an archive in a storage": (pickled(stored(archived(torch.zeros(3)))), "a storage in an archive"),
    "a function of a class": (pickled(Code(getattr, Data, "__init__")), "names builtins.getattr"),
    "a state of a function": (pickled(State({"a": 1}, torch._utils._rebuild_parameter, len, False, {})), "is not run"),
    "10 GB in a tensor": (pickled(tensor((HUGE,))), "beyond its storage"),
    "10 GB by a stride of 0": (pickled(tensor((HUGE,), (0,))), "beyond its storage"),
    "10 GB in a size": (pickled(tensor((10**10, b"x"))), "is not run"),  # type: ignore[arg-type]
    "a tensor before its storage": (pickled(tensor((3,), offset=-2)), "is not run"),
    "10 GB in a storage": (pickled(tensor((3,), storage=stored(Stored(HUGE).content()))), "is not run"),
    "10 GB in an array": (pickled(array((HUGE,), "f4", b"")), "is not run"),
    "10 GB of objects": (pickled(array((HUGE,), "O", [])), "numbers of dtype object"),
    "a key whose hash has no end": (pickled(HASH + b"}h\x3cK\x01s."), "a tuple as a key"),
    "a set whose hash has no end": (pickled(HASH + b"\x8f(h\x3c\x90."), "is damaged"),
    "millions of objects": (pickled(b"\x80\x02" + b"]" * 2**21 + b"."), "more than 1,048,576 objects"),
    "3 GB in a sample": (sparse_sample, "has 3 GB, and a sample at most"),
    "10 GB of bytes": (pickled(b"\x80\x05\x96" + (10**10).to_bytes(8, "little") + b"."), "is damaged"),
    "a number in 34 GB of places": (pickled(b"\x80\x04K\x01r" + (2**31).to_bytes(4, "little") + b"."), "no Data"),
    "no Data": (pickled({"x": 1}), "holds no Data"),
    "half a sample": (pickled(WHOLE[: len(WHOLE) // 2]), "is damaged"),
    "an empty sample": (pickled(b""), "holds no Data"),
    "a text": (pickled(b"weights"), "is damaged"),
    "two samples in a file": (pickled(WHOLE + WHOLE), "holds no Data"),
    "a gap in the numbers": (pickled(WHOLE, names="total-1.pkl"), "counts 1 samples, and 1 are beside it"),
    "fewer samples than counted": (pickled(WHOLE, count=10**12), "counts 1000000000000 samples, and 1 are beside"),
    "a count that is none": (pickled(WHOLE, count="1"), "counts 1000 samples, and 1 are beside it"),
    "samples with other keys": (pickled(WHOLE, Data(x=torch.ones(2, 1))), "neither pos nor x in every sample"),
    "three ends of an edge": (pickled(Data(pos=torch.rand(4, 3), edge_index=torch.ones(3, 2).long())), "another shape"),
    "nodes that there are not": (
        pickled(Data(pos=torch.rand(1, 3), edge_index=torch.tensor([[0], [7]]))),
        "has 1 node",
    ),
    "a graph without nodes": (pickled(Data(pos=torch.rand(0, 3), x=torch.rand(0, 1))), "has no nodes"),
}


def checkpoint(content: bytes) -> Write:
    return lambda folder: write_model(folder / "run").write_bytes(content)


def configured(**sections: Any) -> Write:
    """Return a writer of a run with other sections of the configuration."""

    def write(folder: Path) -> None:
        write_model(folder / "run")
        (folder / "run" / "config.json").write_text(json.dumps(config_of(**sections)))

    return write


def deep(levels: int) -> Any:
    return {"a": deep(levels - 1)} if levels else {}


CONFIGURATIONS: dict[str, tuple[Write, str]] = {
    "36 GB of columns": (configured(dataset={"node_features": {"name": ["z"], "dim": [10**9]}}), "add up to more than"),
    "8 GB of layers": (configured(hidden_dim=8, num_sharedlayers=10**9), "add up to more than"),
    "a width without end": (configured(output_dim=[1, float("inf")]), "output_dim = .1, inf. is not finite"),
    "a width in quotes": (configured(output_heads={"graph": {"num_sharedlayers": "9"}}), "write it without quotes"),
    "sections in sections": (configured(more=deep(400)), "config.json"),
}


def end_of(folder: Path, channel: int) -> None:
    """Write how a command ends, and the bytes that it took."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * MOST, resource.RLIM_INFINITY))  # the machine stays well
    os.chdir(folder)
    (path,) = folder.iterdir()
    try:
        hydragnn.import_public(path, folder / "out") if path.name == "run" else convert_store(path, folder / "out.h5")
        sentence = "no error"
    except InputError as error:
        sentence = str(error)
    after = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    os.write(channel, pickle.dumps((sentence, (after - before) * 1024, time.process_time() - start)))


HOSTILE = SETS | CONFIGURATIONS | {name: (checkpoint(content), words) for name, (content, words) in CHECKPOINTS.items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_sentence(name: str, tmp_path: Path) -> None:
    write, words = HOSTILE[name]
    write(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    out, channel = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            end_of(tmp_path, channel)
        finally:
            os._exit(0)
    os.close(channel)
    os.waitpid(child, 0)
    with os.fdopen(out, "rb") as ending:
        sentence, taken, seconds = pickle.load(ending)
    with pytest.raises(InputError, match=words):
        raise InputError(sentence)
    assert taken < MOST and seconds < SECONDS
    assert sorted(tmp_path.rglob("*")) == files
