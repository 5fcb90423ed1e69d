"""Exported programs have the calculator's numbers for every form of an input, or refuse it."""

from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from torch import Tensor
from vesin import NeighborList

from hydragnn.base.errors import InputError
from hydragnn.ensemble import calculator, package_calculator
from tests.ensemble.conftest import export
from tests.once import shared

Inputs = list[Tensor]
Program = Callable[..., Any]
NAMES = ("positions", "species", "cells", "edges", "images", "owners")


def spread(tensor: Tensor) -> Tensor:
    """Every second number of a larger tensor in the last dimension."""
    return torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 77, dtype=tensor.dtype)[..., ::2].copy_(tensor)


def window(tensor: Tensor) -> Tensor:
    """The first corner of a larger tensor."""
    corner = tuple(slice(0, size) for size in tensor.shape)
    return torch.full([size + 3 for size in tensor.shape], 77, dtype=tensor.dtype)[corner].copy_(tensor)


def columns(tensor: Tensor) -> Tensor:
    """The order of Fortran."""
    axes = list(range(tensor.dim()))[::-1]
    return tensor.permute(axes).contiguous().permute(axes)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda tensor: tensor,
    "spread": spread,
    "window": window,
    "columns": columns,
    "float32": lambda tensor: tensor.to(torch.float32),
    "float16": lambda tensor: tensor.to(torch.float16),
    "int32": lambda tensor: tensor.to(torch.int32),
    "uint8": lambda tensor: tensor.to(torch.uint8),
    "complex128": lambda tensor: tensor.to(torch.complex128),
    "float64": lambda tensor: tensor.to(torch.float64),
    "int64": lambda tensor: tensor.to(torch.int64),
    "one short": lambda tensor: tensor[:-1],
    "nothing": lambda tensor: tensor[:0],
    "flat": lambda tensor: tensor.flatten(),
    "one axis more": lambda tensor: tensor[None],
}
SAME = {"as it is"}
"""Forms that must be taken; others may be refused."""


def structures() -> dict[str, Atoms]:
    """Copper in a crystal, a slab, a wire, a cluster, and alone."""
    crystal = bulk("Cu", cubic=True)
    crystal.positions += 0.1 * np.random.default_rng(1).normal(size=crystal.positions.shape)
    some = {"crystal": crystal}
    for name, periodic in {"slab": (1, 1, 0), "wire": (0, 0, 1), "cluster": (0, 0, 0)}.items():
        some[name] = crystal.copy()
        some[name].pbc = periodic
    some["alone"] = Atoms("Cu", [[1.0, 2.0, 3.0]])
    some["one in a crystal"] = bulk("Cu")
    some["far away"] = crystal.copy()
    some["far away"].positions += 40.0
    return some


def inputs_of(atoms: Atoms) -> Inputs:
    """A structure as a program takes it."""
    search = NeighborList(cutoff=4.0, full_list=True)
    centres, neighbours, images = search.compute(atoms.positions, atoms.cell.array, atoms.pbc, "ijS")
    return [
        torch.from_numpy(atoms.positions.copy()),
        torch.from_numpy(atoms.numbers.astype(np.int64)),
        torch.from_numpy(atoms.cell.array.copy())[None],
        torch.from_numpy(np.stack([neighbours, centres]).astype(np.int64)),
        torch.from_numpy(images.astype(np.float64)),
        torch.zeros(len(atoms), dtype=torch.int64),
    ]


