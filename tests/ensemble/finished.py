"""What an interrupted prediction keeps."""

from pathlib import Path

from hydragnn.ensemble.prediction.records import Records


def finished_units(parts: Path) -> int:
    """How many units were predicted so far, by those who worked in this folder."""
    records = Records(parts)
    records.look(all_files=True)
    return int(records.entries()["units"].sum())
