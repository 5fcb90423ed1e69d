"""Files that are complete or absent: written aside, flushed, renamed."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.limits import check_mark, check_readable

T = TypeVar("T")

Check = Callable[[], Path | None]
"""Raises what forbids a write; gives the folder in which to write aside, None for that of the file."""


def write_atomically(path: Path, content: bytes | str, check: Check | None = None) -> None:
    """Write a file; readers see the old or the new one.

    ``check`` is called first and at the last moment, and what it raises leaves the old file. InputError for text with names that are
    no UTF-8.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        text = content if isinstance(content, str) else ""
        name = text[text.rfind('"', 0, error.start) + 1 :].partition('"')[0].encode(errors="backslashreplace").decode()
        raise InputError(f"cannot write {path}: the name {name} is no UTF-8; rename that file or folder") from error

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    replace_atomically(path, write, check)


def replace_atomically(path: Path, write: Callable[[Path], None], check: Check | None = None) -> None:
    """Write a file aside with ``write``, then rename it into place.

    InputError for a device or a pipe such as /dev/null, which the file would replace.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(
            f"cannot write {path}: it is no regular file, and would be replaced by one; choose another place"
        )
    aside = check() if check else None
    temporary, doubt = (aside or path.parent) / f".{path.name}.{os.getpid()}.tmp", ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        if check is not None:
            check()
        if os.path.lexists(path):
            temporary.replace(path)
            doubt = " (its new content is there as a whole, but may not survive a power cut)"
            flush_directory(path.parent)
        else:
            rename_all({temporary: path})
    except OSError as error:
        if check is not None:
            check()
        raise InputError(
            f"cannot write {path}: {error.strerror or error}{doubt}; free space or choose another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # also below a file, where there can be nothing to remove
            shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)


def rename_all(finals: Mapping[Path, Path]) -> None:
    """Rename files or folders to free names; restore all on OSError."""
    try:
        for temporary, final in finals.items():
            temporary.rename(final)
        for folder in dict.fromkeys(final.parent for final in finals.values()):
            flush_directory(folder)
    except OSError as error:
        try:
            for temporary, final in finals.items():
                if not os.path.lexists(temporary):
                    final.rename(temporary)
        except OSError:
            doubt = "it is there as a whole, but may not survive a power cut; delete it before you begin anew"
            raise OSError(error.errno, f"{error.strerror or error} ({doubt})") from error
        raise


def flush_directory(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, check: Check | None = None) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", check)


def write_sealed(path: Path, table: Mapping[str, Any], check: Check | None = None) -> None:
    """Write a table as JSON with its checksum under ``checksum``."""
    content = {key: value for key, value in table.items() if key != "checksum"}
    write_json(path, {**content, "checksum": checksum_of(content)}, check)


def read_sealed(path: Path) -> Any:
    """Return a JSON value without its checksum; InputError for a wrong one.

    A file without a checksum was changed by hand, and is taken as it is, but for infinite numbers and NaN.
    """
    value = read_json(path)
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{path} is damaged: a number is infinite or NaN; correct it, or use another copy") from error
    if isinstance(value, dict) and value.pop("checksum", None) not in (None, checksum_of(value)):
        problem = f"{path} is damaged: its checksum is not that of what was written"
        raise InputError(f"{problem}; use another copy (whoever changed it on purpose removes the key checksum)")
    return value


def check_version(version: object, path: Path, *, oldest: int, newest: int) -> None:
    """Raise InputError unless a file has a version that this program reads."""
    if not isinstance(version, int) or version > newest:
        raise InputError(f"{path} has version {version}, this program reads up to {newest}; update the program")
    if version < oldest:
        raise InputError(f"{path} has version {version} of a program before the first release; make it anew")


def checksum_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, written or read.

    >>> checksum_of({"b": (1, 2), 3: None}) == checksum_of({"3": None, "b": [1, 2]})
    True
    """
    plain = json.loads(json.dumps(value))  # keys are texts, tuples are lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


KINDS = {
    "manifest.json": "a store",
    "ensemble.json": "an ensemble",
    "campaign.json": "a campaign",
    "record.json": "a run",
    "model.json": "a model",
}
"""The file that makes a folder what it is; a member of an ensemble holds a record and a model, and is a run."""


def kind_of_folder(folder: Path) -> str:
    """Return the kind of our folder, such as "a store"; or ""."""
    return next((kind for name, kind in KINDS.items() if (folder / name).is_file()), "")


def check_utf8(folder: Path) -> None:
    """Raise InputError for a path that safetensors cannot open: no UTF-8."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(folder).decode(errors="backslashreplace")
        raise InputError(
            f"the path of {name} is no UTF-8, and weights could not be read there; choose another --out"
        ) from error


def check_target(folder: Path, own: Collection[str]) -> None:
    """Raise InputError where a folder cannot take the files ``own``.

    That is a file, a broken link, something else that this program made, or a folder with other files.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise InputError(
            f"{folder} is {'a file' if folder.exists() else 'a broken link'}, no folder; choose another --out"
        )
    kind = kind_of_folder(folder)
    if kind:
        raise InputError(f"{folder} is {kind}, and other files would be mixed into it; choose another --out")
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    foreign = [name for name in names if name not in own]
    if foreign:
        raise InputError(f"{folder} holds {foreign[0]}, which this command did not make; choose another --out")


