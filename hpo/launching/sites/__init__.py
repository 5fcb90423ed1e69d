"""Sites: one file per scheduler, and the registry of all of them."""

from hydragnn.hpo.launching.sites.base import Batch, Evidence, Machine, NodeState, NodeStates, Site, Step, short_name
from hydragnn.hpo.launching.sites.registry import (
    check_machine,
    check_site,
    in_allocation,
    machine_named,
    read_allocation,
    site_named,
    site_of,
)
