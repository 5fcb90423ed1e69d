"""Final training of selected configurations: a campaign of given runs.

Every run goes straight to its end; on the way it may move to more nodes, when others have left theirs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.machine import Workers
from hydragnn.config import parse_config
from hydragnn.hpo.campaign import run_search
from hydragnn.hpo.controller import OnEvent, trial_folder
from hydragnn.hpo.fronts import ranked
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import replay
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.objective import bounds_of
from hydragnn.hpo.preflight import open_campaign
from hydragnn.hpo.scheduling.state import FAILED
from hydragnn.hpo.search_settings import SearchSettings
from hydragnn.hpo.settings import CampaignSettings, GivenRun
from hydragnn.hpo.space.parameters import IntRange
from hydragnn.hpo.space.points import NUMBER
from hydragnn.hpo.status.facts import CampaignStatus
from hydragnn.runs.folder import trained_config

MANY = 1 << 20  # more nodes than any allocation has

INHERITED = (
    *("objective", "retries", "launcher", "workers"),
    *("trials_per_node", "ranks_per_node", "grace_seconds", "hang_minutes"),
)
"""Members of a campaign's [search] that its last training keeps."""


def run_final(
    runs: Sequence[GivenRun],
    out: Path,
    *,
    like: SearchSettings | None = None,
    workers: Workers | None = None,
    launcher: Launcher | None = None,
    on_event: OnEvent | None = None,
) -> CampaignStatus:
    """Train run N to its full budget in trial N of ``out``.

    ``like`` gives launcher, sizes and patience. The training ends early, with the reason in its status, on signals and at
    the end of an allocation. InputError where a run fails, with its reason, once all others are trained.
    """
    settings = final_settings(runs, out, like)
    status = run_search(settings, out, resume=True, workers=workers, launcher=launcher, on_event=on_event)
    failed = [trial for trial in replay(out / JOURNAL).trials.values() if trial.status in FAILED]
    if status.status == "finished" and failed:
        raise InputError(
            f"{len(failed)} of {len(runs)} final trainings failed; {trial_folder(out, failed[0].number)}: {failed[0].reason}; "
            f"choose fewer members or other runs, and another --out or delete {out}"
        )
    return status


def final_settings(runs: Sequence[GivenRun], out: Path, like: SearchSettings | None = None) -> CampaignSettings:
    """Return the campaign of these runs; InputError where their epochs differ."""
    epochs = sorted({run.config.train.epochs for run in runs})
    if len(epochs) != 1:
        raise InputError(f"the runs of one final training have different epochs ({epochs}); give all the same")
    like = like or SearchSettings(space={NUMBER: IntRange(low=0, high=0)})
    search = SearchSettings(
        **{name: getattr(like, name) for name in INHERITED},
        nodes_per_trial=(1, 1) if like.trials_per_node > 1 else (like.nodes_of_a_trial[0], MANY),
        trials=len(runs),
        reduction=1,
        finalists=0,
        sampler="random",
        space={NUMBER: IntRange(low=0, high=len(runs) - 1)},
    )
    return CampaignSettings(base={}, search=search, runs=tuple(runs), source=str(out))


def given_runs(folders: Iterable[Path], campaign: Path, *, seeds: int = 1, epochs: int | None = None) -> list[GivenRun]:
    """Return the configurations of run folders, each with several seeds."""
    trials = {trial_folder(campaign, trial.number): trial for trial in replay(campaign / JOURNAL).trials.values()}
    runs: list[GivenRun] = []
    for folder in folders:
        config = trained_config(folder)
        trial = trials.get(folder)
        for _ in range(seeds):
            changed = {"seed": len(runs), "epochs": epochs or config.train.epochs}
            table = {**config.to_json(), "train": {**config.train.to_json(), **changed}}
            runs.append(
                GivenRun(
                    config=parse_config(table, source=str(folder)),
                    work=None if trial is None else trial.work,
                    scaling=None if trial is None else trial.scaling,
                )
            )
    return runs


def best_runs(campaign: Path) -> list[Path]:
    """Return the runs that came furthest; InputError without a campaign."""
    candidates = [one for one in replay(campaign / JOURNAL).trials.values() if one.results and one.status not in FAILED]
    best = sorted(candidates, key=lambda trial: (-len(trial.results), trial.results[-1], trial.number))
    if bounds := bounds_of(open_campaign(campaign).search.objective):
        levels = [[one for one in best if len(one.results) == level] for level in {len(one.results): 0 for one in best}]
        best = [some[index] for some in levels for index in ranked([one.values_at(-1) for one in some], bounds)]
    return [trial_folder(campaign, trial.number) for trial in best]
