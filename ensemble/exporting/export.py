"""Models as files for other programs, which say what they hold."""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.errors import InputError, MissingPackageError, nearest
from hydragnn.base.files import replace_atomically
from hydragnn.base.shown import Shown
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.exporting.compiler import package_compiler
from hydragnn.ensemble.exporting.potential import ExportFacts, PlainPotential, facts_of
from hydragnn.ensemble.exporting.program import program_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult(Shown):
    """File that was written, and the facts that it states."""

    out: Path
    to: str
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"out": str(self.out), "to": self.to, **self.facts}

    def __str__(self) -> str:
        return f"{self.out}: {self.to}, {', '.join(self.facts['results'])} of {self.facts['members']} members"


def export_ensemble(ensemble: Ensemble, out: Path, to: str) -> ExportResult:
    """Write a model as another program's file, or raise InputError."""
    if to not in FORMATS:
        raise InputError(f"to = {to!r} is no format; {nearest(to, list(FORMATS))}")
    form = FORMATS[to]
    if os.path.lexists(out):
        raise InputError(f"{out} exists already; choose another --out or delete it")
    if out.suffix != form.suffix:
        raise InputError(f"--out {out}: let the name of {form.what} end in {form.suffix or 'no suffix'}")
    if form.package and find_spec(form.package) is None:
        raise MissingPackageError(f"{form.package}-torch", "simulation", f"an export to {to}")
    facts = facts_of(ensemble)
    if to == "lammps" and "forces" not in facts.names:
        raise InputError("the model predicts no forces, which LAMMPS needs; train a head of kind energy with forces")
    words = facts.to_json() | {"format": f"hydragnn-{to}-1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's tracers, about what they do inside
        replace_atomically(out, lambda aside: form.write(ensemble, facts, words, aside))
    return ExportResult(out=out, to=to, facts=words)


def _write_program(ensemble: Ensemble, facts: ExportFacts, words: Mapping[str, Any], path: Path) -> None:
    """Write a program of ``torch.export``."""
    program = program_of(PlainPotential(ensemble, facts).eval())
    program._example_inputs = None  # which would be a pickle in the file
    if words["format"] == "hydragnn-lammps-1":
        path.mkdir()
        shutil.copyfile(Path(__file__).with_name("lammps_driver.py"), path / "hydragnn_lammps.py")
        path = path / "potential.pt2"
    content = BytesIO()  # torch ends the process where a file cannot grow
    torch.export.save(program, content, extra_files={"hydragnn.json": json.dumps(words)})
    path.write_bytes(content.getbuffer())


def _write_package(ensemble: Ensemble, facts: ExportFacts, words: Mapping[str, Any], path: Path) -> None:
    """Write a package of AOTInductor, for C++ and Python."""
    program = program_of(PlainPotential(ensemble, facts).eval())
    options = {"aot_inductor.metadata": {"hydragnn": json.dumps(words)}}
    with tempfile.TemporaryDirectory() as folder, package_compiler(), torch.no_grad():
        place = Path(folder) / "package.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(place), inductor_configs=options)
        shutil.copyfile(place, path)


def _write_metatomic(ensemble: Ensemble, facts: ExportFacts, words: Mapping[str, Any], path: Path) -> None:
    """Write an atomistic model of metatomic."""
    from hydragnn.ensemble.exporting.metatomic_model import atomistic_model

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.pt"
        atomistic_model(PlainPotential(ensemble, facts, derivatives=False).eval(), facts, words).save(str(place))
        shutil.copyfile(place, path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One format: its words, suffix, package and writer."""

    what: str
    suffix: str
    write: Callable[[Ensemble, ExportFacts, Mapping[str, Any], Path], None]
    package: str = ""


FORMATS: Mapping[str, Form] = {
    "torch": Form(what="a program of torch.export", suffix=".pt2", write=_write_program),
    "aoti": Form(what="a package of AOTInductor", suffix=".pt2", write=_write_package),
    "metatomic": Form(what="a model of metatomic", suffix=".pt", write=_write_metatomic, package="metatomic"),
    "lammps": Form(what="a folder for LAMMPS", suffix="", write=_write_program),
}
"""All formats by name."""
