"""HydraGNN Ensemble: from graphs to calibrated predictions.

The package's rooms lie at the top of the repository (``graphs``, ``datasets``, ``hpo``, ``ensemble``, ``scripts``); a bare
checkout finds them because the checkout is appended to this package's path. This file stays light: every room's
import runs it, so the Python api (``hydragnn.train`` and its like) is loaded on first use.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn.base.environment import change_environment, environment

if TYPE_CHECKING:
    from hydragnn.scripts.api import (
        append_store,
        build_ensemble,
        build_store,
        doctor,
        evaluate,
        export,
        import_public,
        load,
        merge_stores,
        predict,
        report,
        save,
        search,
        simulate,
        status,
        store_info,
        submit,
        train,
    )

__version__ = "0.2.0"

__all__ = [
    "append_store",
    "build_ensemble",
    "build_store",
    "doctor",
    "evaluate",
    "export",
    "import_public",
    "load",
    "merge_stores",
    "predict",
    "report",
    "save",
    "search",
    "simulate",
    "status",
    "store_info",
    "submit",
    "train",
]

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "graphs" / "__init__.py").is_file():
    __path__.append(str(_checkout))

if "OMP_WAIT_POLICY" not in environment():
    # threads of OpenMP that wait for others go to sleep soon: beside other programs on the same cores, or within a container's
    # share of them, they would burn what those they wait for need (docs/launchers.md). Read once, when torch is loaded
    change_environment({"GOMP_SPINCOUNT": environment().get("GOMP_SPINCOUNT", "5000")})


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("hydragnn.scripts.api"), name)
    raise AttributeError(f"module 'hydragnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
