"""Registry of sites: built in, announced by packages, or ``package.module:Name``."""

from collections.abc import Mapping
from dataclasses import replace

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import REFERENCE, announced_classes, class_of_kind
from hydragnn.hpo.launching.allocation import Allocation, Run, output_of
from hydragnn.hpo.launching.sites.base import Machine, Site
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.local import Local
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm

GROUP = "hydragnn.sites"  # entry-point group in which packages announce sites by name

SITES: dict[str, type[Site]] = {site.name: site for site in (Flux, Slurm, Mpiexec, Local)}
"""Sites by name. Flux is first, because it is often started inside a job of another scheduler."""

MACHINES = {machine: site for site in SITES.values() for machine in site.machines}


def check_site(name: str) -> str:
    """Return the name of a site; ValueError for an unknown one."""
    return _check(name, [*SITES, *announced_classes(GROUP)], "scheduler")


def check_machine(name: str) -> str:
    """Return the name of a machine; ValueError for an unknown one."""
    return _check(name, [*MACHINES, *announced_classes(GROUP)], "site")


def site_named(name: str, where: str = "search.launcher") -> type[Site]:
    """Return the site of a name; InputError for an unusable class."""
    parent = "hydragnn.hpo.launching.sites.Site"
    return class_of_kind(name, SITES, Site, group=GROUP, where=where, noun="site", parent=parent)


def machine_named(name: str) -> tuple[type[Site], Machine]:
    """Return the site and the machine that ``job.site`` names."""
    site = MACHINES.get(name) or site_named(name, "job.site")
    return site, site.machines.get(name, Machine())


def in_allocation(environment: Mapping[str, str]) -> bool:
    """Return True for the environment of an allocation."""
    return _name_here(environment) != Local.name


def read_allocation(environment: Mapping[str, str], run: Run | None = None, want: str = "auto") -> Allocation:
    """Return the allocation that this process runs in; without any, this machine.

    InputError where the wanted scheduler has given none, or where it does not answer.
    """
    name = _name_here(environment) if want == "auto" else want
    site = site_named(name)
    if not _is_here(site, environment):
        raise InputError(
            f'launcher = "{want}", but this is no allocation of it ({site.mark} is not set); start the search inside '
            'a job, with hydragnn search --submit, or set launcher = "local"'
        )
    return replace(site.allocation(environment, run or output_of), by=name)


def site_of(allocation: Allocation, run: Run = output_of) -> Site:
    """Return the site of an allocation, after asking its programs."""
    return site_named(allocation.by).here(run)


def _check(name: str, names: list[str], noun: str) -> str:
    if name not in names and not REFERENCE.fullmatch(name):
        raise ValueError(
            f"unknown {noun} {name!r}; {nearest(name, names)} (a class of your own is named package.module:Name)"
        )
    return name


def _is_here(site: type[Site], environment: Mapping[str, str]) -> bool:
    return not site.mark or bool(environment.get(site.mark))


def _name_here(environment: Mapping[str, str]) -> str:
    own = next(name for name, site in SITES.items() if _is_here(site, environment))
    others = announced_classes(GROUP) if own == Local.name else {}
    return next((name for name in others if _is_here(site_named(name), environment)), own)
