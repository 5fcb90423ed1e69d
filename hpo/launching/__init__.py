"""Launchers: attempts as local processes, as job steps, or in packs.

Modules are imported by name, because settings need ``sites`` alone, without what trains.
"""
