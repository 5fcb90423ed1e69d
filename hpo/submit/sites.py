"""What differs between schedulers and machines: how a job is submitted, and where its nodes keep copies."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import environment_alone

PATIENCE = 120.0  # seconds that a scheduler may take to answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduler:
    """The commands of one scheduler."""

    directive: str
    """What begins a line that the scheduler reads."""
    submit: tuple[str, ...]
    submit_from_job: tuple[str, ...]
    """The same from within a job; Flux would else give the job's own nodes to its successor."""
    after: str
    """Options that make a job wait for the end of job ``{}``, however it ends."""
    inherited: str = ""
    """Beginnings of variables that a job must not inherit from the job that submitted it."""

    def command(self, script: str, after: str | None) -> list[str]:
        """The command line that submits a script.

        >>> SCHEDULERS["pbs"].command("job.sh", after="7.server")
        ['qsub', '-W', 'depend=afterany:7.server', 'job.sh']
        """
        waits = [] if after is None else self.after.format(after).split()
        return [*(self.submit if after is None else self.submit_from_job), *waits, script]

    def submit_script(self, script: str, after: str | None = None) -> str:
        """Submit a script and give the job's name at the scheduler; InputError with its words where it refuses."""
        command = self.command(script, after)
        environment = {key: value for key, value in environment_alone().items() if not self._is_inherited(key)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        except FileNotFoundError:
            raise InputError(f"{command[0]} is not here; submit where the scheduler is, or see --dry-run") from None
        except subprocess.TimeoutExpired:
            raise InputError(f"{command[0]} did not answer within {PATIENCE:.0f} s; try again later") from None
        lines = done.stdout.split()
        if done.returncode != 0 or not lines:
            raise InputError(f"{command[0]} refuses {script}: {(done.stderr or done.stdout).strip()}")
        return lines[-1].partition(";")[0]  # Slurm adds ;cluster

    def _is_inherited(self, variable: str) -> bool:
        return bool(self.inherited) and re.match(self.inherited, variable) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A machine: its scheduler, and what its nodes usually offer."""

    scheduler: str
    storage: str = "/tmp"
    """Where nodes keep copies of environment and data."""


SCHEDULERS: Mapping[str, Scheduler] = {
    "slurm": Scheduler(
        directive="#SBATCH",
        submit=("sbatch", "--parsable"),
        submit_from_job=("sbatch", "--parsable"),
        after="--dependency=afterany:{}",
        inherited="SLURM_(?!CONF$)",
    ),
    "pbs": Scheduler(directive="#PBS", submit=("qsub",), submit_from_job=("qsub",), after="-W depend=afterany:{}"),
    "flux": Scheduler(
        directive="#flux:",
        submit=("flux", "batch"),
        submit_from_job=("flux", "--parent", "batch"),
        after="--dependency=afterany:{}",
    ),
}

SITES: Mapping[str, Site] = {
    "slurm": Site(scheduler="slurm"),
    "frontier": Site(scheduler="slurm", storage="/mnt/bb/$USER"),
    "perlmutter": Site(scheduler="slurm"),
    "pbs": Site(scheduler="pbs"),
    "aurora": Site(scheduler="pbs"),
    "flux": Site(scheduler="flux"),
}
