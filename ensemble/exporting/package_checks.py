"""Checks of inputs, compiled into packages of AOTInductor.

A compiled function reads memory as it lay in the example. Torch checks inputs where a variable of the environment asks for it, and never against each other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.ensemble.exporting.potential import ELEMENTS

CHECK = """
static void __check_inputs_outputs(AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {
    struct Input { const char* name; const char* form; int32_t dtype; std::vector<int64_t> sizes; int64_t limit; };
    const std::vector<Input> inputs = {
        {"positions", "float64 [atoms, 3]", aoti_torch_dtype_float64(), {-1, 3}, 0},
        {"species", "int64 [atoms]", aoti_torch_dtype_int64(), {-1}, ELEMENTS},
        {"cells", "float64 [structures, 3, 3]", aoti_torch_dtype_float64(), {-2, 3, 3}, 0},
        {"edges", "int64 [2, edges]", aoti_torch_dtype_int64(), {2, -3}, -1},
        {"images", "float64 [edges, 3]", aoti_torch_dtype_float64(), {-3, 3}, 0},
        {"owners", "int64 [atoms]", aoti_torch_dtype_int64(), {-1}, -2}};
    int64_t counts[] = {0, -1, -1, -1};  // of nothing, atoms, structures, edges
    for (size_t number = 0; number < inputs.size(); ++number) {
        const Input& wanted = inputs[number];
        int64_t dims = 0, all = 0, step = 1, *sizes = nullptr, *strides = nullptr, *values = nullptr;
        int32_t dtype = 0, device = 0;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(input_handles[number], &dims));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(input_handles[number], &all));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(input_handles[number], &sizes));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(input_handles[number], &strides));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(input_handles[number], &dtype));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(input_handles[number], &device));
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(input_handles[number], (void**)&values));
        bool right = dtype == wanted.dtype && device == aoti_torch_device_type_cpu() && dims == (int64_t)wanted.sizes.size();
        for (int64_t axis = dims - 1; right && axis >= 0; --axis) {
            int64_t size = wanted.sizes[axis];
            if (size < 0) {
                int64_t& count = counts[-size];
                size = count = count < 0 ? sizes[axis] : count;
            }
            right = sizes[axis] == size && (size < 2 || all == 0 || strides[axis] == step);
            step *= size;
        }
        const int64_t limit = wanted.limit < 0 ? counts[-wanted.limit] : wanted.limit;
        for (int64_t place = 0; right && limit && place < all; ++place) {
            right = values[place] >= 0 && values[place] < limit;
        }
        if (!right || counts[1] == 0 || counts[2] == 0) {
            throw std::runtime_error(
                std::string(wanted.name) + " are no contiguous " + wanted.form + " on the CPU, in agreement with the other inputs");
        }
    }
}
"""
"""C++ in place of torch's own, for the inputs that ``potential.INPUTS`` names."""


@contextmanager
def checked_inputs() -> Iterator[None]:
    """Compile packages that check their inputs, for the length of the block."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    former = CppWrapperCpu.generate_input_output_runtime_checks

    def write(wrapper: Any) -> None:
        splice = getattr(wrapper.prefix, "splice_aot", wrapper.prefix.splice)
        splice("#define __check_inputs_outputs __check_of_torch")
        former(wrapper)
        splice("#undef __check_inputs_outputs" + CHECK.replace("ELEMENTS", str(ELEMENTS)))

    with patch.object(CppWrapperCpu, former.__name__, write):
        yield


def check_package(place: Path, inputs: Sequence[Tensor]) -> None:
    """Raise InputError for a package that takes the example in single precision."""
    package = torch._inductor.aoti_load_package(str(place))
    try:
        package(inputs[0].to(torch.float32), *inputs[1:])
    except RuntimeError:
        return
    raise InputError(f"packages of torch {torch.__version__} do not check their inputs; take torch 2.13, or --to torch")
