"""Forms for CPUs: compiled loops and the calls to them."""
