"""Kinds of data sources, one file each."""
