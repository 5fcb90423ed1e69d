"""Chapters on the task and its configuration, and on the data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hydragnn.graphs.field import Field
from hydragnn.hpo.space.default import left_out_words
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Draw, Figure, Section, Table, table_of
from hydragnn.scripts.report.collect import heads_of
from hydragnn.scripts.report.facts import Data, Facts, Values
from hydragnn.scripts.report.words import join, pretty_unit, thousands, with_unit


def chapter(facts: Facts) -> Section:
    """Return the chapter on the data."""
    own = facts.data
    if own is None:
        return Section("data", "Data", f"The data cannot be shown: {facts.data_problem}.")
    place = facts.stores.get(facts.branch)
    branch = f"The data of branch {facts.branch} ({place}): " if place else ""
    attributes, sizes = own.store.attributes, own.sizes
    each = f"{thousands(int(sizes.nodes.min()))} to {thousands(int(sizes.nodes.max()))} in each"
    source = str(attributes.get("source", attributes.get("description", "")))
    lead = (
        f"{branch}{thousands(len(sizes))} graphs with {thousands(int(sizes.nodes.sum()))} nodes, {each}, and "
        f"{thousands(int(sizes.edges.sum()))} edges"
        + (f", in {own.store.dim} dimensions. " if own.store.dim else ", without geometry. ")
        + (f"Source: {source}. " if source else "")
    )
    if own.sampled < len(sizes):
        lead += f"Targets are from an even sample of {own.sampled} graphs."
    lead += "".join(f" Note: {note}." for note in own.notes)
    parts = parts_table(own, "held-out" in facts.evaluation.parts)
    return Section("data", "Data", lead, [targets(own)], [parts], [fields_table(own)])


def parts_table(data: Data, cross_validated: bool = False) -> Table:
    """Return the graphs of every part; with cross-validation, of the first member."""
    total = max(1, sum(data.parts.values()))
    purpose = {
        "train": "fits the weights",
        "valid": "chooses epoch, trial and members" + ("" if "calibration" in data.parts else "; fits intervals"),
        "calibration": "fits intervals; has chosen nothing",
        "test": "only judges",
    }
    if cross_validated:
        purpose |= {"valid": "chooses the epoch", "test": "judges this member and fits its intervals"}
    return table_of(
        data.parts,
        {
            "part": str,
            "graphs": lambda name: str(data.parts[name]),
            "share": lambda name: f"{100 * data.parts[name] / total:.0f} %",
            "what it does": lambda name: purpose.get(name, ""),
        },
        "Graphs by part." + " These are the parts of the first member; others hold out other graphs." * cross_validated,
        prose=frozenset({3}),
    )


def fields_table(data: Data) -> Table:
    """Return the fields of the store."""

    def all_or_some(counts: Mapping[str, tuple[int, int]]) -> str:
        if all(count == total for count, total in counts.values()):
            return "all"
        return ", ".join(f"{count} of {total} {part}" for part, (count, total) in counts.items() if total)

    fields, some = data.store.fields(), {name: all_or_some(counts) for name, counts in data.labels.items()}
    return table_of(
        fields,
        {
            "field": lambda field: field.name,
            "on": lambda field: field.on,
            "shape": lambda field: " × ".join(map(str, field.shape)) or "one number",
            "unit": lambda field: pretty_unit(field.unit) or "–",
            "turns as": lambda field: f"{field.classes} classes" if field.classes else field.parity,
            "role": lambda field: field.role,
            "graphs that have it": lambda field: all_or_some(
                {part: (data.present[field.name][part], total) for part, total in data.parts.items()}
            ),
            **({"labels": lambda field: some[field.name]} if {*some.values()} - {"all"} else {}),
        },
        "Fields of the store.",
    )


def targets(data: Data) -> Figure | None:
    """Return distributions of targets in training and in the held-out part."""
    fields = {field.name: field for field in data.store.fields()}
    present = {name: parts for name, parts in data.targets.items() if any(map(len, parts.values()))}
    held_out = "test" if any(len(parts.get("test", ())) for parts in present.values()) else "valid"

    def drawing(field: Field, parts: Mapping[str, Values]) -> tuple[Draw, str]:
        everything = np.concatenate([part for part in parts.values() if len(part)])
        low, high = np.quantile(everything, [0.001, 0.999])
        if low == high:
            low, high = low - 0.5, high + 0.5
        bins = np.linspace(low, high, 34).tolist()
        filled: dict[str, Any] = {"histtype": "stepfilled", "color": canvas.SOFT, "alpha": 0.7}
        line: dict[str, Any] = {"histtype": "step", "linewidth": 1.8}

        def draw(axes: Axes) -> None:
            for name, look in (("train", filled), (held_out, line)):
                part = parts.get(name, ())
                if len(part):
                    weights = np.full(len(part), 100 / len(part))
                    axes.hist(np.clip(part, low, high), bins=bins, weights=weights, label=name, **look)
            canvas.linear_scales(axes, 4)
            canvas.label(axes, with_unit("value", field.unit), "share (%)", "y")
            canvas.legend_above(axes)

        components = f", {field.width} components" if field.width > 1 else ""
        return draw, f"one per {field.on}{components}"

    return canvas.panels(
        "targets",
        "Distribution of targets",
        f"distribution in the training part (filled) and in the {held_out} part (line). Both should look "
        "alike; where the line leaves the filled area, the model is asked about values that it has not seen.",
        {name: drawing(fields[name], parts) for name, parts in present.items()},
    )


def task_chapter(facts: Facts) -> Section:
    """Return the chapter on the task and its configuration."""
    campaign, heads = facts.campaign, heads_of(facts.resolved)
    names = [name for head in heads for name in (head["field"], head.get("forces"), head.get("stress")) if name]
    space = campaign.search["space"] if campaign else {}
    kinds = [str(choice) for choice in space.get("model.kind", {}).get("choices", [])]
    kinds = kinds or [str(facts.resolved.get("model", {}).get("kind", "graph"))]
    lead = [f"Predict {join(names)} with {join(kinds, 'or')} models."] if names else []
    if facts.branch:
        others = [f"{name} ({store})" for name, store in facts.stores.items() if name != facts.branch]
        lead.append(f"This is branch {facts.branch}: its models share their trunk with {join(others)}.")
    if campaign is not None:
        settings, sampler = campaign.history.settings, campaign.history.sampler
        words = f"Search {settings.search.trials} configurations for the smallest {join(campaign.objectives)}"
        lead.append(f"{words} (sampler: {sampler}).")
        if settings.left_out:
            lead.append(f"Architectures that cannot do this were left out: {left_out_words(settings.left_out)}.")
        if campaign.measure != campaign.objective:
            lead.append(
                "Relative error: each field's mean absolute error divided by the trivial predictor's, averaged with the weights "
                "in brackets."
            )
    if facts.manifest is not None:
        intervals = f"{facts.evaluation.nominal * 100:.0f} % intervals"
        lead.append(f"Combine {len(facts.manifest.members)} models into an ensemble with {intervals}.")
    return Section("asked", "Task and configuration", " ".join(lead))
