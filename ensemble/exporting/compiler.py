"""torch's compiler for packages that check their inputs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from hydragnn.base.errors import InputError

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
