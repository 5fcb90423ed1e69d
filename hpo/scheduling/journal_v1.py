"""Words of the first journals, in which a slot was called a place; they are translated here and nowhere else."""

from typing import Any

OPENED = {"places": "slots"}
PLAN = {"min_places": "min_slots", "max_places": "max_slots"}


def in_current_words(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event's JSON object with the names of today; one that has them already is returned as it is.

    >>> in_current_words({"event": "opened", "places": ["n1"], "plan": {"trials": 3, "max_places": 2}})
    {'event': 'opened', 'slots': ['n1'], 'plan': {'trials': 3, 'max_slots': 2}}
    """
    if event.get("event") != "opened" or "places" not in event:
        return event
    renamed = {OPENED.get(name, name): value for name, value in event.items()}
    return {**renamed, "plan": {PLAN.get(name, name): value for name, value in dict(event["plan"]).items()}}
