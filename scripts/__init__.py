"""Thin: the command line, the Python api, quickstart, recipes and the report."""
