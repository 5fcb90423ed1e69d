"""Chapter on the task and its configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn.hpo.space.default import left_out_words
from hydragnn.scripts.report.collect import heads_of
from hydragnn.scripts.report.facts import Campaign, Facts
from hydragnn.scripts.report.section import Section, Table, leaves, table_of
from hydragnn.scripts.report.words import join, text


def chapter(facts: Facts) -> Section:
    """Return the chapter on the task and its configuration."""
    campaign, heads = facts.campaign, heads_of(facts.resolved)
    names = [name for head in heads for name in (head["field"], head.get("forces"), head.get("stress")) if name]
    space = campaign.search["space"] if campaign else {}
    kinds = [str(choice) for choice in space.get("model.kind", {}).get("choices", [])]
    kinds = kinds or [str(facts.resolved.get("model", {}).get("kind", "graph"))]
    lead = [f"Predict {join(names)} with {join(kinds, 'or')} models."] if names else []
    if facts.branch:
        lead.append(f"This is branch {facts.branch}: its models share their trunk with {join(facts.other_stores)}.")
    if campaign is not None:
        history = campaign.history
        count = history.settings.search.trials
        lead.append(
            f"Search {count} configurations for the smallest {campaign.objective} (sampler: {history.sampler})."
        )
        if history.settings.left_out:
            words = left_out_words(history.settings.left_out)
            lead.append(f"Architectures that cannot do this were left out: {words}.")
        if campaign.measure != campaign.objective:
            lead.append(
                "Relative error: each field's mean absolute error divided by the trivial predictor's, averaged with the weights "
                "in brackets."
            )
    if facts.manifest is not None:
        intervals = f"{facts.evaluation.nominal * 100:.0f} % intervals"
        lead.append(f"Combine {len(facts.manifest.members)} models into an ensemble with {intervals}.")
    return Section(
        "asked",
        "Task and configuration",
        " ".join(lead),
        tables=[heads_table(heads), space_table(campaign) if campaign else None],
        folded=[settings_table(facts.resolved)] if facts.resolved else (),
    )


def heads_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """Return the predicted fields with their losses and weights."""
    return table_of(
        heads,
        {
            "field": lambda head: str(head["field"]),
            "kind": lambda head: str(head.get("kind") or "–"),
            "loss": lambda head: text(head.get("loss")),
            "weight": lambda head: text(head.get("weight")),
            "pooling": lambda head: text(head.get("pool")),
            "distribution": lambda head: text(head.get("distribution")),
            "derivatives": lambda head: join([str(head[key]) for key in ("forces", "stress") if head.get(key)]) or "–",
        },
        "The heads of the model: one for every predicted field.",
    )


def settings_table(config: Mapping[str, Any]) -> Table:
    """Return the whole configuration, one value per row."""
    return Table(
        header=("setting", "value"),
        rows=[(path, text(value)) for path, value in leaves(config)],
        caption="The whole configuration, defaults included (of the best trial or first member, where there are several).",
    )


def space_table(campaign: Campaign) -> Table:
    """Return the hyperparameters of the search with their ranges."""
    best, space = campaign.best, campaign.search["space"]

    def choices(value: Any) -> str:
        return join([text(item) for item in value], "or") if isinstance(value, list) else text(value)

    def span(path: str) -> str:
        if space[path].get("choices"):
            return ", ".join(map(text, space[path]["choices"]))
        return f"{text(space[path].get('low'))} to {text(space[path].get('high'))}"

    def scale(path: str) -> str:
        return "categories" if space[path].get("choices") else "logarithmic" if space[path].get("log") else "linear"

    def condition(path: str) -> str:
        return ", ".join(f"{key} = {choices(value)}" for key, value in (space[path].get("when") or {}).items()) or "–"

    return table_of(
        space,
        {
            "hyperparameter": str,
            "range": span,
            "scale": scale,
            "only when": condition,
            "best trial": lambda path: text(best.values.get(path)) if best else "–",
        },
        "The search space.",
    )
