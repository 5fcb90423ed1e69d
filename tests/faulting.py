"""Run commands on a disk that fails at two of their calls; print how each ended, and what a repeat made of it.

``python -P -m tests.faulting FOLDER`` with ``faulting.c`` preloaded: the last write, flush, rename or new file of each command fails by EIO,
and the one before it by a disk that stays full (ENOSPC), or one half-way by a kill. A line of JSON for each: the command, the number of the
call, the kind, and what is wrong, which is empty where all is as it should be.
"""

import ctypes
import errno
import gc
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ase.io import read

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.datasets.tools import check_store
from hydragnn.ensemble.exporting import export
from hydragnn.record import read_record
from hydragnn.scripts import cli
from hydragnn.scripts.report import canvas, where
from tests.cases import inputs

KINDS = {"EIO": (errno.EIO, 0), "ENOSPC": (errno.ENOSPC, 1), "kill": (0, 0)}
DISK = ctypes.CDLL(None)
LATE = (
    *("hydragnn.runs.run", "hydragnn.ensemble", "hydragnn.architectures.schnet", "hydragnn.scripts.report.page"),
    *("jinja2", "joblib.parallel", "sklearn.ensemble", "sklearn.cluster", "ase.md", "ase.optimize", "vesin"),
)  # fmt: skip
"""Modules that commands load when they need them; loaded before the fork, each of the many processes has them."""


@dataclass(frozen=True, slots=True)
class Command:
    """Words of a command, its output, what makes the output whole, and the words to go on."""

    words: str
    out: str
    whole: Callable[[Path, Path], bool]
    again: str = ""
    grows: bool = False
    """The output may also hold a part of the rows."""


def same_bytes(out: Path, reference: Path) -> bool:
    return out.read_bytes() == reference.read_bytes()


def same_graphs(out: Path, reference: Path) -> bool:
    return not check_store(out) and open_store(out).fingerprint == open_store(reference).fingerprint


def trained(out: Path, _: Path) -> bool:
    return read_record(out).status == "finished"


def archive(out: Path, _: Path) -> bool:
    with zipfile.ZipFile(out) as file:
        return file.testzip() is None


def page(out: Path, _: Path) -> bool:
    return out.read_text(encoding="utf-8").rstrip().endswith("</html>")


COMMANDS = {
    "append": Command("data append crystals.h5 more.toml", "crystals.h5", same_graphs),
    "merge": Command("data merge crystals.h5 texts.h5 --out merged.h5", "merged.h5", same_graphs),
    "build": Command("data build more.toml --out more.h5", "more.h5", same_graphs),
    "convert": Command("data convert crystals.h5 copy.bp", "copy.bp", same_graphs),
    "fine-tune": Command("train tune.toml --out tuned", "tuned", trained, "--resume"),
    "export": Command("export run --to torch --out model.pt2", "model.pt2", archive),
    "report": Command("report run --out page.html", "page.html", page),
    "label": Command(
        "data label start.xyz --calculator ase.calculators.emt:EMT --allow-code ase.calculators.emt --out labelled.xyz", "labelled.xyz", same_bytes, grows=True
    ),
    "md": Command("md run start.xyz --out md.xyz --steps 6 --interval 2 --outside record", "md.xyz", same_bytes, "--resume", grows=True),
    "relax": Command("relax run more.xyz --out relaxed.xyz --fmax 9", "relaxed.xyz", same_bytes, grows=True),
    "predict h5": Command("predict run crystals.h5 --out out.h5", "out.h5", same_bytes, "--resume"),
    "predict csv": Command("predict run crystals.h5 --out out.csv", "out.csv", same_bytes, "--resume"),
    "predict files": Command("predict run more.xyz --out out.csv", "out.csv", same_bytes, "--resume"),
}  # fmt: skip


