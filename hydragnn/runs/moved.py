"""Stores that were moved: configurations follow after a check."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_no_link, read_json, write_json
from hydragnn.base.places import StorePlace, paths_of
from hydragnn.datasets import GraphStore, WithoutEdges, open_store
from hydragnn.record import read_record


def is_data(store: GraphStore, data_hash: str) -> bool:
    """Return True where a run was trained on the store's graphs."""
    return data_hash in (store.fingerprint, WithoutEdges(store).fingerprint)


def name_store(runs: Iterable[Path], place: Path, branch: str = "") -> None:
    """Let configurations of runs name the store at ``place``.

    InputError, and nothing is changed, where a run was trained on other graphs.
    """
    store, runs = open_store(place), [run for run in runs if (run / "config.json").is_file()]
    for run in runs:
        trained = read_record(run).of_branch(branch).data_hash if (run / "record.json").exists() else ""
        if trained and not is_data(store, trained):
            raise InputError(
                f"the store {place} is not what {run} was trained on (fingerprint {store.fingerprint}, trained on {trained}); "
                "give the original store, or a copy of it"
            )
    for run in runs:
        write_places(run, {branch: place})


def write_places(run: Path, places: Mapping[str, StorePlace]) -> None:
    """Write the stores' places into a run's ``config.json``."""
    path = run / "config.json"
    check_no_link(path)
    config = read_json(path)
    sections = {section.get("name", ""): section for section in config.get("branches") or [config]}
    previous = {name: section["data"]["store"] for name, section in sections.items()}
    now = {**previous}
    for name in places.keys() & previous.keys():
        paths = [str(path.resolve()) for path in paths_of(places[name])]
        now[name] = paths if len(paths) > 1 else paths[0]
    if now == previous:
        return
    for name, section in sections.items():
        section["data"]["store"] = now[name]
    write_json(path, config)
