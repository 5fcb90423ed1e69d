"""Every key that a file of settings may have is explained by ``hydragnn help``."""

from collections.abc import Iterator

import pytest

from hydragnn.base.settings import Settings, settings_in
from hydragnn.config import BranchedConfig, RunConfig
from hydragnn.datasets.sources.registry import sources
from hydragnn.hpo import SearchSettings
from hydragnn.hpo.job import JobSettings
from hydragnn.scripts.key_help import explained, keys_of, sections


def _tables(*roots: type[Settings]) -> Iterator[type[Settings]]:
    for root in roots:
        yield root
        for field in root.model_fields.values():
            yield from _tables(*settings_in(field.annotation))


def test_every_table_of_settings_is_a_section() -> None:
    known = {name for one in sections() for name in one.names}
    roots = (RunConfig, BranchedConfig, SearchSettings, JobSettings, *sources().values())
    names = {name for one in _tables(*roots) for name in one.model_fields}
    assert names - known <= {*RunConfig.model_fields, "branches", "kind", "type"}
    types = [key.type for section in sections() for key in keys_of(section)]
    assert not [one for one in types if "FieldInfo" in one or "Annotated" in one]  # as they are declared


KEYS = "parallel [parallel] parallel.micro_batches branches.1.weight branches.0.data.store search.space.choices branches split.group start.replay simulate"


@pytest.mark.parametrize("key", KEYS.split())
def test_a_key_of_any_section_has_a_text(key: str) -> None:
    assert all(one.meaning or one.key.endswith("kind") for one in explained(key))
