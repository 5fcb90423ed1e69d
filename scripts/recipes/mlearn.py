"""mlearn: energy, forces and stress of six elements, metals and semiconductors, by one recipe, beside published scores."""

import re
import tomllib
from pathlib import Path

import numpy as np

import hydragnn
from hydragnn.datasets import SplitSettings, make_split, open_store
from hydragnn.ensemble import build_ensemble
from hydragnn.record import RunRecord
from hydragnn.scripts.recipes.raw import raw_text
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import model_of, recipe_table, train_recipe

MEMBERS = 2
ATOMS = {"painn": 2_000_000, "mace": 800_000}  # that a member sees in all its epochs, which takes about as long
STORE = "frames.h5"
FRAME = "Lattice="  # what the second line of every frame begins with
PUBLISHED = {
    "Mo": (0.91, 0.184),
    "Cu": (0.87, 0.0177),
    "Si": (0.88, 0.0694),
    "Ni": (1.67, 0.0618),
    "Ge": (1.52, 0.072),
    "Li": (0.10, 0.0273),
}  # the best MAE of each element on the JARVIS leaderboard: energy in eV per cell, forces in eV/Angstrom
CUTOFFS = {"Li": 5.0}  # where its validation frames were better with it than with the 4.2 of mlearn.toml; Angstrom
MACE = ("Mo", "Si", "Ge")  # who has it instead of the PaiNN of mlearn.toml, as molybdenum's validation frames chose
MACE_FORM = (
    "model.kind=mace",
    "model.hidden_dim=32",
    "model.max_ell=2",
    "heads.0.hidden_dims=[16]",
)  # what is set otherwise than in mlearn.toml
SHEARS = dict.fromkeys(("Mo", "Cu", "Ni"), ("xy", "xz", "yz")) | dict.fromkeys(("Si", "Ge", "Li"), ("xy", "yz", "xz"))
"""In which order the files hold the off-diagonal components of virials, as their sheared crystals show."""


def run(data: Path, out: Path, epochs: int | None) -> None:
    """For every element a store, members from different seeds, one ensemble and a report; one table for all."""
    figures, records = [], []
    for element in PUBLISHED:
        folder = out / element
        records += train_members(data, folder, epochs)
        ensemble = folder / "ensemble"
        if not ensemble.exists():
            build_ensemble([folder / "members" / str(seed) for seed in range(MEMBERS)], ensemble)
        hydragnn.report(ensemble, folder / "report.html")
        figures += figures_of(element, folder)
        # also after each element, for whoever does not wait for all
        show_figures("mlearn", figures, records, out, epochs=epochs, complete=element == [*PUBLISHED][-1])


def train_members(data: Path, folder: Path, epochs: int | None) -> list[RunRecord]:
    """The runs of the element that the folder is named after."""
    store = make_store(data / f"{folder.name}_train.extxyz.gz", folder / STORE)
    length = epochs or epochs_for(store, folder.name)
    form = form_of(folder.name)
    return [
        train_recipe("mlearn", store, folder / "members" / str(seed), f"train.seed={seed}", *form, epochs=length)
        for seed in range(MEMBERS)
    ]


def form_of(element: str) -> tuple[str, ...]:
    """Return the settings of an element that differ from mlearn.toml."""
    return (f"model.cutoff={cutoff_of(element)}", *(MACE_FORM if element in MACE else ()))


def cutoff_of(element: str) -> float:
    """Return the cutoff of an element, in Angstrom."""
    cutoff: float = recipe_table("mlearn")["model"]["cutoff"]
    return CUTOFFS.get(element, cutoff)


def epochs_for(store: Path, element: str) -> int:
    """Return the epochs that show ``ATOMS`` atoms of the element.

    All elements train about equally long.
    """
    reader = open_store(store)
    training = make_split(reader, SplitSettings(**recipe_table("mlearn")["split"])).train
    atoms = ATOMS["mace" if element in MACE else "painn"]
    return max(2, round(atoms / reader.sizes().nodes[training].sum()))


