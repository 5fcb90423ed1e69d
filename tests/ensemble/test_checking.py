"""A broken law is found by its own row, and what is sound passes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.io import write
from ase.stress import voigt_6_to_full_3x3_stress

from hydragnn.conformance.law import jump
from hydragnn.conformance.structures import LAWS
from hydragnn.ensemble import checking
from hydragnn.ensemble.checking import Finding, Subject, findings_of, model_subject
from hydragnn.graphs import Field, concatenate, graph_from_arrays
from hydragnn.scripts.api import train
from hydragnn.scripts.check_commands import check
from hydragnn.scripts.showing import show
from tests.ensemble.conftest import refused, written

EXACT = {
    "rotation", "permutation", "translation", "arrays that are not contiguous", "repetition", "batches", "extensivity", "detached fragments",
    "forces", "symmetric force constants", "acoustic sums", "stale results", "errors are not silent", "shapes of results", "precision",
    "no copies", "change of units", "spread of members",
}  # fmt: skip


def crystal() -> Atoms:
    atoms = bulk("Cu", cubic=True)
    atoms.numbers[0] = 79
    atoms.rattle(0.05, seed=3)
    return atoms


def of_law(name: str, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setattr(checking, "LAWS", {name: LAWS[name]})
    (finding,) = findings_of(subject)
    return finding


Results = dict[str, Any]
FAULTS: dict[str, tuple[str, Callable[[Results, Any], Results]]] = {
    "intensive": ("extensivity", lambda r, one: {"energy": r["energy"] / len(one.atoms)}),
    "by order": ("permutation", lambda r, one: {"energy": r["energy"] + 0.1 * one.atoms.numbers[0]}),
    "by axes": ("rotation", lambda r, one: {"energy": r["energy"] + 0.1 * one.atoms.positions[:, 0].std()}),
    "by place": ("translation", lambda r, one: {"energy": r["energy"] + 0.1 * one.atoms.positions[0, 0]}),
    "by memory": ("repetition", lambda r, one: {"energy": r["energy"] + 0.1 * one.count}),
    "forces": ("forces", lambda r, one: {"forces": 1.01 * r["forces"]}),
    "no energy behind": (
        "symmetric force constants",
        lambda r, one: {"forces": r["forces"] @ np.array([[1, 0.1, 0], [-0.1, 1, 0], [0, 0, 1]])},
    ),
    "anchored": ("acoustic sums", lambda r, one: {"forces": r["forces"] - 0.1 * one.atoms.positions}),
    "positions as inputs": (
        "acoustic sums",
        lambda r, one: {
            "energy": r["energy"] + 0.05 * (one.atoms.positions**2).sum(),
            "forces": r["forces"] - 0.1 * one.atoms.positions,
        },
    ),
    "sign of stress": ("stress", lambda r, one: {"stress": -r["stress"]}),
    "energies of members": ("shapes of results", lambda r, one: {"energies": np.zeros(3)}),
    "stale cell": ("stale results", lambda r, one: {}),
    "noise": (
        "through the cutoff",
        lambda r, one: {"energy": r["energy"] + 0.02 * np.sin(1e4 * one.atoms.positions[:, 0].sum())},
    ),
    "attraction": ("compression", lambda r, one: {"energy": -r["energy"], "forces": -r["forces"]}),
}
"""By fault the law that finds it, and what it changes of the results of EMT."""


class Wrong(EMT):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.count = fault, 0

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        changes = super().check_state(atoms, tol)
        return [one for one in changes if one != "cell"] if self.fault == "stale cell" else changes

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties or ["energy"], system_changes)
        self.results.pop("free_energy", None)
        self.count += 1
        self.results |= FAULTS[self.fault][1](self.results, self)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_law_which_holds_without_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for factory, verdict in ((EMT, "passed"), (lambda: Wrong(fault), "failed")):
        subject = Subject(name="", new_calculator=factory, frames=[crystal()], cutoff=3.0)
        finding = of_law(FAULTS[fault][0], subject, monkeypatch)
        assert finding.verdict == verdict, finding


def test_forces_that_end_at_once_are_seen_at_their_cutoff(monkeypatch: pytest.MonkeyPatch) -> None:
    for smooth, verdict in ((False, "failed"), (True, "passed")):
        make = lambda smooth=smooth: LennardJones(sigma=2.3, epsilon=0.2, smooth=smooth)  # noqa: E731
        subject = Subject(name="", new_calculator=make, frames=[crystal()], cutoff=8.0)
        finding = of_law("through the cutoff", subject, monkeypatch)
        assert finding.verdict == verdict, finding
    finding = of_law("through the cutoff", Subject(name="", new_calculator=LennardJones, frames=[]), monkeypatch)
    assert finding.verdict == "failed" and "Error" in finding.where  # what raises never passes


class OfCrystals(EMT):
    """EMT as potentials of crystals are: raises without a cell, and gives stress as a matrix."""

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        np.linalg.inv(atoms.cell.array)
        super().calculate(atoms, properties or ["energy"], system_changes)
        self.results["stress"] = voigt_6_to_full_3x3_stress(self.results["stress"])


@pytest.mark.parametrize(
    "law", ["detached fragments", "force flips of dimers", "repulsion", "stress", "shapes of results"]
)
def test_a_potential_of_crystals_alone_is_asked_in_cells_of_vacuum(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copper = crystal()
    copper.numbers[:] = 29  # one pair of elements
    seen = [
        of_law(law, Subject(name="", new_calculator=factory, frames=[copper], cutoff=6.0), monkeypatch)
        for factory in (EMT, OfCrystals)
    ]
    assert seen[1].verdict == "passed" and seen[1].figure == pytest.approx(seen[0].figure, abs=1e-6)


@pytest.mark.parametrize("place", [0.123, 0.4, 0.5001, 0.9])
def test_a_jump_is_found_wherever_it_falls_between_points(place: float) -> None:
    def values(shares: tuple[float, ...]) -> torch.Tensor:
        at = torch.tensor(shares, dtype=torch.float64)
        return (at.sin() + (at > place)).unsqueeze(1)

    for refinements in (2, 4):
        found, height = jump(values, refinements)
        assert found == pytest.approx(place, abs=1e-3) and height == pytest.approx(1, abs=0.01)


def test_an_ensemble_has_every_exact_law(ensemble: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "LAWS", {name: law for name, law in LAWS.items() if name in EXACT | {"stress"}})
    found = {one.law: one for one in findings_of(model_subject(ensemble))}
    assert {name for name in EXACT if found[name].verdict != "passed"} == {"extensivity"}  # which clusters lack
    assert found["extensivity"].verdict == found["stress"].verdict == "does not apply"


C = Field(name="c", on="node")
OF_NO_PLACE = {
    "classes of graphs": ("graph", {"classes": 3, "dtype": "int64"}),
    "numbers of edges": ("edge", {}),
    "graphs of one node": ("graph", {}),
}


@pytest.mark.parametrize("kind", OF_NO_PLACE)
def test_laws_of_space_say_nothing_of_graphs_without_positions(kind: str, tmp_path: Path) -> None:
    on, more = OF_NO_PLACE[kind]
    target, random, graphs = Field(name="y", on=on, role="target", **more), np.random.default_rng(0), []
    for number in range(24):
        size = 1 if kind == "graphs of one node" else 4 + number % 3
        here = np.arange(size if size > 1 else 0)
        items = {"edge": 2 * len(here), "graph": 1}[on]
        values = random.integers(0, 3, items) if target.classes else random.normal(size=items)
        ends = np.r_[here, (here + 1) % size], np.r_[(here + 1) % size, here]
        own = {f"{on}s": {"y": values if on == "edge" else values[0]}}
        graphs.append(graph_from_arrays(None, *ends, fields=[C, target], nodes={"c": random.normal(size=size)}, **own))
    store = written(tmp_path / "graphs.h5", concatenate(graphs))
    head = {"kind": "classes" if target.classes else "scalar", "field": "y"}
    model = {"kind": "gin", "hidden_dim": 4, "num_layers": 1}
    train({"data": {"store": str(store)}, "model": model, "heads": [head], "train": {"epochs": 1}}, tmp_path / "run")
    found = {one.law: one.verdict for one in findings_of(model_subject(tmp_path / "run"))}
    assert "failed" not in found.values()
    assert {found[name] for name in ("rotation", "translation", "arrays that are not contiguous")} == {"does not apply"}
    assert found["batches"] == found["precision"] == "passed"


class Silent(EMT):
    implemented_properties = ("energy", "free_energy")


ENERGIES = Subject(name="energies", new_calculator=Silent, frames=[crystal()], cutoff=6.0)
"""A subject for all laws, which keep what they share."""


@pytest.mark.parametrize("name", ["forces", "repulsion", "force flips of dimers", "acoustic sums", "drift", "stress"])
def test_laws_of_forces_say_nothing_of_a_potential_without_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_law(name, ENERGIES, monkeypatch).verdict == "does not apply"
    assert of_law("tortuosity of dimers", ENERGIES, monkeypatch).figure is not None  # energies have theirs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is neither a store nor a file that ASE can read"),
        ("\x89PNG\r\n", "is neither a store nor a file that ASE can read"),
        ("0\n\n", "has a structure without atoms"),
        ("\n\n", "has no structure"),
        ("1\n\nU 0 0 0\n", "has a structure that cannot be predicted: .*no reference value"),
    ],
)
def test_structures_that_cannot_be_asked_are_refused(text: str, says: str, runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "frames.xyz").write_text(text)
    refused(says, model_subject, runs[0], tmp_path / "frames.xyz")


def test_all_name_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        checking, "LAWS", {name: LAWS[name] for name in ("errors are not silent", "precision", "rotation")}
    )
    page, frames = tmp_path / "page.md", tmp_path / "frames.xyz"
    write(frames, [crystal()])
    words: dict[str, Any] = {"calculator": "ase.calculators.emt:EMT", "structures": frames, "out": page}
    refused(r"add --allow-code ase\.calculators\.emt", check, None, **words)
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as end:
            show(check(None, **words, allow_code=["ase"]), as_json)
        assert end.value.exit_code == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert {one["law"]: one["verdict"] for one in json.loads(first)} == {
        "errors are not silent": "failed",  # EMT takes a position that is no number
        "precision": "does not apply",
        "rotation": "passed",
    }
    assert any("errors are not silent fails in structure 0" in line for line in rest)
    assert "| errors are not silent | **failed** | 2 | <= 0 energies |" in page.read_text()
    refused("MODEL, or --calculator", check, None)


def test_every_law_stands_on_the_page_with_its_limit(root: Path) -> None:
    page = (root / "docs" / "check.md").read_text()
    rows = [f"| {name} | {law.meaning} | {law.bound} |" for name, law in LAWS.items()]
    assert [row for row in rows if row not in page] == []
