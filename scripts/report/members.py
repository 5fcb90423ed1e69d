"""Chapter on the members of an ensemble."""

import json
from collections.abc import Mapping, Sequence

from hydragnn.scripts.report.facts import Facts, error, is_categorical
from hydragnn.scripts.report.section import Section, Table, leaves, table_of
from hydragnn.scripts.report.training import run_curves
from hydragnn.scripts.report.words import duration, measured, plain_number, short, text, thousands, with_unit


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the members of the ensemble."""
    manifest, evaluation = facts.manifest, facts.evaluation
    if manifest is None:
        return None
    selection = manifest.selection
    lead = [f"The ensemble has {len(manifest.members)} member(s)."]
    if "held-out" in evaluation.parts:
        lead.append(
            "They cross-validate: every graph was held out by some and trained others, and errors of a member are those on the "
            "graphs that it held out."
        )
    if selection.get("method") and selection.get("candidates"):
        by = selection.get("by", "valid/loss")
        lead.append(f"Chosen among {selection['candidates']} finished runs ({selection['method']} by {by}).")
    if selection.get("final_seeds"):
        lead.append(f"Each configuration was trained anew with {selection['final_seeds']} seed(s).")
    if facts.members:
        lead.append(f"They took {duration(sum(own.cost.seconds for own in facts.members.values()))} to train.")
    if evaluation.seconds_per_graph:
        speed = plain_number(evaluation.graphs_per_second)
        lead.append(f"Together they predict {speed} graphs per second on the machine that built them.")
    both = [members_table(facts), diversity_table(selection.get("diversity") or {})]
    return Section("members", "Members", " ".join(lead), [run_curves(facts.members, facts.units)], both)


def members_table(facts: Facts) -> Table:
    """Return every member: weight, what distinguishes it, errors, cost."""
    part, flat = facts.part, {name: dict(leaves(record.config)) for name, record in facts.members.items()}
    space = list(facts.campaign.search["space"]) if facts.campaign else []
    paths = [path for path in space if any(own.get(path) is not None for own in flat.values())]
    paths = paths if space else differing_paths(list(flat.values()))
    rows = []
    for position, name in enumerate(entry.name for entry in facts.manifest.members) if facts.manifest else ():
        record = facts.members.get(name)
        errors = [error(one.members.get(name)) for one in part.scores.values()] if part else []
        cost = ("–", "–", "–")
        if record:
            cost = (thousands(record.parameters), str(record.epochs), duration(record.cost.seconds))
        settings = [text(flat[name].get(path)) if record else "–" for path in paths]
        rows.append((name, _weights(facts, position), *settings, *map(measured, errors), *cost))
    heads = [
        with_unit(f"{name} {'wrong' if is_categorical(one) else 'MAE'}", one.unit)
        for name, one in (part.scores.items() if part else ())
    ]
    return Table(
        header=("member", "weight", *(short(path) for path in paths), *heads, "parameters", "epochs", "training time"),
        rows=rows,
        caption=f"The members, with what distinguishes them and their errors on the {part.name} part."
        if part
        else "The members.",
    )


def _weights(facts: Facts, position: int) -> str:
    """Return the weight of a member; by field where weights differ."""
    assert facts.manifest is not None
    entry, by_field = facts.manifest.members[position], facts.manifest.weights
    names = [target.name for target in facts.manifest.targets]
    weights = {name: by_field[name][position] if name in by_field else entry.weight for name in names}
    if len(set(weights.values())) == 1:
        return f"{weights[names[0]]:.3g}"
    return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())


def differing_paths(configs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return dotted paths of plain values in which the configurations differ."""
    paths = dict.fromkeys(path for own in configs for path in own)
    return [path for path in paths if len({json.dumps(own.get(path)) for own in configs}) > 1][:10]


def diversity_table(diversity: Mapping[str, Mapping[str, float]]) -> Table:
    """Return how differently the members err."""
    wanted = {"error_correlation", "ambiguity"}
    return table_of(
        [(field, one) for field, one in diversity.items() if wanted <= set(one) and one["error_correlation"] < 1],
        {
            "field": lambda row: row[0],
            "correlation of errors": lambda row: f"{row[1]['error_correlation']:.2f}".replace("-", "−"),
            "squared error that averaging removes": lambda row: f"{100 * row[1]['ambiguity']:.0f} %",
        },
        "Diversity of the members on graphs that trained none of them. Members that make the same errors (correlation near 1) gain "
        "nothing from each other.",
    )