@shared
def package(strained: tuple[Path, Atoms], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of AOTInductor."""
    file = tmp_path_factory.mktemp("programs") / "aoti.pt2"
    export(strained[0], "aoti", file)
    return file


without_compiler = pytest.mark.skipif(not which("g++"), reason="no g++")


@pytest.fixture(
    scope="module",
    params=["exported", pytest.param("package", marks=[pytest.mark.slow, without_compiler])],
    ids=["torch", "aoti"],
)
def program(request: pytest.FixtureRequest) -> Program:
    """A program that was exported once for all tests."""
    made = request.getfixturevalue(request.param)
    if request.param == "exported":
        return torch.export.load(made[0]).module()
    loaded: Program = torch._inductor.aoti_load_package(str(made))
    return loaded


def answer(program: Program, inputs: Inputs) -> list[np.ndarray] | None:
    """Energy, forces and stress; None where the program refuses."""
    try:
        return [one.numpy() for one in program(*inputs)[:3]]
    except (RuntimeError, IndexError, AssertionError, ValueError):
        return None


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_an_input_has_the_calculators_numbers_or_is_refused(
    form: str, program: Program, strained: tuple[Path, Atoms]
) -> None:
    potential = calculator(strained[0], outside="record")
    for name, atoms in structures().items():
        atoms.calc = potential
        right = [np.array([atoms.get_potential_energy()]), atoms.get_forces()]
        stress = [atoms.get_stress(voigt=False)[None]] if atoms.pbc.all() else []
        for place, what in enumerate(NAMES):
            inputs = inputs_of(atoms)
            inputs[place] = FORMS[form](inputs[place])
            results = answer(program, inputs)
            assert results is not None or form not in SAME, f"{what} of {name} are refused"
            for own, other in zip(results or (), right + stress):
                np.testing.assert_allclose(own, other, atol=1e-6, err_msg=f"{what} of {name}")


@pytest.mark.parametrize(
    ("place", "change"),
    [(3, 100), (3, -1), (3, -100), (5, 1), (5, -1), (1, 200), (1, -60)],
    ids=["atoms beyond", "atom -1", "atoms before", "structure beyond", "structure -1", "element 229", "element -31"],
)
def test_numbers_of_what_is_not_there_are_refused(place: int, change: int, program: Program) -> None:
    inputs = inputs_of(structures()["crystal"])
    inputs[place] = inputs[place] + change
    assert answer(program, inputs) is None


@pytest.mark.parametrize("species", [[79, 29, 29, 29], [29, 29, 29, 1], [0, 29, 29, 29], [47, 47, 47, 47]])
def test_an_unknown_element_makes_all_results_of_its_structure_unknown(species: list[int], program: Program) -> None:
    crystal = structures()["crystal"]
    inputs, known = inputs_of(crystal), inputs_of(crystal)
    inputs[1] = torch.tensor(species)
    both = [torch.cat([one, other], dim=0) for one, other in zip(inputs, known)]
    both[3] = torch.cat([inputs[3], known[3] + 4], dim=1)
    both[5] = torch.arange(8) // 4
    alone, results = answer(program, known), answer(program, both)
    assert alone is not None and results is not None
    for own, other, atoms in zip(results, alone, (1, 4, 1)):
        assert np.isnan(own[:atoms]).all()
        np.testing.assert_allclose(own[atoms:], other, atol=1e-9)


def test_a_lone_atom_of_an_unknown_element_has_no_forces(program: Program) -> None:
    inputs = inputs_of(structures()["alone"])
    inputs[1] = torch.tensor([79])
    results = answer(program, inputs)
    assert results is not None and all(np.isnan(one).all() for one in results)


@pytest.mark.slow
@without_compiler
def test_a_package_is_a_calculator_of_ase_for_its_own_model_alone(
    package: Path, strained: tuple[Path, Atoms], runs: list[Path]
) -> None:
    fast, right = package_calculator(strained[0], package), calculator(strained[0], outside="record")
    for name, atoms in structures().items():
        for _ in range(2):  # with the neighbours that are kept
            one, other = atoms.copy(), atoms.copy()
            one.calc, other.calc = fast, right
            assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-6), name
            np.testing.assert_allclose(one.get_forces(), other.get_forces(), atol=1e-6, err_msg=name)
            assert ("stress" in fast.results) == ("stress" in right.results), name
            if "stress" in fast.results:
                np.testing.assert_allclose(one.get_stress(), other.get_stress(), atol=1e-6, err_msg=name)
            atoms.positions += 0.01
    gold = bulk("Au", cubic=True)
    gold.calc = fast
    with pytest.raises(InputError, match="elements that training did not hold"):
        gold.get_potential_energy()
    with pytest.raises(InputError, match="another model"):
        package_calculator(runs[0], package)
    with pytest.raises(InputError, match="does not exist; write it with"):
        package_calculator(strained[0], package.with_name("none.pt2"))


@pytest.mark.parametrize("periodic", [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 0)])
@pytest.mark.parametrize("form", ["as it is", "window", "columns", "float32"])
def test_states_of_torch_sim_in_any_form_have_the_calculators_numbers(
    form: str, periodic: tuple[int, ...], strained: tuple[Path, Atoms]
) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason="torch-sim is not installed")
    from hydragnn.ensemble import torch_sim_model

    model, atoms = torch_sim_model(strained[0], outside="record"), structures()["crystal"]
    atoms.pbc = True  # mixed axes are set below, since initialize_state would open all of them
    state = torch_sim.initialize_state([atoms], model.device, model.dtype)
    atoms.pbc = periodic
    state.pbc = torch.tensor(periodic, dtype=torch.bool)
    state.positions = FORMS[form](state.positions)
    atoms.positions = state.positions.double().numpy()
    atoms.calc = calculator(strained[0], outside="record")
    results = model(state)
    assert results["energy"].item() == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    np.testing.assert_allclose(results["forces"], atoms.get_forces(), atol=1e-6)
