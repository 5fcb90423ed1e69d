"""Trials of a search with the public HydraGNN."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.settings import leaves
from hydragnn.hpo.warm import number_in, results
from hydragnn.importing.configuration import import_configuration
from hydragnn.importing.finding import ModelFiles, logged_losses

RESULTS = "results.csv"


def losses_of(models: Sequence[ModelFiles], path: Path) -> dict[Path, float]:
    """Return what a search minimised, by checkpoint.

    Of ``results.csv``, else of the logs beside checkpoints.
    """
    for place in [*path.glob(RESULTS), *sorted(path.glob(f"*/{RESULTS}"))] if path.is_dir() else []:
        try:
            rows = {row.get("job_id"): (score, row) for score, row in results(place) if score is not None}
        except InputError:  # of another program
            continue
        trials = [(one, rows.get(re.split(r"\D", one.checkpoint.parent.name)[-1])) for one in models]
        if own := {one.checkpoint: row[0] for one, row in trials if row and _agree(row[1], one)}:
            return own
    logs = {one.checkpoint: [*filter(math.isfinite, logged_losses(one.checkpoint.parent) or ())] for one in models}
    return {checkpoint: min(values) for checkpoint, values in logs.items() if values}


def _agree(row: Mapping[str, str], model: ModelFiles) -> bool:
    """Return True where a row has the settings of a model."""
    try:
        source = model.source
        known = {**source.architecture, **source.section("NeuralNetwork", "Training", "Optimizer")}
    except InputError:  # of a damaged configuration, which the import names
        return False
    pairs = [(known[name[2:]], text) for name, text in row.items() if name[2:] in known and text]
    return all(str(value) == text or value == number_in(text) for value, text in pairs)


def best(models: Sequence[ModelFiles], losses: Mapping[Path, float], top_k: int) -> list[ModelFiles]:
    """Return the models with the lowest losses; InputError where fewer have one."""
    if top_k > len(losses):
        raise InputError(
            f"top-k = {top_k} exceeds the {len(losses)} of {len(models)} models whose validation loss a file states "
            "(results.csv, or events.out.tfevents.* or run.log beside the checkpoint); lower it"
        )
    return sorted((one for one in models if one.checkpoint in losses), key=lambda one: losses[one.checkpoint])[:top_k]


def results_text(losses: Mapping[Path, float]) -> str:
    """Return trials as DeepHyper writes them, by our names of parameters."""
    rows = list[dict[str, Any]]()
    for number, (checkpoint, loss) in enumerate(losses.items()):
        try:
            run = import_configuration(checkpoint.parent / "config.json").run
        except InputError:
            continue
        values = leaves({key: run[key] for key in ("batch", "model", "heads", "train") if key in run})
        texts = {f"p:{name}": value if isinstance(value, str) else json.dumps(value) for name, value in values}
        rows.append({**texts, "objective": -loss, "job_id": number})
    text = io.StringIO()
    writer = csv.DictWriter(text, [*dict.fromkeys(name for row in rows for name in row)])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue() if len(rows) > 1 else ""
