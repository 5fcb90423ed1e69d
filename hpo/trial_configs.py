"""Run configurations of points, and checks of them."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import combinations, product
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError, about
from hydragnn.base.settings import REMOVED, with_value
from hydragnn.config import AnyConfig, parse_config
from hydragnn.datasets import open_store
from hydragnn.distributed.mesh import check_layout
from hydragnn.hpo.objective import goals_of
from hydragnn.hpo.search_settings import PARALLEL
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.able import check_model, known_keys
from hydragnn.hpo.space.parameters import Choices, place_of
from hydragnn.hpo.space.points import NUMBER, Point, Space, all_points, allowed_values, ends_of, is_active, random_point

OF_START = ("start.model", "start.branch", "start.store", "start.digest")
FIXED = ("data.store", "split", "train.epochs", *OF_START)
"""Trials that differ in these cannot be compared, so that they are not searched."""

NETWORK = ("hidden_dims", "pool")  # keys of heads that change their network and not the loss

UNKNOWN_KEY = re.compile(r"unknown key ([^;\s]+);")
TRIES = 64
MISSES = 1000
"""Points in a row without a valid one, after which a space is taken to have none but at the ends of its parameters."""


def valid_configs(settings: CampaignSettings, space: Space) -> Iterator[AnyConfig]:
    """Yield the runs of valid random points, always the same."""
    generator, problems = np.random.default_rng(0), list[str]()
    while True:
        point = random_point(space, generator)
        if problem := problem_of(settings, space, point):
            problems.append(problem)
        else:
            problems.clear()
            yield trial_config(settings, space, point, 0)
        if len(problems) == MISSES:
            of_all = len(set(problems)) == 1
            raise InputError(
                problem if of_all else f"none of {MISSES} points drawn from search.space makes a valid run: {problem}"
            )


opened = cache(open_store)
"""Stores of campaigns, opened once: every proposed point is checked on them."""


def problem_of(settings: CampaignSettings, space: Space, point: Point, number: int = 0) -> str:
    """Return why a point makes no run, or an empty text.

    The checks are those of the run itself before it reads graphs. A store that cannot be opened says nothing of a point.
    """
    try:
        config = trial_config(settings, space, point, number)
        try:
            for branch in config.branches:
                opened(branch.data.store)
        except InputError:
            return ""
        check_model(config, opened)
    except InputError as error:
        return str(error)
    return ""


def trial_config(settings: CampaignSettings, space: Space, values: Point, number: int) -> AnyConfig:
    """Return the run of trial ``number``.

    InputError where the base and the point do not go together. Of given runs, the one that the values name. The seed is ``train.seed + number`` unless the space has ``train.seed``. Where ``model.kind`` is searched, keys of
    the base's [model] that the chosen kind does not know are left out, provided that another of the kinds knows them.
    """
    if settings.runs:
        return settings.runs[values[NUMBER]].config
    table: dict[str, Any] = json.loads(json.dumps(settings.base))
    kinds = space.parameters.get("model.kind")
    if isinstance(kinds, Choices) and isinstance(table.get("model"), dict):
        table["model"] = known_keys(table["model"], str(values["model.kind"]), [str(k) for k in kinds.choices])
    for path, value in values.items():
        with_value(table, place_of(path), value)
    if "train.seed" not in map(place_of, space.parameters) and isinstance(table.setdefault("train", {}), dict):
        seed = table["train"].get("seed", 0)
        table["train"]["seed"] = seed + number if isinstance(seed, int) else seed
    config = parse_config(table, source=settings.source)
    check_layout_of_trial(settings, config)
    return config


def check_layout_of_trial(settings: CampaignSettings, config: AnyConfig) -> None:
    """Raise InputError where a layout fits not all sizes of trials."""
    layout, search = config.parallel, settings.search
    if layout is None or (layout.ranks_per_replica == 1 and layout.replicate == "auto"):
        return
    if search.ranks_per_node is None:
        problem = f"{settings.source}: parallel: layouts of several ranks are part of this campaign"
        raise InputError(f"{problem}; set search.ranks_per_node, such as 8, the GPUs of a node")
    least, most = search.nodes_of_a_trial
    for count in range(least, most + 1):
        with about(f"{settings.source}: trials on {count} node(s)"):
            check_layout(layout, count * search.ranks_per_node, search.ranks_per_node)


def check_space(settings: CampaignSettings, space: Space, *, begun: bool = False) -> None:
    """Raise InputError for an end of a range without a valid run."""
    _check_paths(settings, space, begun)
    _check_places(settings, space)
    check_values(settings, space, lambda config: None)
    points = all_points(space)
    if points is not None and len(points) < settings.search.trials:
        raise InputError(
            f"{settings.source}: search.space has {len(points)} points, fewer than trials = {settings.search.trials}; "
            "lower search.trials or widen the space"
        )


def check_values(settings: CampaignSettings, space: Space, check: Callable[[AnyConfig], object]) -> None:
    """Raise InputError for values or kinds without a run that passes ``check``.

    Kinds are the choices of all parameters that are called so (``model.kind``, ``heads.0.kind``); ``check`` raises InputError. No value is blamed where
    all points drawn at random fail like it.
    """
    generator = np.random.default_rng(0)

    def problem_with(values: Callable[[], Point]) -> str:
        """Return the problem of all points with these values, if any."""
        problem = ""
        for _ in range(TRIES):
            try:
                check(trial_config(settings, space, random_point(space, generator, values()), 0))
            except InputError as error:
                problem = problem or str(error)
            else:
                return ""
        return problem

    for path, parameter in space.parameters.items():
        for value in ends_of(parameter):
            problem = problem_with(partial(_with_value, space, path, value, generator))
            if problem and f": {place_of(path)}: " not in problem:
                of_all = problem_with(dict)
                if of_all and not UNKNOWN_KEY.search(of_all):
                    raise InputError(f"no point of search.space makes a valid run: {of_all}")
            _refuse(f'search.space."{path}" = {value!r} takes', problem, space, path)
    for kinds in _combinations_of_kinds(space):
        problem = problem_with(partial(dict, kinds))
        words = " and ".join(f'"{path}" = {value!r}' for path, value in kinds.items())
        _refuse(f"search.space: {words} together take", problem, space, next(iter(kinds)))


def _with_value(space: Space, path: str, value: Any, rng: np.random.Generator) -> Point:
    layouts = [other for other in space.parameters if other.startswith(PARALLEL) and path.startswith(PARALLEL)]
    # axes together must divide the ranks, and chunks need stages
    others = {other: ends_of(space.parameters[other])[0] for other in layouts} if layouts and rng.random() < 0.5 else {}
    return {**others, **_conditions(space, path, rng), path: value}


def _refuse(what: str, problem: str, space: Space, path: str) -> None:
    """Raise InputError where there is a problem."""
    if not problem:
        return
    unknown = UNKNOWN_KEY.search(problem)
    if unknown and not any(f"{name}.".startswith(f"{unknown[1]}.") for name in space.parameters):
        raise InputError(problem)  # the base's own, whatever the values
    hint = "; a parameter that only some choices know needs when = {...}" if unknown else ""
    raise InputError(f"{what} part in no valid run: {problem}{'' if space.parameters[path].when else hint}")


def _combinations_of_kinds(space: Space) -> list[Point]:
    """Return every combination of kinds that are active together."""
    kinds = {path: p for path, p in space.parameters.items() if path.endswith(".kind") and isinstance(p, Choices)}
    if len(kinds) < 2:
        return []
    combinations = [dict(zip(kinds, values)) for values in product(*(p.choices for p in kinds.values()))]
    return [one for one in combinations if all(is_active(kinds[path], one, unknown=True) for path in kinds)]


def _conditions(space: Space, path: str, rng: np.random.Generator) -> Point:
    """Values of the parameters above ``path`` that make it active."""
    values: Point = {}
    for parent, condition in space.parameters[path].when.items():
        options = allowed_values(condition)
        values |= {**_conditions(space, parent, rng), parent: options[int(rng.integers(len(options)))]}
    return values


def _check_paths(settings: CampaignSettings, space: Space, begun: bool) -> None:
    for whole in space.parameters:
        path = re.sub(r"^branches\.\d+\.", "", place_of(whole))  # a branch has the sections of a run
        remedy = REMOVED.get(re.sub(r"\.\d+", "", path))
        if remedy and not begun:
            raise InputError(f'{settings.source}: search.space."{whole}" is gone: {remedy}; remove it')
        if path == "name" or any(path == fixed or path.startswith(fixed + ".") for fixed in FIXED):
            raise InputError(
                f'{settings.source}: search.space."{whole}": trials that differ in it cannot be compared; '
                "set it in the base configuration"
            )
        if settings.base.get("start") and path.startswith(("model.", "data.inputs")):
            raise InputError(
                f'{settings.source}: search.space."{whole}": trials begin with the weights of {settings.base["start"]["model"]}, which decide '
                "the architecture; search settings of train, batch or start instead"
            )
        section, *_, last = path.split(".")
        of_loss = any(goal.of == "valid/loss" for goal in goals_of(settings.search.objective))
        if of_loss and section == "heads" and last not in NETWORK:
            raise InputError(
                f'{settings.source}: search.space."{whole}" changes what valid/loss means, so that trials cannot be '
                'compared by it; set objective to a metric such as "valid/energy/mae" or to weights per field'
            )


def _check_places(settings: CampaignSettings, space: Space) -> None:
    """InputError where two parameters of one place can be active together."""
    for (one, first), (other, second) in combinations(space.parameters.items(), 2):
        if place_of(one) == place_of(other) and not any(
            path in second.when and not any(v in allowed_values(second.when[path]) for v in allowed_values(condition))
            for path, condition in first.when.items()
        ):
            raise InputError(
                f'{settings.source}: search.space."{one}" and "{other}" set the same key; give each a when of its own, so that '
                "never both hold"
            )
