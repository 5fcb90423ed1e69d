"""Thin: the command line, the Python face, quickstart, recipes and the report."""
