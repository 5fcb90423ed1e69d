"""This machine: a job step is its program."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hydragnn.base.machine import cores, visible_gpus
from hydragnn.hpo.launching.allocation import Allocation, Run, alike
from hydragnn.hpo.launching.sites.base import Site, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Local(Site):
    """Processes of this machine."""

    name: ClassVar = "local"
    pack_nodes: int = 1

    @classmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return this machine."""
        return Allocation(nodes=alike([socket.gethostname()], cores(), visible_gpus()))

    def command(self, step: Step) -> list[str]:
        """Return the program of the step."""
        return list(step.program)
