"""The compiled loops for CPUs: what they give, what they leave to plain torch, and what happens where they are not built."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hydragnn.kernels import Case, Topology, gather_multiply_sum, segment_softmax, segment_sum, silu
from hydragnn.kernels.activation import SLOPE_GRADIENTS
from hydragnn.kernels.cpu import compiled
from hydragnn.kernels.family import ANYWHERE, Family, plain_forms
from hydragnn.kernels.gathered_outer import GATHERED_OUTER
from hydragnn.kernels.ops import numbers, random_graph
from hydragnn.kernels.trilinear import PER_CHANNEL
from tests.hydragnn.op_checks import OPS, Op, case_graphs, graph, parts_of

GRAPHS = case_graphs() | {
    "senders backwards": graph(9, 9, [(8 - e % 9, e // 3) for e in range(27)]),
    "all from one": graph(7, 7, [(3, e // 2) for e in range(14)]),
    "random": random_graph(11, 4, seed=3),
}
ROWS_OF = {"row_sum": "rows", "column_sum": "columns", "edge_product": "weights", "sum_along": "rows"}
built = pytest.mark.skipif(compiled.library() is None, reason="the compiled kernels are not built")
with_forms_of_their_own = pytest.mark.parametrize("name", [name for name, op in OPS.items() if "cpu" in op.forms])


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "csr.so")
    compiled.library.cache_clear()
    yield
    monkeypatch.undo()
    compiled.library.cache_clear()


def pairs(
    op: Op, one: str, case: Case, other: str = ANYWHERE, of: Case | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each value of one form and of another, or of the reference, of the same case or of one that it is a view of."""
    of = case if of is None else of
    forms = {**op.forms, "reference": op.reference}
    yield from zip(parts_of(forms[one](*case.tensors, *case.rest)), parts_of(forms[other](*of.tensors, *of.rest)))


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 20, 130])
@with_forms_of_their_own
def test_every_width_equals_the_reference(name: str, width: int, dtype: torch.dtype) -> None:
    op = OPS[name]
    for case, given in op.cases({key: GRAPHS[key] for key in ("many", "all from one", "random")}, width):
        # derivatives too where edges are random
        form = None if case.startswith("random") else "cpu"
        assert op.within(op.compare(given, dtype=dtype, form=form), dtype), case


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_second_derivative_of_silu_is_exact_to_roundings_everywhere(dtype: torch.dtype) -> None:
    """Also where exp(-x) goes beyond the dtype; NaN stays NaN."""
    far = torch.tensor([-1e4, -800.0, -100.0, -88.0, 88.0, 100.0, 800.0, 1e4])
    x = torch.cat([torch.linspace(-40, 40, 4001), far]).to(dtype)
    exact, ones = x.double(), torch.ones_like(x)
    s = torch.sigmoid(exact)
    expected = s * (1 - s) * (2 + exact * (1 - 2 * s))
    value, _ = SLOPE_GRADIENTS["cpu"](x, ones, ones)
    # 1 - s is exact to half an epsilon, and multiplied by x, up to 37 where s rounds to 1 in fp64
    assert float((value.double() - expected).abs().max()) < 20 * torch.finfo(dtype).eps
    assert SLOPE_GRADIENTS["cpu"](ones * torch.nan, ones, ones)[0].isnan().all()


