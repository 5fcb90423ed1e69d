"""``ensemble.json``: members, targets, calibration, and checksums of files."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import field as member
from pathlib import Path
from typing import Any

import pydantic
from safetensors.numpy import save

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_inside, file_errors, read_sealed, write_atomically, write_sealed
from hydragnn.base.imports import NotAllowed
from hydragnn.base.limits import check_readable
from hydragnn.base.settings import first_problem
from hydragnn.ensemble.domain import FILE, Domain, Latent, arrays_in, domain_from_json
from hydragnn.ensemble.estimates.calibration.classes import ClassCalibration
from hydragnn.ensemble.estimates.calibration.numbers import Calibration
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration
from hydragnn.ensemble.estimates.moments import are_shares
from hydragnn.ensemble.members.latent import LatentSpace
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, field_from_json
from hydragnn.models import Target, target_from_json
from hydragnn.training.baselines import Baselines, predictors_from

VERSION = 5
"""Version of the manifest; 4 has no weights by field, 6 calculators as members, and earlier ones were never released."""
WITH_SIMPLE = 8
READS = (4, VERSION, WITH_SIMPLE)
NAME, SIMPLE = "ensemble.json", "simple.safetensors"

METHODS: Mapping[str, type[AnyCalibration]] = {
    "spread": Calibration,
    "absolute": Calibration,
    "temperature": ClassCalibration,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberEntry:
    """One member in the manifest; ``folder`` counts from the ensemble's own folder."""

    name: str
    folder: str
    weight: float
    checksums: Mapping[str, str]
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Everything about an ensemble apart from its members' weights."""

    members: tuple[MemberEntry, ...]
    targets: tuple[Target, ...]
    inputs: tuple[Field, ...]
    dim: int
    nominal: float = 0.9
    weights: Mapping[str, tuple[float, ...]] = member(default_factory=dict)
    """Weights by field, where not those of ``members``.

    The last is that of a simple member, if there is one.
    """
    simple: Baselines = member(default_factory=Baselines)
    """Simple members, one of each of some fields."""
    calibration: Mapping[str, AnyCalibration] = member(default_factory=dict)
    domain: Domain = member(default_factory=Domain)
    data: Mapping[str, Any] = member(default_factory=dict)
    """Origin of the training graphs: fingerprint, sizes of parts, cutoff, attributes of the store."""
    selection: Mapping[str, Any] = member(default_factory=dict)
    """The choice of members."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, which ``manifest_from_json`` reads."""
        simple = hashlib.sha256(save(self.simple.arrays)).hexdigest()
        return {
            "version": WITH_SIMPLE if self.simple.fitted else VERSION,
            "members": [asdict(entry) for entry in self.members],
            "targets": [target.to_json() for target in self.targets],
            "inputs": [field.to_json() for field in self.inputs],
            "dim": self.dim,
            "nominal": self.nominal,
            "weights": {name: list(own) for name, own in self.weights.items()},
            "calibration": {name: calibration.to_json() for name, calibration in self.calibration.items()},
            "domain": self.domain.to_json(),
            "data": dict(self.data),
            "selection": dict(self.selection),
            **({"simple": {**self.simple.to_json(), "sha256": simple}} if self.simple.fitted else {}),
        }

    def columns_of(self, field: str) -> int:
        """Return the number of members that predict a field."""
        return len(self.members) + len(self.simple.fitted.get(field, ()))

    @property
    def spaces(self) -> tuple[LatentSpace | None, ...]:
        """Return the final states known of every member."""
        latent_spaces = [detector.spaces for detector in self.domain.detectors if isinstance(detector, Latent)]
        return tuple(latent_spaces[0]) if latent_spaces else (None,) * len(self.members)


