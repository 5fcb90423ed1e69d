"""Rules that make graphs of files, as in training or by BUILD.toml."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from ase import Atoms

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest
from hydragnn.base.limits import check_readable
from hydragnn.base.places import check_exists, distinct_names
from hydragnn.base.settings import read_toml
from hydragnn.datasets import BuildSettings, Make
from hydragnn.datasets.build import attributes_of, makers_of
from hydragnn.datasets.sources.ase import AseBuild, known_problem
from hydragnn.datasets.sources.registry import for_prediction, read_build_settings, settings_of_rule
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.manifest import checksum
from hydragnn.ensemble.reading.structures import Structures, reads_atoms
from hydragnn.graphs.extxyz import read_frame
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.structure_files import format_of, frames_of_xyz, structures_of

Block = tuple[int, int, int]
"""The number of its first graph, and its first and last byte in its file."""

WHOLE: Block = (0, 0, 0)
"""Block of files that are not divided."""

XYZ = (".xyz", ".extxyz")
"""Suffixes of files whose structures are found without parsing."""

FRAMES, BYTES = 256, 2**19
"""Structures and bytes in a block at least: each is a store of its own for a while."""

BLOCKS = 512
"""Blocks at the most, since each becomes a part of a store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FromStructures:
    """Structures in files that ASE reads."""

    paths: Mapping[Path, str]
    """Files, and their names in those of graphs; several are one block."""
    structures: Structures
    keep: bool = False
    """True where graphs keep all that their structures have, for a file that is to have it, too."""

    @property
    def name(self) -> str:
        """Return the paths of the files."""
        return ", ".join(map(str, self.paths))

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the rule of edges, as stores have it."""
        most = self.structures.max_neighbours
        return {"cutoff": self.structures.cutoff} | ({} if most is None else {"max_neighbours": most})

    @property
    def digest(self) -> str:
        """Return the hash of the files."""
        digests = [checksum(path) for path in self.paths]
        return digests[0] if len(digests) == 1 else digest(digests)

    def blocks(self) -> list[Block]:
        """Return several blocks of a file of extended XYZ, else one."""
        return blocks_of(*self.paths) if len(self.paths) == 1 else [WHOLE]

    def makers(self, block: Block) -> Iterator[Make]:
        """Give a maker for each structure."""
        for path, name in self.paths.items():
            for own in [block] if len(self.paths) == 1 else blocks_of(path):
                yield from self.structures.makers(frames_of(path, own), own[0], name, keep=self.keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class FromFiles:
    """Files that become graphs by the settings of a build."""

    attributes: ClassVar[Mapping[str, Any]] = {}

    name: str
    settings: BuildSettings

    @property
    def digest(self) -> str:
        """Return the hash of settings and files."""
        more = [getattr(self.settings, key) for key in self.settings.beside]
        paths = [*find_files(self.settings.files), *(Path(path) for path in more if path is not None)]
        settings = self.settings.model_dump(mode="json", exclude={"files", *self.settings.beside})
        return digest({"settings": settings, "files": [checksum(path) for path in paths]})

    def blocks(self) -> list[Block]:
        """Return one: these files are read as a whole."""
        return [WHOLE]

    def makers(self, block: Block) -> Iterator[Make]:
        """Give a maker for each graph."""
        return makers_of(self.settings)


Rule = FromStructures | FromFiles
"""Rule by which files become graphs, block by block."""


def rules_for(sources: Sequence[Path], ensemble: Ensemble, *, keep: bool = False) -> list[Rule]:
    """Return the rules by which files become graphs; small files share one."""
    rules: list[Rule] = []
    size = 0
    for path, name in zip(sources, distinct_names(sources)):
        rule = rule_for(path, ensemble, keep=keep)
        if isinstance(rule, FromStructures):
            last = rules[-1] if rules else None
            size += path.stat().st_size
            few = isinstance(last, FromStructures) and len(last.paths) < FRAMES and size <= BYTES
            if isinstance(last, FromStructures) and few:
                rules[-1] = replace(last, paths={**last.paths, path: name})
                continue
            rule, size = replace(rule, paths={path: name}), path.stat().st_size
        rules.append(rule)
    return rules


def digest_of(rules: Sequence[Rule]) -> str:
    """Return the hash of everything that rules read."""
    return rules[0].digest if len(rules) == 1 else digest([rule.digest for rule in rules])


def rule_for(source: Path, ensemble: Ensemble, *, keep: bool = False) -> Rule:
    """Return the rule by which ``source`` becomes graphs.

    A BUILD.toml says it itself. A file becomes graphs as those of the training store did, which remembers it where
    ``hydragnn data build`` or a recipe made it; of atoms, any other file is one of structures. InputError where nobody knows.
    """
    inputs = frozenset({*(field.name for field in ensemble.inputs), ATOMIC_NUMBERS})
    if source.suffix == ".toml":
        settings = read_build_settings(read_toml(source), source)
        ensemble.check_rule(attributes_of(settings), f"graphs by {source}")
    elif _is_like_training(source, ensemble):
        settings = settings_of_rule(ensemble.training_attributes["build"], source, "the training store")
    else:
        return FromStructures(paths={source: source.name}, structures=ensemble.structures, keep=keep)
    settings = for_prediction(settings, inputs)
    if keep and isinstance(settings, AseBuild):
        settings._keeps_atoms = True
    return FromFiles(name=str(source), settings=settings)


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


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a file; one for other formats than extended XYZ.

    Structures of extended XYZ are found without parsing. InputError where such a file is torn.
    """
    check_readable(path)  # before a pipe is opened
    starts = [0]
    try:
        if path.suffix in XYZ and format_of(path) == "extxyz":
            with path.open(encoding="latin-1", newline="") as file:  # a letter for every byte
                for text in frames_of_xyz(file):
                    starts.append(starts[-1] + len(text))
    except Exception as error:  # readers of ASE raise anything
        raise _unreadable(path, len(starts) - 1, error) from error
    count = len(starts) - 1
    step = max(FRAMES, -(-count // BLOCKS), count * BYTES // (starts[-1] + 1))
    blocks = [(first, starts[first], starts[min(first + step, count)]) for first in range(0, count, step)]
    return blocks or [WHOLE]


def frames_of(path: Path, block: Block) -> Iterator[Atoms | InputError]:
    """Give the structures of a block one by one.

    InputError, with the structure's number from 0, where ASE cannot read them. In extended XYZ it takes the place of the structure.
    """
    first, start, stop = block
    number = first
    try:
        if stop:
            with path.open("rb") as file:
                file.seek(start)
                content = StringIO(file.read(stop - start).decode(), newline=None)
            for number, text in enumerate(frames_of_xyz(content), start=first):
                try:
                    yield read_frame(text)
                except MemoryError:
                    raise
                except Exception as error:  # readers of ASE raise anything
                    problem = known_problem(error) or f"cannot be read ({error}); check it"
                    yield InputError(f"{path}: structure {number} {problem}")
            return
        for atoms in structures_of(path):
            yield atoms
            number += 1
        if number == first:
            raise InputError(f"{path} has no structure; leave it out, or say its kind and format in a BUILD.toml")
    except (InputError, MemoryError):
        raise
    except Exception as error:  # readers of ASE raise anything
        raise _unreadable(path, number, error) from error


def _unreadable(path: Path, number: int, error: Exception) -> InputError:
    if problem := known_problem(error):
        return InputError(f"{path}: structure {number} {problem}")
    return InputError(f"{path} is neither a store nor a file that ASE can read (structure {number}: {error}); check it")


def structures_in(path: Path) -> list[Atoms]:
    """Return the structures of a file; InputError without atoms."""
    check_exists(path)
    frames = list[Atoms]()
    for frame in (frame for block in blocks_of(path) for frame in frames_of(path, block)):
        if isinstance(frame, InputError):
            raise frame
        frames.append(frame)
    if not all(map(len, frames)):
        raise InputError(f"{path} has a structure without atoms; give structures that ASE reads")
    return frames
