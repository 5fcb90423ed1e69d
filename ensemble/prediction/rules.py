"""Rules that make graphs of files, as in training or by BUILD.toml."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest
from hydragnn.base.settings import read_toml
from hydragnn.datasets import BuildSettings, Make
from hydragnn.datasets.build import makers_of
from hydragnn.datasets.sources.ase import AseBuild
from hydragnn.datasets.sources.registry import for_prediction, read_build_settings, settings_of_rule
from hydragnn.datasets.sources.tables import find_files
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction.frames import blocks_of, frames_of
from hydragnn.ensemble.structures import Structures, reads_atoms
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS

Block = tuple[int, int, int]
"""The number of its first graph, and where it begins and ends in its file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FromStructures:
    """The structures in a file that ASE reads."""

    path: Path
    structures: Structures
    keep: bool = False
    """True where graphs keep all that their structures have, for a file that is to have it, too."""

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    @property
    def attributes(self) -> dict[str, Any]:
        """The cutoff."""
        return {"cutoff": self.structures.cutoff}

    @property
    def digest(self) -> str:
        """Return the hash of the file."""
        return file_digest(self.path)

    def blocks(self) -> list[Block]:
        """Several, where the file is extended XYZ."""
        return blocks_of(self.path)

    def makers(self, block: Block) -> Iterator[Make]:
        """Each structure with its neighbours."""
        return self.structures.makers(frames_of(self.path, block), block[0], self.path.name, keep=self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class FromFiles:
    """Files that become graphs as the settings of a build say."""

    name: str
    settings: BuildSettings
    inputs: frozenset[str]
    """Fields that members read; the files need no others."""

    @property
    def attributes(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @property
    def digest(self) -> str:
        """Return the hash of settings and files."""
        more = [getattr(self.settings, key) for key in self.settings.beside]
        paths = [*find_files(self.settings.files), *(Path(path) for path in more if path is not None)]
        settings = self.settings.model_dump(mode="json", exclude={"files", *self.settings.beside})
        return digest({"settings": settings, "files": [file_digest(path) for path in paths]})

    def blocks(self) -> list[Block]:
        """One: these files are read as a whole."""
        return [(0, 0, 1)]

    def makers(self, block: Block) -> Iterator[Make]:
        """Each graph without what members do not read."""
        return (partial(self._inputs_of, make) for make in makers_of(self.settings))

    def _inputs_of(self, make: Make) -> GraphBatch:
        graph = make()
        return graph.with_fields(drop=[name for name in graph.fields if name not in self.inputs])


Rule = FromStructures | FromFiles
"""How files become graphs, block by block."""


class KeepingAse(AseBuild):
    """Atoms whose graphs keep all that their structures have."""

    keeps_atoms: ClassVar[bool] = True


def rule_for(source: Path, ensemble: Ensemble, *, keep: bool = False) -> Rule:
    """Return the rule by which ``source`` becomes graphs.

    A BUILD.toml says it itself. A file becomes graphs as those of the training store did, which remembers it where
    ``hydragnn data build`` or a recipe made it; of atoms, any other file is one of structures. InputError where nobody knows.
    """
    inputs = frozenset({*(field.name for field in ensemble.inputs), ATOMIC_NUMBERS})
    if source.suffix == ".toml":
        settings = read_build_settings(read_toml(source), source)
    elif not source.is_file():
        raise InputError(f"{source} is neither a store, a BUILD.toml nor another file; give one of them")
    elif _is_like_training(source, ensemble):
        settings = settings_of_rule(ensemble.training_attributes["build"], source, "the training store")
    else:
        return FromStructures(path=source, structures=ensemble.structures, keep=keep)
    settings = for_prediction(settings, inputs)
    if keep and isinstance(settings, AseBuild):
        settings = KeepingAse.model_construct(**dict(settings))
    return FromFiles(name=str(source), settings=settings, inputs=inputs)


def _is_like_training(source: Path, ensemble: Ensemble) -> bool:
    """Return True where the training store has a rule for such files.

    An ensemble of atoms reads structures, too, so that the suffix has to be that of a file of training.
    """
    store_attributes = ensemble.training_attributes
    rule, files = store_attributes.get("build"), store_attributes.get("files", [])
    if not isinstance(rule, Mapping) or not reads_atoms(ensemble.manifest):
        return rule is not None
    suffixes = {Path(str(file)).suffix for file in files} if isinstance(files, list) else set()
    return rule.get("kind") != "ase" and source.suffix in suffixes


def file_digest(path: Path) -> str:
    """Return the hash of a file; InputError where it is none."""
    if not path.is_file():
        raise InputError(f"{path} is no file; check the path")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