def make_base(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    inputs.write_crystals(folder, 24)
    frames = inputs.crystals(30)
    inputs.write(folder / "more.xyz", frames[24:], format="extxyz")
    inputs.write(folder / "start.xyz", frames[1], format="extxyz")
    build = (folder / "crystals.toml").read_text()
    (folder / "more.toml").write_text(build.replace("crystals.xyz", "more.xyz"))
    frames[25].info["name"] = "one"
    inputs.write(folder / "texts.xyz", frames[24:], format="extxyz")
    (folder / "texts.toml").write_text(build.replace("crystals.xyz", "texts.xyz"))
    run = (folder / "run.toml").read_text().replace("epochs = 2", "epochs = 1").replace("_dim = 16", "_dim = 4")
    (folder / "run.toml").write_text(run)
    heads = run[run.index("[[heads]]") :]
    (folder / "tune.toml").write_text(f'[start]\nmodel = "run"\n[data]\nstore = "crystals.h5"\n{heads}')
    for words in (
        "data build crystals.toml --out crystals.h5",
        "data build texts.toml --out texts.h5",
        "train run.toml --out run",
    ):
        code, text, _ = run_command(words, folder)
        if code:
            raise RuntimeError(text)


def run_command(words: str, folder: Path, call: int = -1, kind: str = "EIO") -> tuple[int, str, int]:
    """Return the exit code, what was printed, and the calls of a command in a process of its own."""
    calls = Path(tempfile.gettempdir()) / f"calls-{os.getpid()}"
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            os.chdir(folder)
            sys.argv = ["hydragnn", *words.split()]
            DISK.fault_at(os.fsencode(f"{folder}/"), ctypes.c_long(call if call > 0 else 1 << 40), *KINDS[kind])
            code = 1
            try:
                cli.main()
                code = 0
            except SystemExit as ending:
                code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                calls.write_text(str(DISK.fault_seen()))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read(), int(calls.read_text() or 0) if code >= 0 else -1


def fault(command: Command, base: Path, work: Path, reference: Path, call: int, kind: str) -> tuple[str, int]:
    """Return what is wrong after a fault at one call and a repeat, and the calls that there were."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    code, text, calls = run_command(command.words, work, call, kind)
    out, before, problems = work / command.out, base / command.out, []
    if "Traceback" in text:
        problems.append("a traceback: " + text.strip().splitlines()[-1])
    errors = [line for line in text.splitlines() if line.startswith("error")]
    if kind != "kill" and code and len(errors) != 1:
        problems.append(f"exit {code} without one sentence: {text[-300:]!r}")
    if kind == "kill" and code >= 0:
        return "", calls  # it came to its end before

    def what() -> str:
        try:
            if not out.exists() or (before.exists() and command.whole(out, before)):
                return "absent"
            rows = f"{len(read(out, ':')) if out.stat().st_size else 0} rows" if command.grows else "in part"
            return "whole" if command.whole(out, reference / command.out) else rows
        except Exception as error:
            anew = "did not finish; run it again" in str(error)
            return "absent" if anew else f"unreadable ({type(error).__name__}: {error})"

    first, goes_on = what(), command.again and command.whole is trained
    if first not in ("absent", "whole") and not first.endswith("rows") and not goes_on:
        problems.append(f"after exit {code} the output is {first}")
    if code == 0 and first != "whole":
        problems.append(f"exit 0, and the output is {first}")
    words = command.words if code == 0 else f"{command.words} {command.again}"
    again, said, _ = run_command(words, work)
    if again == 2 and "leave out --resume" in said:
        again, said, _ = run_command(command.words, work)
    then = what()
    if then != "whole":
        before_it = f"first {first}, {text[-300:]!r}"
        problems.append(f"a repeat ends with {again}, and the output is {then}: {said[-300:]!r} ({before_it})")
    if again not in (0, 2) or (again == 2 and first != "whole") or "Traceback" in said:
        problems.append(f"a repeat of what is {first} ends with {again}: {said[-300:]!r}")
    left = {path.name for path in work.iterdir()} - {path.name for path in reference.iterdir()}
    left -= {name for name in left if kind == "kill" and name.startswith(".") and name.endswith(".tmp")}
    if left:
        problems.append(f"left behind: {sorted(left)}")
    return "; ".join(problems), calls


def trace_once(run: Path) -> None:
    """Let every export of the run write one program, whose tracing takes seconds and writes nothing."""
    ensemble = hydragnn.load(run)
    program = export.program_of(export.PlainPotential(ensemble, export.facts_of(ensemble)).eval())
    export.program_of = lambda potential: program


def main() -> None:
    top = Path(sys.argv[1]).resolve()
    for name in LATE:
        import_module(name)
    gc.freeze()
    make_base(top / "base")
    trace_once(top / "base" / "run")
    canvas.picture = where.picture = lambda *_, **__: "<svg/>"  # drawing takes seconds
    for number, (name, command) in enumerate(COMMANDS.items()):
        reference = top / "reference"
        shutil.rmtree(reference, ignore_errors=True)
        shutil.copytree(top / "base", reference)
        code, text, calls = run_command(command.words, reference)
        print(json.dumps([name, 0, "", f"exit {code}: {text[-300:]}" if code else "", calls]), flush=True)
        for call, kind in ((calls, "EIO"), [(calls - 1, "ENOSPC"), (calls // 2, "kill")][number % 2]):
            problem, _ = fault(command, top / "base", top / "work", reference, call, kind)
            print(json.dumps([name, call, kind, problem]), flush=True)


if __name__ == "__main__":
    main()
