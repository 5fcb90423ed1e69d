"""Results of a campaign: records, histories, importances."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.hpo.controller import trial_folder
from hydragnn.hpo.fronts import ranked
from hydragnn.hpo.objective import COSTS, THROUGHPUT, bounds_of, goals_of, objective_value, quantity_text
from hydragnn.hpo.preflight import open_campaign
from hydragnn.hpo.scheduling.sizing import Load
from hydragnn.hpo.scheduling.state import Trial
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.parameters import Choices, Parameter
from hydragnn.hpo.space.points import Space, random_point, space_of
from hydragnn.hpo.status.facts import Follower, front_trials
from hydragnn.hpo.status.timeline import Timeline
from hydragnn.record import RunRecord, read_record

Matrix = NDArray[np.float64]

TOO_FEW = 6  # below so many results, importances are noise
FOREST = 200  # trees of the models of importances and effects
EXPLAINED = 2000  # most trials whose effects are computed, spread evenly over all
FEWEST, FARTHEST, MISS = 12, 4, 0.25  # least epochs, largest quotient of lengths and largest error of extrapolations


class TrialHistory(Trial, frozen=True, kw_only=True):
    """One configuration and how far it came, with its folder."""

    rungs: dict[int, float]
    """Objective by epochs, for every rung passed."""
    folder: Path

    @property
    def objectives(self) -> tuple[float, ...]:
        """Return all objectives at the last rung passed."""
        return self.values_at(-1) if self.results else (math.inf,)


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignHistory:
    """Everything that happened in a campaign, from its journal."""

    settings: CampaignSettings
    trials: list[TrialHistory]
    rungs: tuple[int, ...]
    """Epochs of the rungs; the last is the full budget."""
    ending: str | None
    """finished, hours, node_hours, walltime, stopped or hopeless; None while it runs or after a kill."""
    timeline: Timeline
    """Attempts, nodes and faults over time."""
    sampler: str
    """Sampler that found configurations, and the reason where the program chose it."""


def campaign_records(out: Path | str) -> list[tuple[int, RunRecord, Path]]:
    """Return (number, record, folder) of all recorded trials; InputError where damaged."""
    out = Path(out)
    open_campaign(out)
    folders = {int(path.parent.name): path.parent for path in out.glob("trials/*/record.json")}
    return [(number, read_record(folder), folder) for number, folder in sorted(folders.items())]


def finished_runs(out: Path | str) -> list[Path]:
    """Return the run folders of finished trials, best first; InputError without any."""
    out = Path(out)
    history = campaign_history(out)
    trials = [trial for trial in history.trials if trial.status == "finished"]
    if not trials:
        raise InputError(f"no trial of {out} is trained to its end yet; continue the search with --resume")
    bounds = bounds_of(history.settings.search.objective)
    return [trials[index].folder for index in ranked([trial.objectives for trial in trials], bounds)]


def campaign_history(out: Path | str) -> CampaignHistory:
    """Return the history of a campaign, also while it runs."""
    out = Path(out)
    settings = open_campaign(out)
    follower = Follower(out)
    state, timeline = follower.builder.state, follower.builder.timeline()
    trials = []
    for number, trial in sorted(state.trials.items()):
        if trial.values:
            rungs = dict(zip(state.plan.rungs, trial.results))
            trials.append(TrialHistory(**asdict(trial), rungs=rungs, folder=trial_folder(out, number)))
    return CampaignHistory(
        settings=settings,
        trials=trials,
        rungs=state.plan.rungs,
        ending=state.ending,
        timeline=timeline,
        sampler=follower.sampler,
    )


def bought(out: Path, node_hours: float) -> list[dict[str, Any]]:
    """Return the epochs that node-hours buy, by a campaign's costs.

    Rows are finished trials, or their front. The lowest expected objective comes first, of several the first that is an error. InputError without a finished trial.
    """
    objective, follower = open_campaign(out).search.objective, Follower(out)
    state, rows = follower.builder.state, list[dict[str, Any]]()
    trials = [trial for trial in state.trials.values() if trial.status == "finished" and trial.work]
    if not trials:
        raise InputError(f"no trial of {out} is trained to its end yet; continue the search with --resume")
    trials = front_trials(trials, state.plan.bounds) if state.plan.bounds else trials
    if not trials:
        raise InputError(f"no finished trial of {out} is within the bounds of its objectives; let more finish")
    errors = [goal.of for goal in goals_of(objective) if goal.of not in (THROUGHPUT, *COSTS)]
    curves = bool(errors) and ":" not in errors[0]  # code of users does not run here
    for trial in trials:
        record = read_record(trial_folder(out, trial.number))
        load, phases, cost = Load(trial.work or 0.0, trial.scaling), record.usage.phases, record.cost
        seconds = load.on(state.least) * state.least
        unseen = record.branches or record.config.get("train", {}).get("callbacks")  # whose time no phase has
        if phases and cost.graphs_per_second and trial.measured and not unseen:  # else with the start of the segment
            own = record.parts.get("train", 0) / cost.graphs_per_second
            own += (phases.get("validation", 0.0) + phases.get("saving", 0.0)) / record.epochs
            seconds *= min(1.0, own / load.on(cost.nodes))
        hours = seconds * len(state.nodes) / len(state.slots) / 3600
        curve = [objective_value(record, errors[0], end) for end in range(1, curves * record.epochs + 1)]
        row = {"trial": trial.number, "values": trial.values, "parameters": record.parameters}
        row |= {"objectives": trial.values_at(-1), "node_hours_per_epoch": hours, "epochs": int(node_hours / hours)}
        row |= {"estimated": not trial.measured, "objective": quantity_text(errors[0]) if errors else ""}
        rows.append(row | expected(record, curve, int(node_hours / hours)))
    return sorted(rows, key=lambda row: (row["expected"] is None, row["expected"], row["objectives"]))


def expected(record: RunRecord, curve: Sequence[float | None], epochs: int) -> dict[str, Any]:
    """Return the objective after so many epochs, where a curve tells it.

    A power law counts where it predicts the curve's end from parts of it. Twice the largest error there, for as many times the
    epochs, is its interval, which holds for about 90 % of simulated curves.
    """
    end, train, config = len(curve), record.config.get("train", {}), record.config
    heads = [head for part in (config, *(config.get("branches") or ())) for head in part.get("heads") or ()]
    staged = any((head.get("forces") or head.get("stress")) and head.get("stage_two_factor") != 1.0 for head in heads)
    fixed = train.get("schedule") == "cosine" or (staged and train.get("stage_two") != 1.0)
    value = curve[min(epochs, end) - 1] if epochs and end else None
    if value is None or (fixed and epochs < end):
        short = f"less than a schedule of {end} epochs" if epochs < end and fixed else "no curve of an error"
        return {"expected": None, "interval": None, "after": 0, "basis": short if epochs else "no epoch"}
    row = {"expected": value, "interval": None, "after": min(epochs, end), "basis": "measured"}
    values = [one for one in curve if one is not None and one > 0]
    if epochs <= end or fixed or record.status == "stopped" or end < FEWEST or len(values) < end:
        return row
    ends = (end // 2, end * 2 // 3, end * 3 // 4)
    misses = {part: abs(power_law(values[:part], end) / values[-1] - 1.0) for part in ends}
    if max(misses.values()) > MISS:
        return row
    last = min(epochs, FARTHEST * end)
    value = power_law(values, last)
    half = 2 * value * max(miss / math.log(end / part) for part, miss in misses.items()) * math.log(last / end)
    return {"expected": value, "interval": (max(0.0, value - half), value + half), "after": last, "basis": "power law"}


def power_law(curve: Sequence[float], epochs: int) -> float:
    """Return c + a epochs^-e, fitted to a curve's last three quarters.

    c and a are at least 0.

    >>> round(power_law([0.5 + 2.0 / epoch for epoch in range(1, 20)], 40), 6)
    0.55
    """
    from scipy.optimize import nnls  # takes long to load, and histories do without

    first = len(curve) // 4
    at, fits = np.arange(first + 1.0, len(curve) + 1.0), []
    for power in np.linspace(0.1, 2.0, 20):
        (floor, factor), distance = nnls(np.stack([np.ones(len(at)), at**-power], axis=1), np.asarray(curve[first:]))
        fits.append((distance, float(floor + factor * epochs**-power)))
    return min(fits)[1]


def parameter_importance(out: Path) -> dict[str, float]:
    """Return each parameter's importance to the objective, as shares of their sum.

    It is the loss of accuracy of a random forest when the parameter's values are permuted (Breiman 2001, doi:10.1023/A:1010933404324).
    Trials are compared where all are equally far: at the first rung. A parameter that is inactive in a trial counts with
    a value drawn at random, so that it explains nothing there. Empty with fewer than six results.
    """
    results = _first_results(campaign_history(out))
    if results is None:
        return {}
    from sklearn.ensemble import RandomForestRegressor  # takes long to load, and histories do without
    from sklearn.inspection import permutation_importance

    space, rows, _, values, _ = results
    forest = RandomForestRegressor(FOREST, min_samples_leaf=2, random_state=0).fit(rows, values)
    shares = permutation_importance(forest, rows, values, n_repeats=10, random_state=0).importances_mean.clip(min=0.0)
    shares = shares / (shares.sum() or 1.0)
    return dict(sorted(zip(space, shares.tolist()), key=lambda item: -item[1]))


def _first_results(
    history: CampaignHistory,
) -> tuple[dict[str, Parameter], Matrix, NDArray[np.bool_], Matrix, float] | None:
    """Return parameters, their values, which are active, and objectives over their range.

    All at the first rung. Inactive values are drawn at random. Objectives farther than three quartile ranges from the middle half count as if
    there. None where results are few, or all equal.
    """
    results = [(trial.values, next(iter(trial.rungs.values()))) for trial in history.trials if trial.rungs]
    if len(results) < TOO_FEW or len({value for _, value in results}) < 2:
        return None
    space, generator = space_of(history.settings.search.space).parameters, np.random.default_rng(0)
    complete = Space(parameters={path: one.model_copy(update={"when": {}}) for path, one in space.items()})
    points = [random_point(complete, generator, values) for values, _ in results]
    columns = [  # of choices, their numbers
        [one.index(point[path]) if isinstance(one, Choices) else point[path] for point in points]
        for path, one in space.items()
    ]
    rows = np.array(columns, dtype=float).T
    active = np.array([[path in values for path in space] for values, _ in results])
    values = np.array([value for _, value in results])
    low, high = np.quantile(values, (0.25, 0.75))  # one diverged trial would be all that trees explain
    reach = 3 * (high - low) or np.ptp(values)
    values = values.clip(low - reach, high + reach)
    scale = float(np.ptp(values))  # trees do not split what varies by less than 1e-8
    return space, rows, active, values / scale, scale


class Effects(NamedTuple):
    """Contributions of parameters to the objective at the first rung."""

    parameters: dict[str, Parameter]
    rows: Matrix
    """Values as trees split them, those of inactive parameters by chance: [trials, parameters]."""
    active: NDArray[np.bool_]
    shares: Matrix
    """SHAP values in the unit of the objective; 0 where inactive."""
    pairs: Matrix
    """Mean sizes of what two parameters do together: [parameters, parameters]."""


def parameter_effects(history: CampaignHistory) -> Effects | None:
    """Return SHAP values (Lundberg et al. 2020, doi:10.1038/s42256-019-0138-9); None with few results.

    ImportError without the package ``shap``. The trees are boosted, since forests see interactions that are none: of
    200 trials of y = 3 a - 2 b + a c they find that of a and b the strongest.
    """
    results = _first_results(history)
    if results is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import calls what matplotlib gives up
        import shap
    from sklearn.ensemble import GradientBoostingRegressor

    space, rows, active, values, scale = results
    trees = GradientBoostingRegressor(n_estimators=FOREST, subsample=0.5, random_state=0).fit(rows, values)
    few = slice(None, None, -(-len(rows) // EXPLAINED))
    rows, active = rows[few], active[few]
    together = scale * shap.TreeExplainer(trees).shap_interaction_values(rows)  # half of a pair on either side
    together *= active[:, :, None] & active[:, None, :]
    pairs = 2 * np.abs(together).mean(0)
    np.fill_diagonal(pairs, 0.0)
    return Effects(space, rows, active, together.sum(2), pairs)
