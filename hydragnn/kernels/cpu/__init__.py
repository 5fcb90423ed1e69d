"""Forms for CPUs: loops compiled from ``csr.cpp``, and the calls that hand them tensors."""
