"""Stores that lie elsewhere now: configurations of runs name the new place, once it is known to hold the same graphs."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_no_link, read_json, write_json
from hydragnn.datasets import GraphStore, WithoutEdges, open_store
from hydragnn.record import read_record


def is_data(store: GraphStore, data_hash: str) -> bool:
    """Return True where a run with this hash of its data was trained on the graphs of the store, with or without edges."""
    return data_hash in (store.fingerprint, WithoutEdges(store).fingerprint)


def name_store(runs: Iterable[Path], place: Path, branch: str = "") -> None:
    """Let the configurations of these runs name the store at ``place``, that of one branch where they have several.

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


def write_places(run: Path, places: Mapping[str, Path]) -> None:
    """Let ``config.json`` of a run name the stores of these branches (``""``: of a run without) where they lie now."""
    path = run / "config.json"
    check_no_link(path)
    config = read_json(path)
    sections = {section.get("name", ""): section for section in config.get("branches") or [config]}
    before = {name: section["data"]["store"] for name, section in sections.items()}
    now = {**before, **{name: str(place.resolve()) for name, place in places.items() if name in before}}
    if now == before:
        return
    for name, section in sections.items():
        section["data"]["store"] = now[name]
    write_json(path, config)
