"""Launchers: attempts as processes of this machine, as job steps, or in packs of resident workers.

Modules are imported by name, because settings need ``sites`` alone, without what trains.
"""
