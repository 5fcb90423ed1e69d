"""Parts of a machine that the package can use."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from typing import Any

from hydragnn import __version__
from hydragnn.base.machine import ROOM, in_words, this_machine
from hydragnn.base.shown import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation(Shown):
    """Versions, devices and tools; what is missing says how to get it."""

    hydragnn: str
    torch: str
    """Version, threads and the backends of torch.distributed."""
    gpus: tuple[str, ...]
    """Names of the devices that torch sees."""
    compiled_kernels: str
    """State of the loops for CPUs, which the installation compiles."""
    triton: str
    mpi: str
    adios2: str
    h5py: str
    optuna: str
    scheduler: str
    """Slurm, PBS or Flux, where their commands are on the path."""
    workers: str
    """Number of local processes of ``--workers auto``, and what decides it."""
    optional: Mapping[str, str]
    """Packages that only some commands need."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON."""
        return {**asdict(self), "gpus": list(self.gpus)}

    def __str__(self) -> str:
        """Versions and devices in a line."""
        return f"hydragnn {self.hydragnn}, torch {self.torch}; GPUs: {', '.join(self.gpus) or 'none'}"


def installation() -> Installation:
    """Return the parts of this machine; a missing one is no error."""
    from shutil import which

    import torch

    commands, machine = {"slurm": "srun", "pbs": "qsub", "flux": "flux"}, this_machine()
    backends = [n for n in ("gloo", "nccl", "mpi", "ucc") if getattr(torch.distributed, f"is_{n}_available", bool)()]
    schedulers = [name for name, command in commands.items() if which(command)]
    return Installation(
        hydragnn=__version__,
        torch=f"{torch.__version__}, {torch.get_num_threads()} threads, distributed: {', '.join(backends) or 'none'}",
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        compiled_kernels=_compiled_kernels(),
        triton=_version_of("triton"),
        mpi=_mpi(),
        adios2=_adios2(),
        h5py=_version_of("h5py"),
        optuna=_version_of("optuna"),
        scheduler=", ".join(schedulers) or "none: trials run as local processes",
        workers=f"--workers auto: {machine.workers()}, of one thread and {in_words(ROOM)} beside batches each ({machine})",
        optional={name: _version_of(name) for name in ("scikit-fem", "pyarrow", "tensorboard", "optuna-dashboard")},
    )


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _mpi() -> str:
    try:
        mpi = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        return f"not usable ({str(error).splitlines()[0]}); on a laptop: pip install 'hydragnn-ensemble[mpi]'"
    return str(mpi.Get_library_version()).splitlines()[0].strip("\x00 ")


def _adios2() -> str:
    try:
        adios2 = import_module("adios2")
    except ImportError as error:
        return f"not usable ({error}); pip install adios2"
    return f"{adios2.__version__}, MPI {'on' if adios2.is_built_with_mpi else 'off (one part file per writer)'}"


def _compiled_kernels() -> str:
    from hydragnn.kernels.cpu import compiled

    try:
        compiled.load(compiled.LIBRARY)
    except compiled.UNUSABLE as error:
        return f"none: {compiled.reason(error)}"
    return f"built: {compiled.LIBRARY.name}"
