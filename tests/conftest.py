"""Annotations are checked in the tests, shapes by jaxtyping, and every test runs on one thread."""

import gc
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype
from hypothesis import settings
from jaxtyping import install_import_hook

with_shapes = jaxtyping.jaxtyped
without_shapes = beartype(conf=BeartypeConf(violation_type=TypeError))  # as jaxtyping raises it


def has_shape(annotation: object) -> bool:
    """Return True for an annotated shape, and for what holds one."""
    inner = annotation if isinstance(annotation, list) else get_args(annotation)
    shape = isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray)
    return shape or any(map(has_shape, inner))


ALWAYS, SOMETIMES = 5, 25
"""Of the calls of a function in a test, so many are checked first, and then every 25th."""
running_test = [0]
"""The number of the test that runs; every test counts calls anew."""


def checked(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """What the import hook puts around a function or a class: jaxtyping where a shape is annotated, else beartype alone.

    It proves the same, since shapes are compared within one call only; but jaxtyping binds the arguments of every call,
    which took most of the time of what has no shapes. Annotations in quotes are left to jaxtyping, which passes over them.
    What checks a function is made when it is first called, as most functions are by few tests.
    """
    if function is None:
        return partial(checked, typechecker=typechecker)
    if isinstance(function, type):
        if is_dataclass(function):
            function.__init__ = checked(function.__init__, typechecker=typechecker)
        return function
    if "return" not in function.__annotations__:
        return function  # a kernel: Triton compiles its source with its globals, which a wrapper has not
    strict: Callable[..., Any] | None = None
    test = calls = 0

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        nonlocal strict, test, calls
        if torch.compiler.is_dynamo_compiling():  # which cannot count
            return function(*given, **named)
        if test != running_test[0]:
            test, calls = running_test[0], 0
        calls += 1
        # numbers of nodes are symbols where a test traces graphs and says so
        if (calls > ALWAYS and calls % SOMETIMES) or jaxtyping.config.jaxtyping_disable:
            return function(*given, **named)
        strict = strict or strictly(function, typechecker)
        return strict(*given, **named)

    return call


def strictly(function: Callable[..., Any], typechecker: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with all its annotations checked."""
    annotations = getattr(function, "__annotations__", {}).values()
    if any(isinstance(one, str) or has_shape(one) for one in annotations):
        return with_shapes(function, typechecker=typechecker)
    return without_shapes(function)


def pytest_runtest_setup() -> None:
    running_test[0] += 1


def pytest_collection_finish() -> None:
    """Leave thousands of tests out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


jaxtyping.jaxtyped = checked
install_import_hook("hydragnn", "beartype.beartype")
torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # processes of tests would ignore it under nohup, as they should
settings.register_profile("tests", deadline=None)  # the first example also imports; a busy machine is no failure
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parent.parent
# for `from clockwork import Clockwork`: pytest's importlib mode leaves folders out
sys.path += [str(ROOT / "tests" / "hpo")]


@pytest.fixture(autouse=True)
def allowed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the modules that a test has allowed, which trials of later tests would be started with."""
    from hydragnn.base import imports  # after the hook above

    monkeypatch.setattr(imports, "_allowed", set(imports._allowed))


@pytest.fixture
def in_double() -> Iterator[None]:
    """Make layers and models in float64, from one seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data beside the project; skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; see docs/recipes.md")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in this process; gives exit code, output and error output."""
    from hydragnn.scripts import cli  # after the hook above

    def calling(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hydragnn", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return calling


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures of reports empty; they take most of the time, and many tests are about words."""
    for name in ("canvas.picture", "where.picture"):
        monkeypatch.setattr(f"hydragnn.scripts.report.{name}", lambda *_, **__: "<svg/>")


@pytest.fixture(scope="session")
def played() -> ModuleType:
    """The module that plays campaigns through the real scheduler on a virtual clock."""
    return importlib.import_module("clockwork")


@pytest.fixture(scope="session")
def slurm_module() -> ModuleType:
    """The module that brings up a real Slurm; skips, with the reason, where this machine cannot have one."""
    module = importlib.import_module("tests.slurm")
    reason = module.why_not()
    if reason:
        pytest.skip(f"no real Slurm: {reason}")
    return module


@pytest.fixture(scope="session")
def slurm(slurm_module: ModuleType) -> Iterator[Any]:
    with slurm_module.Cluster(4, 4, 4, 4) as cluster:
        yield cluster
