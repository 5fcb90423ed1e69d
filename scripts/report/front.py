"""Figures and table of a search with several objectives."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from matplotlib.axes import Axes

from hydragnn.hpo import TrialHistory
from hydragnn.hpo.fronts import Bounds, gains, knee, violation
from hydragnn.hpo.status.facts import front_trials, values_line
from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import Figure, Table, table_of
from hydragnn.scripts.report.facts import Campaign
from hydragnn.scripts.report.words import short, text

Values = tuple[float, ...]


def front(campaign: Campaign) -> Figure | None:
    """Return the trials by their first two objectives; None for one objective."""
    trials = [trial for trial in campaign.history.trials if trial.number in campaign.scores]
    if not campaign.bounds or not trials:
        return None
    best = front_trials(trials, campaign.bounds)
    middle = best[knee([trial.objectives for trial in best])] if best else None

    def draw(axes: Axes) -> None:
        look: dict[str, Any] = {"markersize": 6, "markeredgecolor": canvas.MUTED, "markeredgewidth": 0.8}
        for trial in trials:
            first, second = trial.objectives[:2]
            fill = canvas.ACCENT if trial in best else canvas.SOFT if trial.status == "finished" else "none"
            numbers = ", ".join(f"{name} {value:.6g}" for name, value in zip(campaign.objectives, trial.objectives))
            tip = f"{canvas.TIP}trial {trial.number}: {numbers}; {values_line(trial.values)}"
            axes.plot([second], [first], "o", color=fill, gid=tip, **look)
        if len(campaign.objectives) == 2 and len(best) > 1:
            axes.step(*zip(*[one.objectives[1::-1] for one in best[::-1]]), where="post", zorder=1)
        if middle is not None:
            ring: dict[str, Any] = {"markersize": 13, "color": "none", "markeredgecolor": canvas.ACCENT}
            axes.plot([middle.objectives[1]], [middle.objectives[0]], "o", **ring, markeredgewidth=1.5)
        axis: Literal["x", "y"]
        for axis, place in (("y", 0), ("x", 1)):
            canvas.value_axis(axes, axis, [trial.objectives[place] for trial in trials])
            if (bound := campaign.bounds[place]) is not None:
                canvas.dashed(axes, axis, [bound], canvas.MUTED, zorder=1)
        canvas.label(axes, campaign.objectives[1], campaign.objectives[0])

    note = (
        f"; the ring is trial {middle.number}, the knee of the front"
        if middle
        else "; no finished trial meets all bounds"
    )
    more = ", by the first two objectives" if len(campaign.objectives) > 2 else ""
    return canvas.figure(
        "front",
        "Front of the objectives",
        f"each dot is a trial{more}: coloured on the front, where no other finished trial is better in all objectives, hollow "
        f"where it was stopped before its full budget{note}. Bounds are dashed. Point at a dot for its configuration.",
        draw,
        height=300,
    )


def volumes(points: Sequence[Values], bounds: Bounds) -> tuple[Values, list[float]]:
    """Return a reference and the hypervolume of the first point, the first two, and so on.

    The reference lies a tenth of the range beyond the worst values: at these a front of two ends has no volume.

    >>> volumes([(0.0, 10.0), (10.0, 0.0)], (None, None))
    ((11.0, 11.0), [11.0, 21.0])
    """
    ends = [(min(column), max(column)) for column in zip(*points)]
    reference = tuple(most + 0.1 * ((most - least) or 1.0) for least, most in ends)
    counted = [reference if violation(point, bounds) else point for point in points]
    return reference, gains(counted, reference).cumsum().tolist()


def volume(campaign: Campaign) -> Figure | None:
    """Return the hypervolume over finished trials; None for one objective."""
    finished = [trial for trial in campaign.history.trials if trial.status == "finished"]
    if not campaign.bounds or len(finished) < 2:
        return None
    reference, course = volumes([trial.objectives for trial in finished], campaign.bounds)
    if not course[-1]:
        return None

    def draw(axes: Axes) -> None:
        axes.step([trial.number for trial in finished], course, where="post")
        canvas.value_axis(axes, "y", course)
        canvas.linear_scale(axes, "x", 6, whole=True)
        canvas.label(axes, "trial", "hypervolume", "y")

    words = ", ".join(f"{name} = {value:.4g}" for name, value in zip(campaign.objectives, reference))
    return canvas.figure(
        "hypervolume",
        "Hypervolume of the front",
        f"the volume of objectives that the front dominates, against a tenth of their range beyond the worst of all finished trials ({words}). A line "
        "that is flat at the end says that more trials of the same kind would hardly help.",
        draw,
        height=250,
    )


def settings_of(campaign: Campaign, trials: Sequence[TrialHistory]) -> dict[str, Callable[[TrialHistory], str]]:
    """Return the columns of the hyperparameters that trials have."""
    names = [name for name in campaign.search["space"] if any(name in trial.values for trial in trials)]
    return {short(name): partial(lambda path, trial: text(trial.values.get(path)), name) for name in names}


def objective_of(place: int, trial: TrialHistory) -> str:
    """Return one of several objectives of a trial, with the digits that ``--at-most`` compares."""
    return f"{trial.objectives[place]:.6g}"


def front_table(campaign: Campaign) -> Table | None:
    """Return the front with its configurations; None for one objective."""
    best = front_trials(campaign.history.trials, campaign.bounds) if campaign.bounds else []
    if not best:
        return None
    middle = best[knee([trial.objectives for trial in best])]
    return table_of(
        best,
        {
            "trial": lambda trial: f"{trial.number} (knee)" if trial is middle else str(trial.number),
            **{name: partial(objective_of, place) for place, name in enumerate(campaign.objectives)},
            **settings_of(campaign, best),
        },
        "The front: finished trials within bounds that no other is better than in all objectives. hydragnn ensemble "
        "CAMPAIGN --from-front --at-most OBJECTIVE=NUMBER makes an ensemble of them.",
    )