def test_silu_takes_tensors_of_every_layout() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for view in (x.t(), x[:, ::2], x[1], x[:0]):
        assert torch.autograd.gradcheck(silu, (view,)) and torch.autograd.gradgradcheck(silu, (view,))


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_over_edges_have_the_bits_of_plain_torch(dtype: torch.dtype) -> None:
    for name in ("gather_multiply_sum", "scatter_multiply_sum", "segment_sum"):
        op = OPS[name]
        for case, given in op.cases({"many edges": random_graph(40, 25)}, 33):
            if case.endswith(("weight per channel", "channels")):
                assert all(torch.equal(*pair) for pair in pairs(op, "cpu", given.to(dtype=dtype))), case


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("family", [PER_CHANNEL, GATHERED_OUTER], ids=["per channel", "along directions"])
def test_gradients_made_in_one_pass_have_the_bits_of_those_made_one_by_one(family: Family, dtype: torch.dtype) -> None:
    edges = random_graph(12, 6)
    numbered = torch.arange(72) // 2
    ways = {
        "own weights": edges,
        "pairs as they are met": edges.sharing(numbered, 36),
        "pairs in another order": edges.sharing(35 - numbered, 36),
        "a weight that no edge has": edges.sharing(numbered, 37),
    }
    normal = numbers(0)
    for way, topology in ways.items():
        for axes in ((), (3,)) if family is PER_CHANNEL else ((),):
            sizes = {"columns": (*axes, 70), "rows": (*(axes or (3,) * (family is GATHERED_OUTER)), 70)}
            sizes |= {"weights": (70,), "edges": (3,)}
            # zeros of both signs: what is added to zero loses its sign
            made = {name: normal(getattr(topology, f"num_{name}"), *size).round() for name, size in sizes.items()}
            made = {name: tensor.to(dtype) for name, tensor in made.items()}
            for name, member in family.members.items():
                if not member.together:
                    continue
                incoming = made[ROWS_OF[name]]
                known = (*(made[item] for item in member.items), incoming)
                values = member.together["cpu"](*known, topology)
                assert values is not None, (way, name)
                for value, (derivative, places) in zip(values, member.derivatives):
                    expected = family.members[derivative].forms["cpu"](*[known[place] for place in places], topology)
                    assert torch.equal(value, expected), (way, name, derivative)
                    assert torch.equal(value.signbit(), expected.signbit()), (way, name, derivative)


@built
def test_in_halves_and_with_two_dtypes_gradients_are_made_one_by_one() -> None:
    """The compiled pass serves neither; what it would give is there all the same, in the dtype of each tensor."""
    edges = GRAPHS["many"]
    half, single = torch.bfloat16, torch.float32
    for ours, theirs in ((half, half), (half, single), (torch.float64, single)):
        x = torch.ones(6, 3, dtype=ours, requires_grad=True)
        weight = torch.ones(20, 3, dtype=theirs, requires_grad=True)
        for_x, for_weight = torch.autograd.grad(gather_multiply_sum(x, weight, edges).sum(), (x, weight))
        assert for_x.dtype == ours and for_weight.dtype == theirs
        assert float(for_x.sum()) == float(for_weight.sum()) == 60


@built
@with_forms_of_their_own
def test_infinities_and_nan_go_where_the_reference_has_them(name: str) -> None:
    op = OPS[name]
    for case, given in op.cases(GRAPHS):
        for place in range(len(given.tensors)):
            tensors = [tensor.clone() for tensor in given.tensors]
            for bad, value in enumerate((float("nan"), float("inf"), -float("inf"))):
                tensors[place].view(-1)[bad::7] = value
            broken = replace(given, tensors=tuple(tensors))
            for actual, exact in pairs(op, "cpu", broken, "reference"):
                torch.testing.assert_close(actual, exact, equal_nan=True, msg=f"{case}, tensor {place}")


@built
@with_forms_of_their_own
def test_tensors_that_are_not_dense_give_the_same(name: str) -> None:
    op = OPS[name]
    for case, given in op.cases(GRAPHS):
        strided = tuple(tensor.repeat_interleave(2, dim=-1)[..., ::2] for tensor in given.tensors)
        turned = tuple(tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in given.tensors)
        for tensors in (strided, turned):
            view = replace(given, tensors=tensors)
            assert all(torch.equal(*pair) for pair in pairs(op, "cpu", view, "cpu", given)), case


@built
@pytest.mark.parametrize("name", ["segment_statistics", "segment_max"])
@pytest.mark.parametrize("width", [1, 20, 130])
def test_statistics_of_one_pass_have_the_bits_of_plain_torch_and_its_derivatives(name: str, width: int) -> None:
    op = OPS[name]
    for case, given in op.cases(GRAPHS, width):
        moved = given.to(dtype=torch.float32)
        values = parts_of(op.call(*moved.tensors, *moved.rest))
        with plain_forms():
            assert all(torch.equal(*pair) for pair in zip(values, parts_of(op.call(*moved.tensors, *moved.rest)))), case


