"""Check that edges of a store were made as those of training."""

from collections.abc import Iterable, Mapping
from typing import Any

from hydragnn.architectures import ArchitectureSettings, GeometricSettings
from hydragnn.base.errors import InputError
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.graphs.units import CLOSE, LENGTH_UNIT, knows_length, length_in_angstrom
from hydragnn.runs.cutoff import ROUNDING


def check_edges(
    settings: Iterable[ArchitectureSettings], training: Mapping[str, Any], store_attributes: Mapping[str, Any]
) -> None:
    """Raise InputError where edges of a store end earlier than in training.

    ``settings`` are those of the members. A larger cutoff is as good where every member's messages end smoothly before it. Nothing is known of edges that come from no cutoff.
    """
    trained, cutoff = cutoff_of(training), cutoff_of(store_attributes)
    if trained is None or cutoff is None:
        return
    for name in ("max_neighbours", "cutoff"):
        in_training, now = training.get(name), store_attributes.get(name)
        if in_training != now and not (name == "cutoff" and all(_reaches(one, trained, cutoff) for one in settings)):
            raise InputError(
                f"the store was built with {_said(name, now)}, the graphs of training with {_said(name, in_training)}, so that nodes have other "
                "neighbours than members learned from; build it in the same way (hydragnn predict makes such graphs of files by itself)"
            )


def check_lengths(training: Mapping[str, Any], store_attributes: Mapping[str, Any]) -> None:
    """Raise InputError where positions are in another unit than in training.

    A built store that names none is in Angstrom. Nothing is known where training names none, and of units of one's own, such as the
    height of a plate.
    """
    if not knows_length(training) or not (LENGTH_UNIT in store_attributes or "source" in store_attributes):
        return
    in_training, now = (str(attributes.get(LENGTH_UNIT, "Angstrom")) for attributes in (training, store_attributes))
    try:
        other = (
            in_training != now
            and abs(length_in_angstrom(training) / length_in_angstrom(store_attributes) - 1.0) > CLOSE
        )
    except InputError:
        return
    if other:
        raise InputError(
            f"the positions of the store are in {now}, those of training in {in_training}; build it in {in_training}, or name its unit under "
            "[attributes] (length_unit)"
        )


def _reaches(settings: ArchitectureSettings, trained: float, cutoff: float) -> bool:
    """Return True where edges up to ``cutoff`` suffice for members."""
    own = getattr(settings, "cutoff", None) or trained
    smooth = isinstance(settings, GeometricSettings) and settings.envelope != "none" and not settings.kinks
    least, most = (own, float("inf")) if smooth else (trained, trained)
    return least <= cutoff * ROUNDING and cutoff <= most * ROUNDING


def _said(name: str, value: Any) -> str:
    return f"{name} = {value:g}" if value is not None else f"no {name}"
