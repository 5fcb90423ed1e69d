"""Models for simulations of many structures at once."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn.base.errors import MissingPackageError
from hydragnn.ensemble.calculator import Outside, calculator
from hydragnn.ensemble.ensemble import Ensemble

if TYPE_CHECKING:
    from hydragnn.ensemble.exporting.torch_sim_states import TorchSimModel


def torch_sim_model(
    folder: Path | str | Ensemble, branch: str = "", *, outside: Outside = "warn", allow_code: Sequence[str] = ()
) -> "TorchSimModel":
    """Return torch-sim's model of a folder or a loaded ensemble.

    The arguments are those of ``calculator``. MissingPackageError without torch-sim.
    """
    if find_spec("torch_sim") is None:
        raise MissingPackageError("torch-sim-atomistic", "simulation", "a model of torch-sim")
    from hydragnn.ensemble.exporting.torch_sim_states import TorchSimModel

    return TorchSimModel(calculator(folder, branch, outside=outside, allow_code=allow_code))
