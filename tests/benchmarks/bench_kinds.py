"""Speed and memory of every architecture beside the public implementations of it, and their page, by one command.

    python -m tests.benchmarks.bench_kinds --environment DIRECTORY [--rounds 5] [--out docs/measurements/speed.md] [painn schnet ...]

DIRECTORY is an environment of Python for schnetpack, HydraGNN, torchmd-net and mace-torch, which ``peers.sh`` makes where something is missing; what cannot be had is a sentence in the page. Every implementation is a
process of its own that takes a training step when asked, in turns (``bench_peers``), on two batches. What is measured is kept in DIRECTORY/measured.json: without names the same command measures what is not there yet, or was
measured with other versions, another source of ours, on another processor or in another number of rounds; names are measured anew. The page has all of them.
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hydragnn.base.files import check_page_target, read_json, write_atomically, write_json
from hydragnn.runs.provenance import processor_name
from tests.benchmarks.bench_peers import HERE, Peer, difference, molecules, write_graphs
from tests.benchmarks.harness import KEPT
from tests.benchmarks.speed_page import OURS, TITLE, Measured, Sample, page_of, rows_of
from tests.benchmarks.structures import structures

ROOT = HERE.parent.parent
GEOMETRIC, NETWORK = "PyTorch Geometric", "PyTorch Geometric's network"
WRITTEN = "PyTorch Geometric, written by hand"
"""Of architectures that it does not ship: the layer as its users write it."""
BORROWED = ["peer_geometric.py"]
PUBLIC: dict[str, dict[str, Sequence[str]]] = {
    **{kind: {GEOMETRIC: BORROWED} for kind in ("gin", "sage", "mfc", "gatv2", "cgcnn", "pna", "relational", "gps")},
    "pnaplus": {f"{GEOMETRIC}, with filters": BORROWED},
    "dimenet": {NETWORK: [*BORROWED, "network"]},
    "schnet": {
        "schnetpack 2.1.1": ["peer_schnetpack.py"],
        NETWORK: [*BORROWED, "network"],
        WRITTEN: BORROWED,
        "HydraGNN 3.0": ["peer_hydragnn.py"],
    },
    "painn": {"schnetpack 2.1.1": ["peer_schnetpack.py"], WRITTEN: BORROWED},
    "egnn": {"HydraGNN 3.0": ["peer_hydragnn.py"], WRITTEN: BORROWED},
    "equivariant_transformer": {"torchmd-net 3.1.0": ["peer_torchmd.py"]},
    "tensornet": {"torchmd-net 3.1.0": ["peer_torchmd.py"], "torchmd-net 3.1.0, plain": ["peer_torchmd.py", "plain"]},
    "pnaeq": {WRITTEN: BORROWED},
    "mace": {"mace-torch 0.3.16": ["peer_mace.py"]},
}
SHARP = {"gatv2", "cgcnn", "pna", "pnaplus"}
"""Architectures that PyTorch Geometric has without an end at the cutoff."""


def requirements() -> dict[str, str]:
    """Versions of the packages that have an environment of their own, by name."""
    names = {
        name.partition(",")[0]
        for peers in PUBLIC.values()
        for name, command in peers.items()
        if command[0] != BORROWED[0]
    }
    split = (name.rpartition(" ") for name in sorted(names))
    return {package: version for package, _, version in split}


def absent(environment: Path) -> list[str]:
    """Which of the packages the environment does not have."""
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    python = environment / "bin" / "python"
    given = subprocess.run([python, "-c", code], capture_output=True, text=True) if python.exists() else None
    found = json.loads(given.stdout) if given is not None and given.returncode == 0 else {}
    return [name for name, version in requirements().items() if found.get(name) != version]


def make_environment(environment: Path) -> dict[str, str]:
    """Install what is missing; packages that could not be had, and why not."""
    if not absent(environment):
        return {}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(HERE / "peers.sh"), str(environment)]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
    why = f" ({said[-1].strip()})" if done.returncode and said else ""
    return dict.fromkeys(absent(environment), f"it could not be installed{why}")


def commands_of(kind: str, environment: Path, folder: Path) -> dict[str, list[str]]:
    """Ours first, which writes the weights; then all others."""
    more = ["sharp"] if kind in SHARP else []
    commands = {
        OURS: [sys.executable, str(HERE / "peer_ours.py"), kind, str(folder), "write", "keep", "computed", *more]
    }
    for name, (script, *options) in PUBLIC[kind].items():
        python = sys.executable if script == BORROWED[0] else str(environment / "bin" / "python")
        commands[name] = [python, str(HERE / script), kind, str(folder), *options, *more]
    return commands


class Peers:
    """The implementations of one architecture, as processes; what one of them cannot do ends it, and ``missing`` says why."""

    def __init__(self, commands: Mapping[str, Sequence[str]], missing: Mapping[str, str]) -> None:
        self.running: dict[str, Peer] = {}
        self.missing = {name: why for name, why in missing.items() if name in commands}
        for name, command in commands.items():
            if name not in self.missing:
                own = {"PYTHONPATH": str(ROOT)} if command[0] == sys.executable else {}
                environment = own if name == OURS else {**own, "GLIBC_TUNABLES": KEPT}
                try:
                    self.running[name] = Peer(name, command, environment)
                except RuntimeError as error:
                    self._leave_out(name, str(error))

    def each(self, ask: Callable[[Peer], Any]) -> dict[str, Any]:
        """What all of them answer, asked one after the other."""
        answers = {}
        for name, peer in list(self.running.items()):
            try:
                answers[name] = ask(peer)
            except RuntimeError as error:
                self.running.pop(name).end()
                self._leave_out(name, str(error))
        return answers

    def samples(self, rounds: int) -> dict[str, Sample]:
        """All of them on the batch where they are: two rounds that warm up, and those that count."""
        values = self.each(lambda peer: peer.values())
        for _ in range(rounds + 2):
            self.each(lambda peer: peer.step("train"))
        memory = self.each(lambda peer: float(peer.ask("memory")["megabytes"]))
        return {
            name: Sample(
                milliseconds=self.running[name].milliseconds["train"][2:],
                megabytes=megabytes,
                values=difference(values[OURS], values[name]).replace("other form", "own"),
            )
            for name, megabytes in memory.items()
        }

    def end(self) -> None:
        """Let all of them go."""
        for peer in self.running.values():
            peer.end()

    def _leave_out(self, name: str, why: str) -> None:
        if name == OURS:
            raise RuntimeError(f"our own process: {why}")
        self.missing[name] = why


def measure(kind: str, made_with: Mapping[str, Any], environment: Path, packages: Mapping[str, str]) -> Measured:
    """One architecture on both batches; ``packages`` could not be had, and why."""
    missing = {name: why for name in PUBLIC[kind] for package, why in packages.items() if name.startswith(package)}
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        for folder, cells in ((small, molecules()), (large, structures(32))):
            for cell in cells:
                cell.pbc = cell.pbc & (kind != "dimenet")
            write_graphs(Path(folder), cells)
        peers = Peers(commands_of(kind, environment, Path(small)), missing)
        try:
            few = peers.samples(made_with["rounds"])
            peers.each(lambda peer: peer.move(Path(large)))
            many = peers.samples(made_with["rounds"])
        finally:
            peers.end()
    return Measured(
        made_with=made_with,
        date=datetime.date.today().isoformat(),
        load=[*load, os.getloadavg()[0]],
        molecules={name: sample for name, sample in few.items() if name in many},
        alloys=many,
        missing=peers.missing,
    )


def source_digest() -> str:
    """A hash of what takes the steps: our rooms up to models, and the peers' scripts."""
    files = [
        path
        for room in ("graphs", "datasets", "hydragnn")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".cpp")
    ]
    digest = hashlib.sha256()
    for path in sorted([*files, *HERE.glob("peer_*.py"), HERE / "geometric_layers.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def amount(cells: Sequence[Any]) -> str:
    """Graphs, atoms and edges, in words."""
    with tempfile.TemporaryDirectory() as name:
        nodes, edges = write_graphs(Path(name), cells)
    return f"{len(cells)} graphs of {nodes:,} atoms and {edges:,} edges together"


def write_page(out: Path | None, measured: Mapping[str, Measured]) -> None:
    """The page of what is measured, if there is a place for it."""
    if out is not None:
        amounts = {"molecules": amount(molecules()), "alloys": amount(structures(32))}
        write_atomically(out, page_of([*PUBLIC], measured, cores=os.cpu_count() or 1, amounts=amounts))


def main() -> None:
    """Print the lines and write the document as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*PUBLIC, []], default=[])
    parser.add_argument("--environment", type=Path, required=True, help="a folder, made where there is none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a Markdown file, replaced where there is one")
    options = parser.parse_args()
    if options.out is not None:
        check_page_target(options.out, TITLE.encode(), "table of speed")
    made_with = {
        "rounds": options.rounds,
        "processor": processor_name(),
        "torch": metadata.version("torch"),
        "geometric": metadata.version("torch-geometric"),
        "source": source_digest(),
    }
    packages = make_environment(options.environment)
    kept = options.environment / "measured.json"
    known = {kind: Measured.from_json(one) for kind, one in (read_json(kept) if kept.exists() else {}).items()}
    measured = {kind: one for kind, one in known.items() if one.made_with == made_with}
    for kind in options.kinds or [kind for kind in PUBLIC if kind not in measured or measured[kind].missing]:
        measured[kind] = measure(kind, made_with, options.environment, packages)
        for row in rows_of(kind, measured[kind]):
            print(*row, sep=" | ", flush=True)
        write_json(kept, {kind: one.to_json() for kind, one in measured.items()})
        write_page(
            options.out, measured
        )  # after every architecture, so that an interrupted run leaves what it measured
    write_page(options.out, measured)


if __name__ == "__main__":
    main()