@built
def test_shares_of_far_scores_are_those_of_torch() -> None:
    """Below exp(-87) in fp32 nothing is left, and nothing overflows; beside infinity all is NaN, as torch has it."""
    scores = torch.tensor([[0.0, 1e30, -1e30, 3.0], [-50.0, 1e30, 88.0, torch.inf], [-100.0, 0.0, 89.0, 2.0]])
    shares = segment_softmax(scores, torch.zeros(3, dtype=torch.int64), 1)
    torch.testing.assert_close(shares, scores.softmax(0), rtol=1e-6, atol=1e-37, equal_nan=True)


@built
@pytest.mark.parametrize("name", ["segment_statistics", "segment_max", "segment_sum"])
def test_receivers_in_any_order_give_what_plain_torch_gives(name: str) -> None:
    messages = torch.linspace(-1, 1, 14, dtype=torch.float64).sin().reshape(7, 2)
    assert OPS[name].within(OPS[name].compare(Case(tensors=(messages,), rest=(torch.tensor([3, 0, 2, 0, 3, 3, 1]), 5))))


@built
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@with_forms_of_their_own
def test_half_precision_is_left_to_plain_torch(name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    for _, given in op.cases(GRAPHS):
        assert all(torch.equal(*pair) for pair in pairs(op, "cpu", given.to(dtype=dtype)))


@built
def test_a_receiver_that_is_no_node_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        segment_sum(torch.ones(2, 3), torch.tensor([0, 2]), 2)


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("name", OPS)
def test_without_the_library_every_op_equals_its_reference(name: str) -> None:
    op = OPS[name]
    for case, given in op.cases({name: GRAPHS[name] for name in ("no edges", "many")}):
        assert op.within(op.compare(given)), case


@pytest.mark.usefixtures("without_library")
def test_a_missing_library_is_said_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    edges = Topology.square(torch.tensor([0]), torch.tensor([0]), 1)
    for _ in range(2):
        assert gather_multiply_sum(torch.ones(1, 1), torch.ones(1, 1), edges).tolist() == [[1.0]]
    assert capsys.readouterr().err == (
        "note: the compiled kernels for CPUs are not built; install the package again where there is a C++ compiler; "
        "plain torch is used instead\n"
    )
    compiled.LIBRARY.write_bytes(b"not a library")
    compiled.library.cache_clear()
    assert compiled.library() is None
    assert "cannot be used" in capsys.readouterr().err
    monkeypatch.undo()
    if compiled.LIBRARY.exists():
        monkeypatch.setattr(compiled, "VERSION", compiled.VERSION + 1)
        compiled.library.cache_clear()
        assert compiled.library() is None
        assert "was built from another version" in capsys.readouterr().err


def test_the_library_of_the_current_folder_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.LIBRARY.parent == Path(compiled.__file__).resolve().parent
    (tmp_path / compiled.LIBRARY.name).write_bytes(b"not a library")
    monkeypatch.chdir(tmp_path)
    compiled.library.cache_clear()
    assert compiled.LIBRARY.is_absolute() and (compiled.library() is not None) == compiled.LIBRARY.exists()


def test_an_installation_without_a_compiler_goes_on(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    environment = {"PATH": "/usr/bin:/bin", "CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))


@built
def test_the_sources_give_no_warning(root: Path) -> None:
    """By the front end of the compiler alone; that they compile to a library is seen where they are installed."""
    flags = re.search(r"extra_compile_args=\[(.*?)\]", (root / "setup.py").read_text(), re.DOTALL)
    assert flags
    command = ["c++", *re.findall(r'"(.*?)"', flags[1]), "-fsyntax-only", "hydragnn/kernels/cpu/csr.cpp"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout + done.stderr