def check_page_target(place: Path, mark: bytes, what: str) -> None:
    """Raise InputError where something other than an earlier page stands there.

    Pages have ``mark`` at their beginning; ``what`` is a noun such as "report".
    """
    if place.is_dir():
        raise InputError(
            f"{place} is a folder; give the file that the {what} becomes as --out, in a folder of its own or in this one"
        )
    if not os.path.lexists(place):
        return
    if not place.exists():
        raise InputError(f"{place} is a broken link; choose another --out or delete it")
    with place.open("rb") as file:
        if mark not in file.read(4096):
            raise InputError(f"{place} exists already and is no {what}; choose another --out or delete it")


@contextlib.contextmanager
def file_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn errors of the file system in the block into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}; {remedy}") from error


@contextlib.contextmanager
def empty_folders_removed(path: Path) -> Iterator[None]:
    """Remove new folders on the way to a path that stay empty."""
    new = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the first that is not empty is the last
            for folder in new:
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()


NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF, errno.EINVAL})
"""Errors of a file system without locks, as of NFS without its lock daemon or for folders, or of Lustre mounted without ``flock``."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file; False if another process has it.

    None where the file system has no locks. All locks of this package are taken here. OSError where locking fails otherwise.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def knows_locks(folder: Path) -> bool:
    """Return True where the file system has locks; OSError if unreadable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return try_lock(descriptor, shared=True) is not None
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int | None:
    """Return a descriptor that locks a path, None if another process does.

    The lock ends with the process or when the descriptor is closed.
    Where the file system knows no locks, nobody is kept out. OSError where the file cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        held = try_lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    if held is None:
        return descriptor
    try:
        stands = held and os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        stands = False
    if not stands:  # another one holds it, or has just removed it, and nobody else would see this lock
        os.close(descriptor)
        return None
    return descriptor


def unlock_file(path: Path, descriptor: int) -> None:
    """Remove a lock and release it, also in forked children."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    let_go(descriptor)


def let_go(descriptor: int) -> None:
    """Close a descriptor and release its lock, also in forked children."""
    with contextlib.suppress(OSError):  # no locks there
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextlib.contextmanager
def alone_in_folder(folder: Path, what: str) -> Iterator[None]:
    """Reserve a folder for this process; Busy where another one uses it.

    ``what`` is the verb for the message, such as "makes". Nothing is left in the folder, which goes where it was not there before
    and is empty in the end. Where the file system knows no locks of folders, nobody looks.
    """
    with empty_folders_removed(folder):
        with contextlib.suppress(OSError):  # who writes there says what is wrong
            folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            yield
            return
        try:
            if try_lock(descriptor) is False:
                raise Busy(f"another process {what} {folder}; wait for it, or choose another path")
            yield
        finally:
            let_go(descriptor)


def check_no_link(path: Path) -> None:
    """Raise InputError for a symbolic link, which would redirect what is written."""
    if path.is_symlink():
        problem = f"{path} is a symbolic link, and nothing is written through one"
        raise InputError(f"{problem}; put what it points to in its place, or delete it")


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; OSError as of ``os.open``.

    InputError where a link, a pipe, a device or a folder is there: nothing is followed out of a folder, and nothing waits for a writer.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError:
        check_own(Path(path))
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is no regular file; copy what it should be there")
    return descriptor


def check_own(path: Path) -> None:
    """Raise InputError where something other than a regular file is there."""
    check_no_link(path)
    check_readable(path)


def open_log(path: Path) -> BinaryIO:
    """A log to append to; errors as of ``open_regular``."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def check_inside(path: Path, folder: Path) -> None:
    """Raise InputError for a path that leaves a folder, also by links."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path} leads out of {folder}, and is not followed; put what it points to in its place")


LARGEST = 2**30
"""Bytes of a JSON file of ours; what is larger is something else."""


def open_packed(path: Path, mode: str = "rb") -> Any:
    """Open a file that may be compressed, by ASE."""
    from ase.io.formats import open_with_compression

    return open_with_compression(str(path), mode)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; InputError if missing or damaged."""
    return parsed_file(path, json.loads, "JSON", LARGEST)


def parsed_file(path: Path, parse: Callable[[str], T], language: str, largest: int, *, pipes: bool = False) -> T:
    """Return the parsed text of a file or of a pipe.

    InputError where it is missing, malformed, larger than so many bytes or a device, which may have no end.
    """
    try:
        # opened once: for campaigns every operation of the file system counts
        flags = os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK)
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) or (pipes and stat.S_ISFIFO(status.st_mode))):
                raise InputError(
                    f"{path} is no regular file, and reading it might not end; copy its content into a file"
                )
            # read(n) takes n bytes of memory at once
            most = largest + 1 if stat.S_ISFIFO(status.st_mode) else -1
            content = b"" if status.st_size > largest else file.read(most)
        if max(status.st_size, len(content)) > largest:
            raise ValueError(f"it has more than {largest:,} bytes")
        check_mark(path, content[:8].removeprefix(BOM_UTF8))
        return parse(content.decode("utf-8-sig"))
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except (ValueError, RecursionError) as error:  # no such text, numbers of thousands of digits, nested without end
        raise InputError(f"{path} is not valid {language} ({error}); it was cut off or is something else") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def digest(value: Any) -> str:
    """Return a short hash of a JSON value, equal on every machine.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def allow_many_files() -> int:
    """Raise the limit of open files to the system's maximum; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system that promises more than it gives
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if now == resource.RLIM_INFINITY else now
