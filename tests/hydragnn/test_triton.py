"""Triton forms equal the references in Triton's interpreter, and compile without spills for machines that are not here."""

import json
import os
from pathlib import Path

import pytest
import torch
import triton

from hydragnn.conformance.atomics import unordered_on_a_gpu
from hydragnn.kernels.ops import random_graph
from hydragnn.kernels.triton import edges as triton_edges
from hydragnn.kernels.triton import pointwise as triton_pointwise
from hydragnn.kernels.triton import segments as triton_segments
from hydragnn.kernels.triton import sums as triton_sums
from hydragnn.kernels.triton.tiles import TILES, tile_shape
from tests.forked import Forked
from tests.hydragnn.op_checks import OPS, OpErrors, case_graphs, parts_of
from tests.hydragnn.training.recorder import launches_of
from tests.hydragnn.triton_interpreted import ROOTS, STRIDED

JITTED = [
    value
    for module in (triton_sums, triton_edges, triton_pointwise, triton_segments)
    for value in vars(module).values()
    if isinstance(value, triton.JITFunction) and value.__module__ == module.__name__
]
KERNELS = {function.__name__ for function in JITTED if function.do_not_specialize}
"""Names of what is launched; the others are called by these."""
VARIANTS = sum(len(op.variants) for op in OPS.values())
REDUCTIONS = sum(name.startswith("segment") for name in OPS)
CHECKS = {"derivatives": VARIANTS, "corners": VARIANTS * 2, "widths": VARIANTS * 3, "long": VARIANTS + REDUCTIONS + 7}
CHECKS |= {"strided": sum(map(len, STRIDED.values()))}


@pytest.mark.parametrize("suite", CHECKS)
def test_every_op_in_triton_equals_its_reference(suite: str, root: Path) -> None:
    """In a process of its own, since Triton decides when it is imported whether it interprets."""
    script = root / "tests" / "hydragnn" / "triton_interpreted.py"
    run = Forked([str(script), suite], {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)})
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert json.loads(said.splitlines()[-1]) == {"checks": CHECKS[suite], "failures": []}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA or AMD")
@pytest.mark.parametrize("name", OPS)
def test_every_op_on_a_gpu_equals_its_reference_and_gives_the_same_bits_again(name: str) -> None:
    op = OPS[name]
    for dtype in op.tolerance:
        for channels in (3, 64):
            for case, given in op.cases(case_graphs(), channels):
                errors = op.compare(given, dtype=dtype, device="cuda")
                rounded = name in ROOTS and dtype != torch.float64
                assert op.within(OpErrors(errors.forward) if rounded else errors, dtype), (case, dtype)
                there = given.to("cuda", dtype)
                both = (parts_of(op.call(*there.tensors, *there.rest)) for _ in range(2))
                assert all(torch.equal(one, other) for one, other in zip(*both))


@pytest.mark.parametrize("name", OPS)
def test_no_op_adds_atomically_on_a_gpu_nor_do_its_derivatives(name: str) -> None:
    def work() -> None:
        for _, case in OPS[name].cases({"random": random_graph(64, 10)}):
            tensors = [tensor.requires_grad_() for tensor in case.tensors]
            parts = parts_of(OPS[name].call(*tensors, *case.rest))
            first = torch.autograd.grad(sum(part.square().sum() for part in parts), tensors, create_graph=True)
            torch.autograd.grad(sum(part.square().sum() for part in first), tensors, allow_unused=True)

    assert unordered_on_a_gpu(work) == {}


COMPILED = [
    ("gfx90a", "", "float32", 64),
    ("sm_90", "outer", "float32", 64),
    ("gfx942", "gather_add", "bfloat16", 40),
    ("gfx950", "segment_max", "float32", 20),
]
"""All kernels for the oldest card of AMD, in each of their forms once, and a part for the others; `hydragnn kernels compile` compiles the rest."""


@pytest.mark.parametrize(("architecture", "only", "dtype", "channels"), COMPILED)
def test_kernels_compile_for_other_machines(
    architecture: str, only: str, dtype: str, channels: int, tmp_path: Path
) -> None:
    options = ["--arch", architecture, "--dtype", dtype, "--channels", str(channels), *(["--only", only] * bool(only))]
    entry = ["-m", "hydragnn.scripts"] if only else [str(Path(__file__).with_name("compiled_forms.py"))]
    run = Forked([*entry, "kernels", "compile", *options, "--json"], {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)})
    output, _ = run.communicate()
    assert run.returncode == 0, output
    result = json.loads(output.splitlines()[-1])
    assert result["cache"] == str(tmp_path) and any(tmp_path.rglob("*.cubin" if only == "outer" else "*.hsaco"))
    assert set(result["kernels"]) == KERNELS if not only else result["kernels"]


@pytest.mark.parametrize("long", [False, True], ids=["short rows", "a long row"])
def test_windows_of_long_rows_are_launched_only_where_a_row_is_long(long: bool) -> None:
    nodes, degree = (2, 600) if long else (200, 6)
    edges = random_graph(nodes, degree)
    x, weight = torch.ones(nodes, 4), torch.ones(edges.num_edges, 4)
    edges.prepare()
    kernels, _ = launches_of(lambda: OPS["gather_multiply_sum"].call(x, weight, edges))
    assert kernels["sum_rows"] == 1 + long and kernels["join_windows"] == long
    kernels, _ = launches_of(lambda: OPS["segment_max"].call(weight, edges.receivers, nodes))
    assert kernels["reduce_rows"] == (not long) and not kernels["sort"]


def test_every_tile_has_two_edges_at_least() -> None:
    """A tile of three axes of 128 numbers in fp64 may hold less than one edge."""
    tiles = [tile for by_architecture in TILES.values() for tile in by_architecture.values()]
    assert min(tile_shape(tile, 128, 6)[0] for tile in tiles) == 2


def test_kernels_compile_beside_the_checks_of_annotations() -> None:
    """Triton reads the names in a kernel from its globals, so that nothing may be wrapped around it."""
    assert {one.fn.__globals__["__name__"] for one in JITTED} == {one.__module__ for one in JITTED}
