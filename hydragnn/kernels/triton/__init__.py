"""Forms for ROCm and CUDA: kernels in Triton, their tiles, and the calls that launch them."""
