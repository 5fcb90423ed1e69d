"""Cases of the second look: hostile values, sizes and times."""

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase.io import write

import hydragnn
from hydragnn.base.errors import InputError
from tests.cases import inputs
from tests.cases.running import Answer, build
from tests.cases.running import hydragnn as command

SECONDS = 60
"""Of the processor for one command, where a unit without end takes hours."""


def unit_power(folder: Path) -> Answer:
    """A unit with a power of a number is refused at once, however it is spelled."""
    write(folder / "crystals.xyz", inputs.crystals(6), format="extxyz")
    answers = []
    for number, unit in enumerate(("9**99999999 eV", "9⁹⁹⁹⁹⁹⁹⁹⁹ eV")):
        fields = inputs.TARGETS.replace('unit = "eV"', f'unit = "{unit}"')
        build(folder, f"c{number}", f'kind = "ase"\nfiles = ["crystals.xyz"]\ncutoff = 5.0\n{fields}')
        run = inputs.RUN.format(store=f"c{number}.h5", more='forces = "forces"', epochs=1)
        (folder / "run.toml").write_text(run, encoding="utf-8")
        limit = ("prlimit", f"--cpu={SECONDS}")
        answers.append(command(folder, "train", "run.toml", "--out", f"run{number}", before=limit))
    right = all(one.refused and "is not known" in one.text for one in answers)
    return Answer("two sentences", "; ".join(one.sentence for one in answers), right)


def huge_numbers(folder: Path) -> Answer:
    """Numbers of a file are compared with what is there before anything is made of them."""
    for name, text in {"nodes": "graph,load\n0,1\n0,2\n", "graphs": "graph,y\n0,1\n"}.items():
        (folder / f"{name}.csv").write_text(text)
    fields = [{"name": "load", "on": "node"}, {"name": "y", "on": "graph", "role": "target"}]
    tables = {"kind": "tables", "files": [str(folder / "nodes.csv")], "edges": str(folder / "edges.csv")}
    tables |= {"graphs": str(folder / "graphs.csv"), "undirected": True, "fields": fields}
    np.savez(folder / "a.npz", R=np.zeros((2, 2, 3)))
    with zipfile.ZipFile(folder / "a.npz", "a") as archive, archive.open("E.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**11,)})
        file.write(bytes(16))
    energy = {"name": "energy", "key": "E", "on": "graph", "role": "target"}
    npz = {"kind": "npz", "files": [str(folder / "a.npz")], "positions": "R", "cutoff": 4.0, "fields": [energy]}
    seen = []
    for settings, sender in ((tables, 10**18), (tables, 10**30), (npz, 0)):
        (folder / "edges.csv").write_text(f"graph,sender,receiver\n0,0,{sender}\n")
        try:
            hydragnn.build_store(settings, folder / "x.h5", quiet=True)
            seen.append("built")
        except InputError as error:
            seen.append(f"sentence: {error}")
    return Answer("three sentences", "; ".join(seen), all(one.startswith("sentence") for one in seen))


def json_time(folder: Path) -> Answer:
    """Four times as many nodes of a node-link file take about four times as long."""
    fields = [{"name": "demand", "on": "node"}, {"name": "cap", "on": "edge"}]
    fields += [{"name": "cost", "on": "graph", "role": "target"}]
    taken = []
    for count in (10, 10_000, 40_000):
        nodes = [{"id": f"bus-{one}", "demand": 0.0} for one in range(count)]
        links = [{"source": f"bus-{one}", "target": f"bus-{one + 1}", "cap": 1.0} for one in range(count - 1)]
        graph = {"directed": False, "multigraph": False, "graph": {"cost": 1.0}, "nodes": nodes, "links": links}
        (folder / "grid.json").write_text(json.dumps(graph))
        start = time.process_time()
        settings = {"kind": "networkx", "files": [str(folder / "grid.json")], "fields": fields}
        hydragnn.build_store(settings, folder / f"{count}.h5", quiet=True)
        taken.append(time.process_time() - start)
    return Answer("at most 8 times as long", f"{taken[2] / taken[1]:.1f} times as long", taken[2] < 8 * taken[1])


CASES: dict[str, Callable[[Path], Answer]] = {
    "unit_power": unit_power,
    "huge_numbers": huge_numbers,
    "json_time": json_time,
}
"""Every case of ``python -m tests.cases`` has the right answer."""
