"""A process that makes a compiled step's code for an H100 on a machine without a GPU; started by the tests.

``python compiling_offline.py KIND FOLDER`` prints, as JSON, how many kernels the compiler writes in Triton for a step (predictions with forces and stress,
and their gradient), how many of these add atomically, and which operators of ours the code calls. Tensors are fake: torch plans for a device of NVIDIA,
and nothing is run. A guard for devices that are not there is compiled in FOLDER, since torch for CPUs brings none.
"""

import ctypes
import json
import re
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo.utils
import torch._inductor.config
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch.fx import GraphModule
from torch.fx.node import map_aggregate
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

sys.path.insert(0, str(Path(__file__).parent))
from compiling import step_on_a_gpu

from hydragnn.models.compiled import options_on
from hydragnn.models.compiler import mended_compiler

GUARD = """#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace { C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>); }
"""
LIMITS: dict[str, int] = {
    "multi_processor_count": 132,
    "major": 9,
    "warp_size": 32,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
}
CARD = SimpleNamespace(
    name="NVIDIA H100",
    gcnArchName="",
    minor=0,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    shared_memory_per_block_optin=232448,
    **LIMITS,
)
PRESENT: dict[str, Any] = {
    "torch._dynamo.utils.preserve_rng_state": nullcontext,
    "torch.cuda._exchange_device": lambda number: 0,
    "torch.cuda._maybe_exchange_device": lambda number: 0,
    "torch.cuda._lazy_init": lambda: None,
    "torch.cuda.current_device": lambda: 0,
    "torch.cuda.device_count": lambda: 1,
    "torch.cuda.is_available": lambda: True,
    "torch.cuda.get_device_capability": lambda *_: (9, 0),
    "torch.cuda.get_device_properties": lambda *_: CARD,
}


class Written(BaseException):
    """The code is written, and not to be loaded."""


def written(lowering: GraphLowering) -> None:
    """Stand where the compiler loads what it has written."""
    raise Written(lowering.codegen()[0].value)


def guard(folder: Path) -> None:
    """Load a device guard for CUDA that does nothing."""
    torch_folder, source, library = Path(torch.__file__).parent, folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD)
    links = [f"-I{torch_folder}/include", str(source), f"-L{torch_folder}/lib", "-lc10", "-o", str(library)]
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", *links], check=True)
    ctypes.CDLL(str(library))


def on_cuda(module: GraphModule) -> list[torch.Tensor]:
    """Move a traced module to a GPU that is not there; return its arguments."""

    def moved(value: Any) -> Any:
        return torch.device("cuda", 0) if isinstance(value, torch.device) else value

    arguments = module.graph.find_nodes(op="placeholder")
    mode = arguments[0].meta["val"].fake_mode
    for node in module.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
    for node in arguments:
        value = node.meta["val"]
        with mode:
            node.meta["val"] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")
    module.recompile()
    inputs = [node.meta["val"] for node in arguments]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    return inputs


def code_of(module: GraphModule, inputs: list[torch.Tensor]) -> str:
    """Return what the compiler writes."""
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_device_interface=lambda: torch.cuda,
        )
    )
    properties = DeviceProperties(type="cuda", index=0, cc=90, max_threads_per_block=1024, **LIMITS)
    with ExitStack() as stack:
        for name, value in PRESENT.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch.object(DeviceProperties, "create", lambda device: properties))
        stack.enter_context(patch.object(GraphLowering, "compile_to_module", written))
        stack.enter_context(mended_compiler())
        stack.enter_context(torch._inductor.config.patch(**options_on("cuda"), fx_graph_cache=False))
        stack.enter_context(tracing(TracingContext(inputs[0].fake_mode)))
        try:
            compile_fx_inner(module, inputs)
        except Written as code:
            return str(code)
    raise AssertionError("the compiler wrote nothing")


def main() -> None:
    """Print one JSON value."""
    torch.set_num_threads(1)
    module = step_on_a_gpu(sys.argv[1], nullcontext, torch.float32)
    guard(Path(sys.argv[2]))
    code = code_of(module, on_cuda(module))
    result = {
        "kernels": code.count("async_compile.triton("),
        "atomic": code.count("tl.atomic_add"),
        "ours": sorted(set(re.findall(r"= torch\.ops\.hydragnn\.(\w+)\.default\(", code))),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
