"""Estimates of one target: mixtures of members, their metrics and calibrations."""
