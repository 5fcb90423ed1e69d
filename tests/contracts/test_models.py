"""Every architecture of the house keeps the promises that ship in ``hydragnn.conformance``; a new file is under them by being there."""

from hydragnn.architectures import architectures
from hydragnn.conformance import ArchitectureConformance

globals().update(
    {
        f"Test{architecture.__name__}": type(
            f"Test{architecture.__name__}", (ArchitectureConformance,), {"architecture": kind, "__module__": __name__}
        )
        for kind, architecture in architectures().items()
    }
)
