"""Forms for ROCm and CUDA: Triton kernels and the calls to them."""
