"""Cases of the second look: names, texts, labels by table, and files for other programs."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

from ase.build import bulk
from ase.io import write

from hydragnn.datasets import open_store
from tests.cases import inputs
from tests.cases.running import Answer, build, hydragnn, train

GAPS = """kind = "ase"
files = ["files"]
cutoff = 4.0
labels = "gaps.csv"

[[fields]]
name = "gap"
on = "graph"
unit = "eV"
role = "target"
"""


def xyz_ids(folder: Path) -> Answer:
    """Two structures whose names differ by a leading zero have labels of their own."""
    frame = '1\nProperties=species:S:1:pos:R:3 id="{}"\nCu 0 0 0\n'
    (folder / "files").mkdir()
    (folder / "files" / "frames.xyz").write_text(frame.format("010") + frame.format("10"), encoding="utf-8")
    (folder / "gaps.csv").write_text('id,gap\n"010",1\n"10",2\n', encoding="utf-8")
    graphs = open_store(build(folder, "frames", GAPS)).read([0, 1])
    seen = dict(zip(graphs.names, graphs["gap"].tolist()))
    return Answer(
        "010: 1.0, 10: 2.0", ", ".join(f"{name}: {gap}" for name, gap in seen.items()), seen == {"010": 1.0, "10": 2.0}
    )


def two_files(folder: Path) -> Answer:
    """One row for two files and two rows for one file are refused."""
    (folder / "build.toml").write_text(GAPS, encoding="utf-8")
    sentences = []
    for names, table in ((("x.cif", "x.vasp"), "file,gap\nx,1.5\n"), (("x.cif",), "file,gap\nx,1\nx.cif,9\n")):
        shutil.rmtree(folder / "files", ignore_errors=True)
        (folder / "files").mkdir()
        for number, name in enumerate(names):
            write(folder / "files" / name, bulk("Cu", "fcc", a=3.6 + 0.8 * number, cubic=True))
        (folder / "gaps.csv").write_text(table, encoding="utf-8")
        sentences.append(hydragnn(folder, "data", "build", "build.toml", "--out", "x.h5"))
    seen = "; ".join(one.sentence for one in sentences)
    return Answer("two sentences", seen, all(one.refused and "gaps.csv" in one.text for one in sentences))


def csv_formula(folder: Path) -> Answer:
    """A name that begins as a formula is a text for spreadsheets."""
    inputs.write_crystals(folder)
    build(folder, "crystals")
    (folder / "run.toml").write_text(inputs.RUN.format(store="crystals.h5", more="", epochs=1), encoding="utf-8")
    train(folder)
    atoms = bulk("Cu", cubic=True)
    atoms.info["id"] = "=cmd|calc!A1"
    write(folder / "x.xyz", atoms, format="extxyz")
    done = hydragnn(folder, "predict", "run", "x.xyz", "--out", "predicted.csv")
    if done.code:
        return Answer("a table", done.sentence, False)
    with (folder / "predicted.csv").open(newline="", encoding="utf-8") as file:
        (name,) = [row["name"] for row in csv.DictReader(file)]
    return Answer("'=cmd|calc!A1", name, name == "'=cmd|calc!A1")


CASES: dict[str, Callable[[Path], Answer]] = {"xyz_ids": xyz_ids, "two_files": two_files, "csv_formula": csv_formula}
