"""Models as files for other programs, which say what they hold."""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hydragnn.base.errors import InputError, MissingPackageError, nearest
from hydragnn.base.files import replace_atomically
from hydragnn.base.shown import Shown
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.exporting.potential import ExportFacts, PlainPotential, facts_of
from hydragnn.ensemble.exporting.program import program_of

OLDEST = (2, 13)
"""Version of torch that keeps the order of loops which it fuses. Gradients of earlier ones were wrong by 6 % (pytorch/pytorch#185509)."""

CHECK = """#undef __check_inputs_outputs
static void __check_inputs_outputs(AtenTensorHandle* handles, AtenTensorHandle*) {
    struct Input { const char *name, *form; int32_t dtype; std::vector<int64_t> sizes; int64_t limit; };
    const int32_t real = aoti_torch_dtype_float64(), whole = aoti_torch_dtype_int64();
    const std::vector<Input> inputs = {
        {"positions", "float64 [atoms, 3]", real, {-1, 3}, 0},
        {"species", "int64 [atoms]", whole, {-1}, 119},
        {"cells", "float64 [structures, 3, 3]", real, {-2, 3, 3}, 0},
        {"edges", "int64 [2, edges]", whole, {2, -3}, -1},
        {"images", "float64 [edges, 3]", real, {-3, 3}, 0},
        {"owners", "int64 [atoms]", whole, {-1}, -2}};
    int64_t counts[] = {0, -1, -1, -1};  // of nothing, atoms, structures and edges, at which negative sizes and limits point
    for (const Input& wanted : inputs) {
        AtenTensorHandle one = *handles++;
        int64_t dims, all, step = 1, *sizes, *strides, *values;
        int32_t dtype, device;
        bool right = !(aoti_torch_get_dim(one, &dims) || aoti_torch_get_sizes(one, &sizes) || aoti_torch_get_strides(one, &strides)
            || aoti_torch_get_numel(one, &all) || aoti_torch_get_data_ptr(one, (void**)&values)
            || aoti_torch_get_dtype(one, &dtype) || aoti_torch_get_device_type(one, &device))
            && dtype == wanted.dtype && device == aoti_torch_device_type_cpu() && dims == (int64_t)wanted.sizes.size();
        for (int64_t axis = right ? dims : 0; axis-- > 0; step *= sizes[axis]) {
            int64_t size = wanted.sizes[axis];
            if (size < 0) size = counts[-size] = counts[-size] < 0 ? sizes[axis] : counts[-size];
            right = right && sizes[axis] == size && (size < 2 || all == 0 || strides[axis] == step);
        }
        const int64_t limit = wanted.limit < 0 ? counts[-wanted.limit] : wanted.limit;
        for (int64_t place = 0; right && limit && place < all; ++place) right = values[place] >= 0 && values[place] < limit;
        if (!right || counts[1] == 0 || counts[2] == 0)
            throw std::runtime_error(
                std::string(wanted.name) + " are no contiguous " + wanted.form + " on the CPU, in agreement with the other inputs");
    }
}
"""
"""C++ after torch's own, for the inputs that ``potential.INPUTS`` names."""


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


@contextmanager
def package_compiler() -> Iterator[None]:
    """Compile packages that check their inputs, in this process; InputError for other versions."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        raise InputError(f"packages need torch 2.13, and this is torch {torch.__version__}; take it, or --to torch")
    import torch._inductor.config as inductor
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    former, written = CppWrapperCpu.generate_input_output_runtime_checks, []

    def write(wrapper: Any) -> None:
        splice = getattr(wrapper.prefix, "splice_aot", wrapper.prefix.splice)
        splice("#define __check_inputs_outputs __check_of_torch")
        former(wrapper)
        splice(CHECK)
        written.append(wrapper)

    quiet = warnings.catch_warnings(action="ignore")
    with quiet, inductor.patch(compile_threads=1), patch.object(CppWrapperCpu, former.__name__, write):
        yield
    if not written:
        raise InputError(f"packages of torch {torch.__version__} check no inputs; take torch 2.13, or --to torch")


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
