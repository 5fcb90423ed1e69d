"""Batch jobs of a campaign: the [job] section of CAMPAIGN.toml."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hydragnn.base.settings import ActsWith, Settings
from hydragnn.hpo.launching.sites import check_machine


def _text(pattern: str, words: str) -> AfterValidator:
    """Return the check of texts, with the words that refuse others."""

    def check(value: Any) -> Any:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(f"{str(value)!r} {words}")
        return value

    return AfterValidator(check)


WORD = r"[A-Za-z0-9._+:@/,=-]+"  # texts that schedulers' directives can hold

_line = _text(r"[^\0-\x08\n-\x1f]*\S[^\0-\x08\n-\x1f]*", "is not one line of text; give one line each")
_option = _text("-.*", "is no option of the scheduler; begin it with a dash, without #SBATCH or #PBS")
_word = _text(WORD, "cannot stand in a scheduler's directive; use letters, digits and . _ + : @ / , = -")
_place = _text(
    r"/([A-Za-z0-9._/-]|\$[A-Z_]+\b)+", "is no absolute path of plain characters and variables such as $USER"
)
_inside = _text("/+[^/]+/+[^/].*", "is no absolute path of a folder inside another; give one such as /tmp/me-kernels")

AbsolutePath = Annotated[Path, _inside]
TextLine = Annotated[str, _line]
Word = Annotated[str, _word]
Directive = Annotated[str, _line, _option]
Place = Annotated[str, _place]
Site = Annotated[str, AfterValidator(check_machine)]


class JobSettings(Settings):
    """Batch jobs that ``hydragnn search --submit`` makes."""

    acts_with: ClassVar = {
        "local_storage": ActsWith(
            words="where something is copied to the nodes",
            remedy="set stage_environment, stage_data or stage_kernels",
            holds=lambda job: job.stages or job.store_copy is not None,
        )
    }

    site: Site
    """The scheduler, or a machine whose usual directives and settings are added: frontier, lumi, perlmutter (Slurm), aurora (PBS);
    or a site that an installed package announces, or a class ``package.module:Name``."""

    nodes: int = Field(ge=1)
    """Nodes of every job."""

    hours: float = Field(gt=0)
    """Walltime of every job; a search without budget ends it sooner."""

    chain: int = Field(default=8, ge=1)
    """At most so many jobs, one after the other, until the campaign is complete or a budget of [search] is spent."""

    name: Word | None = None
    """Name in the queue; the campaign's folder if absent."""

    account: Word | None = None
    """The project that is billed."""

    queue: Word | None = None
    """Slurm's partition; queue of PBS and Flux."""

    directives: list[Directive] = Field(default_factory=list)
    """Further options of the scheduler, for example ``["--constraint=nvme", "-l filesystems=home:flare"]``."""

    setup: list[TextLine] = Field(default_factory=list)
    """Lines of bash before anything starts, for example ``["module load rocm", "source env/bin/activate"]``."""

    python: TextLine | None = None
    """The Python of that environment, by name or path; the one that submits if absent."""

    stage_environment: bool = False
    """Copy the environment of ``python`` to every node first, because thousands of imports overload a file system."""

    stage_data: bool = False
    """Copy the store to every node first; trials read it there, under the same fingerprint."""

    stage_kernels: AbsolutePath | None = None
    """Folder of local storage, such as ``/tmp/me-kernels``, with kernels that ``hydragnn kernels compile`` has made where
    ``TRITON_CACHE_DIR`` named it; it is copied to the same path on every node."""

    store_copy: Path | None = None
    """A copy of the store that is on every node already; scripts set it where they have staged the data."""

    local_storage: Place | None = None
    """Folder of nodes for such copies; the site's usual one if absent."""

    @property
    def stages(self) -> bool:
        """True where something is copied to the nodes."""
        return self.stage_environment or self.stage_data or self.stage_kernels is not None
