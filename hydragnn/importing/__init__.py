"""Files of the public HydraGNN as runs of this program."""