def manifest_from_json(value: Any, folder: Path) -> Manifest:
    """Return the manifest of ``folder``; InputError where damaged or of another version."""
    source = str(folder / NAME)
    if not isinstance(value, dict) or not isinstance(value.get("version"), int) or not value.get("members"):
        raise InputError(f"{source} does not describe an ensemble; was it made by hydragnn ensemble?")
    match value:
        case {"version": 6 | 7} | {"domain": {"version": 2 | 3 | 4}}:
            raise InputError(
                f"{source} was made by an earlier version, with other detectors or simple predictors, or with calculators, which are "
                "members no more; build the ensemble of its runs anew: hydragnn ensemble RUN RUN ... --out ENSEMBLE"
            )
    if value["version"] not in READS:
        problem = f"{source} has version {value['version']}, and this program reads version {VERSION}"
        raise InputError(f"{problem}; update the program, or build the ensemble again")
    try:
        if not isinstance(value["data"], dict) or not isinstance(value["selection"], dict):
            raise TypeError("data and selection are no tables")
        if not are_shares([entry["weight"] for entry in value["members"]]):
            raise ValueError("the weights of its members do not add up to 1")
        if not 0 < (nominal := float(value["nominal"])) < 1:
            raise ValueError(f"intervals that hold a share of {nominal}")
        targets = tuple(target_from_json(target) for target in value["targets"])
        inputs = tuple(field_from_json(field) for field in value["inputs"])
        fields = {field.name: field for field in inputs} | {target.name: target.field for target in targets}
        manifest = Manifest(
            members=tuple(MemberEntry(**entry) for entry in value["members"]),
            targets=targets,
            inputs=inputs,
            dim=value["dim"],
            nominal=nominal,
            weights={name: tuple(map(float, own)) for name, own in value.get("weights", {}).items()},
            calibration={name: calibration_from_json(item) for name, item in value["calibration"].items()},
            domain=domain_from_json(value["domain"], folder, fields),
            data=value["data"],
            selection=value["selection"],
            simple=predictors_from(
                value["simple"],
                arrays_in(folder / SIMPLE, value["simple"]["sha256"]),
                fields | {ATOMIC_NUMBERS: ATOMIC_NUMBERS_FIELD},
            )
            if value["version"] == WITH_SIMPLE
            else Baselines(),
        )
        _check_parts(manifest)
        return manifest
    except NotAllowed as error:
        raise InputError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{source} is damaged ({error}); copy or build the ensemble again") from error


def _check_parts(manifest: Manifest) -> None:
    """Refuse weights, calibrations or a domain of other members or targets."""
    fields = {target.name: target.field for target in manifest.targets}
    for name, own in (dict.fromkeys(manifest.simple.fitted, ()) | dict(manifest.weights)).items():
        if name not in fields or len(own) != manifest.columns_of(name) or not are_shares(own):
            raise ValueError(f"the weights for {name} are no shares of its members")
    for name, calibration in manifest.calibration.items():
        if name not in fields or not calibration.fits(fields[name]):
            raise ValueError(f"the calibration of {name} is for another target")
        for fold in calibration.folds:
            positions = [position for position in fold.members if position < len(manifest.members)]
            if len(positions) < len(fold.members) or not sum(manifest.members[one].weight for one in positions):
                raise ValueError(f"the calibration of {name} is for other members")
    if len(manifest.spaces) != len(manifest.members):
        raise ValueError("the training domain is of other members")


def calibration_from_json(value: Any) -> AnyCalibration:
    """Return the calibration that ``to_json`` wrote; InputError on anything else."""
    method = value.get("method") if isinstance(value, dict) else None
    problem = f"unknown method {method!r}"
    if isinstance(method, str) and method in METHODS:
        try:
            calibration: AnyCalibration = pydantic.TypeAdapter(METHODS[method]).validate_python(value)
            return calibration
        except pydantic.ValidationError as error:
            problem = first_problem(error)
    raise InputError(f"a calibration is damaged or from a newer version ({problem}); build the ensemble anew")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an ensemble whose files match their checksums."""
    manifest = manifest_from_json(read_sealed(folder / NAME), folder)
    for entry in manifest.members:
        for name, expected in entry.checksums.items():
            check_inside(folder / entry.folder / name, folder)
            if checksum(folder / entry.folder / name) != expected:
                raise InputError(
                    f"{folder / entry.folder / name} differs from what was saved; copy the whole folder again"
                )
    return manifest


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write ``ensemble.json`` atomically, after its tensors."""
    if manifest.domain.file_content:
        write_atomically(folder / FILE, manifest.domain.file_content)
    if manifest.simple.fitted:
        write_atomically(folder / SIMPLE, save(manifest.simple.arrays))
    write_sealed(folder / NAME, manifest.to_json())


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; InputError where there is none."""
    check_readable(path)
    with file_errors(f"cannot read {path}", "check the path, or copy the whole folder again"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
