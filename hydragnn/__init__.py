"""HydraGNN Ensemble: from graphs to calibrated predictions.

The package's rooms lie at the top of the repository (``graphs``, ``datasets``, ``hpo``, ``ensemble``, ``scripts``); a bare
checkout finds them because the checkout is appended to this package's path. This file stays light: every room's
import runs it, so the Python face (``hydragnn.train`` and its like) is loaded on first use.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "graphs" / "__init__.py").is_file():
    __path__.append(str(_checkout))

_FACE = (
    "build_store",
    "train",
    "search",
    "submit",
    "status",
    "simulate",
    "build_ensemble",
    "predict",
    "report",
    "doctor",
    "load",
)


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module("hydragnn.scripts.face"), name)
    raise AttributeError(f"module 'hydragnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_FACE]
