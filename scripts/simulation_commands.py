"""Commands ``relax``, ``md`` and ``data label``: relaxation, dynamics and labels on ASE."""

import hashlib
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import track

from hydragnn.base.errors import Busy, InputError, Interrupted, as_note, print_note
from hydragnn.base.files import read_sealed, try_lock, write_sealed
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.places import check_exists
from hydragnn.base.terminal import PlainConsole
from hydragnn.scripts.options import AllowCode, Branch
from hydragnn.scripts.run_sources import model_folder
from hydragnn.scripts.showing import Result

Model = Annotated[Path, typer.Argument(help="An ensemble, run or campaign folder with an energy and forces.")]
Outside = Literal["stop", "warn", "record"]
RESULTS = ("energy", "forces", "stress")
COLUMNS = ("name", "steps", "converged", "energy", "max_force", "energy_std", "domain_score")
"""Columns of the table of relaxed structures; eV and eV/Angstrom."""
HOTTEST, LONGEST_STEP = 2e4, 1.0
"""K and Angstrom: two hydrogen atoms that become a molecule reach 17,000 K, and no bond is so short."""
EXPLODED = 10.0
"""A relaxed cell is no so many times larger or smaller: its atoms see each other no more, without any force, or lie in one another."""
COST = 50  # time between two saved states, in units of what saving takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Relaxation:
    """Settings of relaxations, which their file keeps."""

    optimizer: Annotated[Literal["FIRE", "BFGS"], typer.Option(help="Optimiser of ASE.")] = "FIRE"
    fmax: Annotated[float, typer.Option(help="Largest force of a relaxed structure, in eV/Angstrom.")] = 0.05
    steps: Annotated[int, typer.Option(min=1, help="Most steps of a structure.")] = 500
    cell: Annotated[bool, typer.Option("--cell", help="Relax cells with three periodic axes, too.")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamics:
    """Settings of a trajectory, which its file keeps; K, fs and 1/fs."""

    temperature: Annotated[float, typer.Option(help="K; also of momenta, if the file has none.")] = 300.0
    timestep: Annotated[float, typer.Option(help="fs.")] = 1.0
    thermostat: Annotated[Literal["langevin", "none"], typer.Option(help="none: constant energy.")] = "langevin"
    friction: Annotated[float, typer.Option(help="Of the thermostat, in 1/fs.")] = 0.01
    seed: Annotated[int, typer.Option(min=0, help="Of momenta and thermostat.")] = 0
    interval: Annotated[int, typer.Option(min=1, help="Steps from frame to frame.")] = 10


class XyzRows:
    """Extended XYZ that grows by whole rows, with ``OUT.state.json``."""

    def __init__(self, out: Path, command: str) -> None:
        """Raise InputError where ``out`` cannot be made or continued by the command."""
        self.out, self.path, self.command = out, out.with_name(f"{out.name}.state.json"), command
        self.state: dict[str, Any] = {}
        self.due = 0.0
        if out.suffix not in (".xyz", ".extxyz"):
            raise InputError(f"--out {out}: the file is extended XYZ; let its name end in .xyz or .extxyz")
        if os.path.lexists(out) and (out.is_symlink() or not out.is_file()):
            raise InputError(f"{out} is a link or a folder; choose another --out")
        if os.path.lexists(self.path):
            state = read_sealed(self.path)
            if not isinstance(state, dict) or state.get("command") != command:
                raise InputError(f"{self.path} is there and no state of hydragnn {command}; choose another --out")
            self.state = state if out.exists() else {}
        elif out.exists() and out.stat().st_size:
            raise InputError(f"{out} exists already and was not made by hydragnn {command}; choose another --out")

    @contextmanager
    def growing(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Open the file after its last whole row; save the state."""
        for key, value in settings.items():
            if self.state and self.state["settings"][key] != value:
                raise InputError(f"{self.out} was made with another {key}; repeat it, or choose another --out")
        from hydragnn.runs.signals import raise_signals

        stop = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        leaving = raise_signals(stop, lambda kind: Interrupted(f"stopped by {kind.name}; what was finished is saved"))
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.touch()
        with self.out.open("r+b") as self.file:
            if try_lock(self.file.fileno()) is False:
                raise Busy(f"another process writes {self.out}; wait for it, or choose another --out")
            if not self.state:
                self.state = {"command": self.command, "settings": dict(settings), "rows": 0, "bytes": 0}
                write_sealed(self.path, self.state)
            if os.fstat(self.file.fileno()).st_size < self.state["bytes"]:
                raise InputError(f"{self.out} was shortened since it was written; delete it to begin anew")
            self.file.truncate(self.state["bytes"])
            self.file.seek(0, os.SEEK_END)
            try:
                with leaving as self.check:
                    yield
            finally:
                self.file.truncate(self.state["bytes"])
                write_sealed(self.path, self.state)

    def append(self, row: Any, **state: Any) -> None:
        """Write a row; save the state where that costs little."""
        from ase.io.extxyz import write_extxyz

        text = StringIO()
        write_extxyz(text, [row])
        self.file.write(text.getvalue().encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.note(**state, rows=self.state["rows"] + 1, bytes=self.file.tell())

    def note(self, **state: Any) -> None:
        """Change the state; save it where that costs little."""
        self.state = {**self.state, **state}
        self.check()
        start = time.monotonic()
        if start >= self.due:
            write_sealed(self.path, self.state)
            self.due = time.monotonic() + COST * (time.monotonic() - start)


def _inputs(
    model: Path, source: Path, branch: str, code: Sequence[str], outside: Outside
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a model's calculator, structures, and what identifies them."""
    _allow_code(code)
    model = model_folder(model)
    check_exists(source)
    from hydragnn.ensemble import Ensemble, calculator

    ensemble = Ensemble.load(model, branch=branch)
    if outside == "stop" and not ensemble.knows_domain:
        advice = "make an ensemble of its runs (hydragnn ensemble), or give --outside record"
        raise InputError(f"{model} has no training domain to stop at; {advice}")
    potential = calculator(ensemble, outside=outside)
    if "forces" not in potential.names:
        raise InputError(f"{model} predicts no forces; train a head of kind energy with forces (docs/heads.md)")
    frames, content = frames_in(source)
    return potential, frames, {"model": ensemble.digest, "branch": branch, "structures": content}


def frames_in(source: Path) -> tuple[list[Any], str]:
    """Return the structures of a file and its digest; InputError without atoms."""
    from hydragnn.ensemble.prediction.rules import structures_in

    return structures_in(source), hashlib.sha256(source.read_bytes()).hexdigest()


def _row(atoms: Any, **info: Any) -> Any:
    """Return a structure with results, without labels of other positions."""
    from ase.calculators.singlepoint import SinglePointCalculator

    row, keys = atoms.copy(), {key for key, _ in atoms.calc.values.values()}
    row.info = {key: value for key, value in atoms.info.items() if key in keys} | info
    for key in set(row.arrays) - keys - {"numbers", "positions", "momenta", "masses"}:
        del row.arrays[key]
    results, others = atoms.calc.results, getattr(atoms.calc.results, "others", {})
    row.calc = SinglePointCalculator(row, **{key: results[key] for key in RESULTS if key in results})
    row.info |= {key: others[key] for key in ("energy_std", "domain_score", "domain") if others.get(key, "") != ""}
    row.arrays |= {key: others[key] for key in ("forces_std",) if key in others}
    return row


def tracked(numbers: range, what: str, quiet: bool) -> Iterable[int]:
    """Show progress with the time left on a terminal."""
    console = PlainConsole(stderr=True, work=True)
    return track(numbers, what, console=console, transient=True, disable=quiet or not console.is_terminal)


def _check_positive(how: Any, *names: str) -> None:
    """Raise InputError for options that are no finite numbers above 0."""
    for name in names:
        if not 0 < getattr(how, name) < math.inf:
            raise InputError(f"--{name} {getattr(how, name):g} is no number above 0")


def relax(
    model: Model,
    structures: Annotated[Path, typer.Argument(help="A file of structures that ASE reads.")],
    out: Annotated[Path, typer.Option(help="Extended XYZ, a row per structure; the same command continues it.")],
    how: Relaxation,
    *,
    branch: Branch = "",
    allow_code: AllowCode = (),
    quiet: bool = False,
) -> Result:
    """Relax structures; a row each with energy, forces, uncertainty, domain score.

    `hydragnn relax ENSEMBLE structures.xyz --out relaxed.xyz`

    After Ctrl-C or a kill the same command relaxes only what is missing. Exits with 3 where a structure did not converge; its last
    positions are in the file. docs/simulations.md has the columns.
    """
    rows = XyzRows(out, "relax")
    _check_positive(how, "fmax")
    potential, frames, origin = _inputs(model, structures, branch, allow_code, "record")
    if how.cell and ("stress" not in potential.names or not any(atoms.pbc.all() for atoms in frames)):
        raise InputError("--cell needs a model with a stress, and structures with three periodic axes; leave it out")
    with rows.growing(origin | asdict(how)):
        for number in tracked(range(rows.state["rows"], len(frames)), "structures", quiet):
            row = _relaxed(frames[number], potential.ensemble, f"{structures.name}#{number}", how)
            facts = {**row.info, "energy": row.calc.results.get("energy")}
            line = {key: facts.get(key) for key in (*COLUMNS, "status")}
            rows.append(row, table=[*rows.state.get("table", []), line])
    table = [{key: one[key] for key in COLUMNS} for one in rows.state["table"]]
    lost = [{"name": one["name"], "reason": one.get("status")} for one in rows.state["table"] if one["energy"] is None]
    failed = sum(not one["converged"] for one in table)
    why = f", {len(lost)} of them because they cannot be predicted" if lost else ""
    note = f"note: {failed} of {len(table)} did not converge in {how.steps} steps{why}; {out} has status and last positions"
    value = {"structures": table, "not converged": failed, "not predicted": lost, "out": str(out)}
    return Result(value=value, note=note * bool(failed), code=3 * bool(failed))


def _relaxed(atoms: Any, ensemble: Any, name: str, how: Relaxation) -> Any:
    """Return a structure after relaxation, whether it converged or not."""
    from ase.filters import FrechetCellFilter
    from ase.optimize import BFGS, FIRE

    from hydragnn.ensemble import EnsembleCalculator
    from hydragnn.graphs.texts import name_among

    atoms.calc = EnsembleCalculator(ensemble, "record")  # neighbours depend on no other structure
    facts: dict[str, Any] = {"name": name_among(atoms.info) or name, "steps": 0, "converged": False}
    try:
        atoms.get_forces()  # InputError before a filter reads the cell
        moves_cell, volume = how.cell and atoms.pbc.all(), atoms.cell.volume
        target = FrechetCellFilter(atoms) if moves_cell else atoms
        optimiser = {"FIRE": FIRE, "BFGS": BFGS}[how.optimizer](target, logfile=None)
        optimiser.attach(lambda: facts.update(steps=optimiser.nsteps))
        facts["converged"] = bool(optimiser.run(how.fmax, how.steps))
        facts["max_force"] = float((atoms.get_forces() ** 2).sum(1).max() ** 0.5)
        facts["status"] = "converged" if facts["converged"] else "not converged"
        if moves_cell and not 1 / EXPLODED < (times := atoms.cell.volume / volume) < EXPLODED:
            facts |= {"converged": False, "status": f"not converged: the cell became {times:.3g} times as large"}
    except InputError as error:
        facts["status"] = str(error)
    return _row(atoms, **facts)


def md(
    model: Model,
    structure: Annotated[Path, typer.Argument(help="A file with one structure that ASE reads.")],
    out: Annotated[Path, typer.Option(help="Trajectory in extended XYZ, .xyz or .extxyz.")],
    how: Dynamics,
    *,
    steps: Annotated[int, typer.Option(min=1, help="Last step, also with --resume; a multiple of --interval.")] = 1000,
    outside: Annotated[Outside, typer.Option(help="Reaction to structures outside the training domain.")] = "stop",
    resume: Annotated[bool, typer.Option("--resume", help="Continue --out, with the bits of a run in one go.")] = False,
    branch: Branch = "",
    allow_code: AllowCode = (),
    quiet: bool = False,
) -> Result:
    """Run molecular dynamics that stop outside the training domain.

    `hydragnn md ENSEMBLE start.xyz --out dynamics.xyz --temperature 300 --steps 10000`

    Frames have energy, forces, momenta, temperature, uncertainty and domain score. After Ctrl-C or a kill, `--resume` continues with the
    same bits; with more `--steps` also a finished one. Exits with 3 where the domain stopped it. See docs/simulations.md.
    """
    rows = XyzRows(out, "md")
    if rows.state and not resume:
        raise InputError(f"{out} exists already; add --resume to continue it, or choose another --out")
    _check_positive(how, "temperature", "timestep", "friction")
    if steps % how.interval:
        raise InputError(f"--steps {steps} is no multiple of --interval {how.interval}; change one of them")
    potential, frames, origin = _inputs(model, structure, branch, allow_code, outside)
    if len(frames) > 1:
        raise InputError(f"{structure} has {len(frames)} structures; dynamics begin with one, so give a file with one")
    if resume and not rows.state:
        print(f"nothing to resume in {out}: beginning anew", file=sys.stderr, flush=True)
    atoms = frames[0]
    atoms.calc = potential
    if not all(0 < mass < math.inf for mass in atoms.get_masses()):
        raise InputError(f"{structure} has masses that are no numbers above 0; correct them, or leave them out")
    if not rows.state.get("rows"):
        atoms.get_forces()  # InputError before there is a file
        _limits(atoms, how, atoms.get_total_energy())()
    with rows.growing(origin | asdict(how)):
        reason, reached = _propagate(atoms, rows, how, steps, quiet)
    result = {"trajectory": str(out), "status": "stopped" if reason else "finished", "step": reached}
    last = f"the last frame is number {rows.state['rows'] - 1}, of step {rows.state.get('step')}"
    value = {**result, "frames": rows.state["rows"], **({"reason": reason} if reason else {})}
    note = f"stopped after step {reached}: {reason}; {last}" if reason else ""
    return Result(value=value, note=note, code=3 * bool(reason))


def _propagate(atoms: Any, rows: XyzRows, how: Dynamics, steps: int, quiet: bool) -> tuple[str, int]:
    """Write frames; return why they stopped, and the last step."""
    import numpy as np
    from ase import units
    from ase.md.langevin import Langevin
    from ase.md.verlet import VelocityVerlet

    from hydragnn.ensemble import OutsideDomain
    from hydragnn.ensemble.uses.calculator import STEPS

    state, random = rows.state, np.random.default_rng(how.seed)
    atoms.calc.errors = deque(atoms.calc.errors, maxlen=max(2, round(STEPS * min(10, 1 / how.timestep))))
    if state["rows"]:
        atoms.positions[:] = state["positions"]
        atoms.set_momenta(np.array(state["momenta"]), apply_constraint=False)
        random.bit_generator.state = state["random"]
        atoms.calc.restart(atoms, state["energy"], np.array(state["forces"]))
        atoms.calc.errors.extend(state.get("errors", []))
    elif not atoms.has("momenta"):
        masses, heat = atoms.get_masses()[:, None], units.kB * how.temperature
        atoms.set_momenta(random.standard_normal((len(atoms), 3)) * np.sqrt(masses * heat))
        if len(atoms) > 1 and not atoms.constraints:  # no drift, at the same mean temperature
            at_rest = atoms.get_momenta() - masses * atoms.get_momenta().sum(0) / masses.sum()
            atoms.set_momenta(at_rest * np.sqrt(len(atoms) / (len(atoms) - 1)))
    timestep = how.timestep * units.fs
    if how.thermostat == "langevin":
        bath = {"temperature_K": how.temperature, "friction": how.friction / units.fs}
        dynamics: Any = Langevin(atoms, timestep, **bath, fixcm=False, rng=random)
    else:
        dynamics = VelocityVerlet(atoms, timestep)
    dynamics.nsteps = state.get("step", 0)
    begun = state.get("begun", float(atoms.get_total_energy()))
    dynamics.attach(_limits(atoms, how, begun))
    if not state["rows"]:
        _write_frame(atoms, rows, 0, random, begun=begun)
    for _ in tracked(range(dynamics.nsteps, steps, how.interval), "frames", quiet):
        try:
            dynamics.run(how.interval)
        except OutsideDomain as error:
            return f"outside the training domain (domain score {error.score:.3g}): {error.reason}", dynamics.nsteps
        except InputError as error:
            return str(error), dynamics.nsteps
        _write_frame(atoms, rows, dynamics.nsteps, random)  # a disk that fails is no end of the motion
    return "", dynamics.nsteps


def _limits(atoms: Any, how: Dynamics, begun: float) -> Callable[[], None]:
    """Return a check of every step, which raises InputError for impossible motion."""
    import numpy as np
    from ase import units

    heat, closed, last = units.kB * how.temperature, how.thermostat == "none", atoms.get_positions()
    hottest, most = max(HOTTEST, 20 * how.temperature), max(0.1, heat) if closed else 2 + 20 * heat

    def check() -> None:
        hot, step = atoms.get_temperature(), float(np.linalg.norm(atoms.positions - last, axis=1).max())
        gained = (atoms.get_total_energy() - begun) / len(atoms)
        last[:] = atoms.positions
        for value, limit, words in (
            (hot, hottest, f"the temperature is {hot:.3g} K"),
            (step, LONGEST_STEP, f"an atom moved {step:.3g} Angstrom in one step"),
            (abs(gained) if closed else gained, most, f"the energy changed by {gained:.3g} eV/atom"),
        ):
            if not value <= limit:
                advice = "take a shorter --timestep, and look at structure and momenta"
                raise InputError(f"no motion of atoms: {words}, above {limit:.3g}; {advice}")

    return check


def _write_frame(atoms: Any, rows: XyzRows, step: int, random: Any, **state: Any) -> None:
    """Write a frame, and begin anew from it, for equal bits."""
    energy, forces = atoms.calc.results["energy"], atoms.calc.results["forces"].astype("float64")
    info = {"step": step, "time": step * rows.state["settings"]["timestep"], "temperature": atoms.get_temperature()}
    row = _row(atoms, **info, kinetic_energy=atoms.get_kinetic_energy())
    arrays = {"positions": atoms.positions, "momenta": atoms.get_momenta(), "forces": forces}
    texts = {name: values.tolist() for name, values in arrays.items()}
    state |= {"random": random.bit_generator.state, "errors": [*atoms.calc.errors]}
    rows.append(row, step=step, energy=energy, **texts, **state)
    atoms.calc.restart(atoms, energy, forces)


def label(
    structures: Annotated[Path, typer.Argument(help="A file of structures that ASE reads.")],
    calculator: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="A function that returns a calculator of ASE; --allow-code.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Extended XYZ; the same command continues it.")],
    *,
    allow_code: AllowCode = (),
    quiet: bool = False,
) -> Result:
    """Label structures with energy, forces and stress of any calculator.

    `hydragnn data label frames.xyz --calculator my_potentials:make --allow-code my_potentials --out labelled.xyz`

    Texts and integers beside a structure are kept, older labels are not. After Ctrl-C or a kill the same command labels only what is missing. Structures that the calculator
    refuses are left out, too, and named; it exits with 3 then.
    """
    from hydragnn.ensemble.uses.foreign import few_refusals, new_calculator, results_of
    from hydragnn.ensemble.uses.foreign_trial import check_calculator

    rows = XyzRows(out, "data label")
    _allow_code(allow_code)
    frames, content = frames_in(structures)
    potential = new_calculator(calculator, f"--calculator {calculator}")
    if not rows.state and (doubt := check_calculator(calculator, partial(results_of, calculator=potential), frames)):
        print_note(f"{calculator}: {doubt}")
    failed: dict[str, str] = dict(rows.state.get("failed", {}))
    with rows.growing({"calculator": calculator, "structures": content}):
        for number in tracked(range(rows.state["rows"] + len(failed), len(frames)), "structures", quiet):
            results: dict[str, Any] = {}
            with as_note("", partial(failed.__setitem__, str(number))):  # whatever that program raises
                results = results_of(frames[number], potential)
            if results:
                rows.append(labelled(frames[number], results, f"{structures.name}#{number}"))
            else:
                rows.note(failed=failed)
    value = {"labelled": rows.state["rows"], "failed": failed, "out": str(out)}
    note = f"note: of {len(frames)}, {calculator} {few_refusals(failed)}" if failed else ""
    return Result(value=value, note=note, code=3 * bool(failed))


def labelled(atoms: Any, results: dict[str, Any], name: str) -> Any:
    """Return a structure with these labels alone, its own texts and integers."""
    import numpy as np
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    from hydragnn.graphs.texts import name_among

    row = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    row.info = {key: text for key, text in atoms.info.items() if isinstance(text, str | int | np.integer | np.bool_)}
    row.info["name"] = name_among(atoms.info) or name
    row.calc = SinglePointCalculator(row, **results)
    return row
