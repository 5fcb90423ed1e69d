"""What the neighbours are worth: errors with and without edges, for the report."""

from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed
from hydragnn.scripts.report.facts import Ablation


def ablation_facts(folder: Path) -> tuple[Ablation, ...]:
    """The rows of ``ablation.json``; none where there is no such file. InputError where it is something else."""
    path = folder / "ablation.json"
    if not path.is_file():
        return ()
    try:
        return tuple(
            Ablation(
                field=str(field),
                unit=str(values.get("unit", "")),
                with_edges=float(values["with_edges"]),
                without_edges=float(values["without_edges"]),
                trivial=float(values["trivial"]),
            )
            for field, values in read_sealed(path).items()
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not an ablation ({error!r}); remove it or repeat the ablation") from error