def make_store(file: Path, store: Path) -> Path:
    """Build a store from the frames of a file.

    `hydragnn data build mlearn-build.toml` does the same for a file with virials in ASE's order and parts.
    """
    if not store.exists():
        element = file.name[:2]
        text = with_parts(with_virials_in_order(raw_text(file), element))
        frames = store.with_name(file.name.removesuffix(".gz"))
        frames.parent.mkdir(parents=True, exist_ok=True)
        frames.write_text(text)
        table = tomllib.loads(Path(__file__).with_name("mlearn-build.toml").read_text())
        hydragnn.build_store({**table, "cutoff": cutoff_of(element), "files": [str(frames.resolve())]}, store)
    return store


def with_virials_in_order(text: str, element: str) -> str:
    """Return frames in extended XYZ with virials in ASE's order.

    The order is xx, yy, zz, yz, xz, xy.
    """
    order = [0, 1, 2, *(3 + SHEARS[element].index(shear) for shear in ("yz", "xz", "xy"))]

    def ordered(match: re.Match[str]) -> str:
        values = match[1].split()
        return 'virial_kbar="' + " ".join(values[number] for number in order) + '"'

    return re.sub('virial_kbar="([^"]*)"', ordered, text)


def with_parts(text: str) -> str:
    """Return frames in extended XYZ with their ``part`` of the split.

    The file lists kind after kind. Of ten neighbours one tests and one chooses the epoch.
    """
    parts = np.zeros(text.count(FRAME), dtype=np.int64)
    draw = np.random.default_rng(0)
    for start in range(0, len(parts), 10):
        block = start + draw.permutation(min(10, len(parts) - start))
        parts[block[:1]], parts[block[1:2]] = 2, 1
    left = iter(parts)
    return re.sub(FRAME, lambda _: f"part={next(left)} {FRAME}", text)


def figures_of(element: str, folder: Path) -> list[Figure]:
    """Mean absolute errors on the test part beside the published ones, and how many labels the intervals hold."""
    test = evaluation_of(folder / "ensemble")["parts"]["test"]
    energies, forces = test["energy"], test["forces"]
    published = PUBLISHED[element]
    alone = " ".join(f"{member['mae']:.3g}" for member in forces["members"])
    per_atom = energies_per_atom(folder)
    return [
        Figure(
            what=f"{element} energy MAE per cell",
            value=energies["ensemble"]["mae"],
            unit="eV",
            goal=published[0],
            beside=f"published {published[0]:g}; members "
            + " ".join(f"{member['mae']:.3g}" for member in energies["members"]),
        ),
        Figure(
            what=f"{element} energy MAE per atom",
            value=per_atom["ensemble"],
            unit="meV/atom",
            beside="; ".join(f"{who} {error:.3g}" for who, error in per_atom.items() if who != "ensemble"),
        ),
        Figure(
            what=f"{element} forces MAE",
            value=forces["ensemble"]["mae"],
            unit="eV/A",
            goal=published[1],
            beside=f"published {published[1]:g}; members {alone}; trivial {forces['trivial']['mae']:.3g}",
        ),
        *(
            Figure(
                what=f"{element} {name} inside 90 % intervals", value=100 * test[name]["ensemble"]["coverage"], unit="%"
            )
            for name in ("energy", "forces")
        ),
    ]


def energies_per_atom(folder: Path) -> dict[str, float]:
    """Return MAEs on the test part in meV/atom.

    Of the ensemble, of its members, and of the energy per atom fitted to training.
    """
    with np.load(folder / "ensemble" / "evaluation.npz") as rows:
        target, graphs = rows["test/energy/target"], rows["test/energy/graph"]
        mean, members = rows["test/energy/mean"], rows["test/energy/members"]
    atoms = open_store(folder / STORE).sizes().nodes[graphs]
    (reference,) = model_of(folder / "members" / "0").normalisation.references["energy"].values()
    errors = {"ensemble": mean, "trivial": reference * atoms}
    errors |= {f"member {seed}": values for seed, values in enumerate(members)}
    return {who: float(1e3 * np.abs((values - target) / atoms).mean()) for who, values in errors.items()}
