"""Errors of input; every other exception is a defect of ours."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: what, where and the next move; exit code 2."""

    code = 2
    texts: Mapping[str, str] = {}  # of the graph that could not be made


class Busy(InputError):
    """Another process works there; the same may succeed later (exit code 75)."""

    code = 75


class AllocationEnded(InputError):
    """The allocation of a command is over (exit code 75)."""

    code = 75


class TakenOver(InputError):
    """Another process continues the work, and this one leaves (exit code 4)."""

    code = 4


class SaidByFirst(InputError):
    """Input error that rank 0 prints for all ranks, with one code."""


class Interrupted(Exception):
    """Ctrl-C or a signal after everything finished was saved (exit code 130)."""

    code = 130


class OutOfWalltime(Interrupted):
    """The allocation ends before the work does (exit code 75)."""

    code = 75


class MissingPackageError(InputError):
    """An optional package is missing; the message names its extra."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}; install it with: pip install 'hydragnn-ensemble[{extra}]'"
        )


NO_MEMORY = (
    "there is no memory for this command or the libraries that it loads; give it more (the memory of its job, `ulimit -v`), or use "
    "smaller batches"
)


def wants_memory(error: BaseException | None) -> bool:
    """Return True for an error that means that memory is short.

    >>> wants_memory(ImportError("libx.so: failed to map segment from shared object")), wants_memory(ImportError("no x"))
    (True, False)
    """
    while error is not None:
        words, texts = str(error).lower(), ("failed to map segment", "allocate memory", "out of memory")
        if isinstance(error, MemoryError) or any(text in words for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return False


def nearest(word: str, valid: list[str]) -> str:
    """Return the closest valid word for a misspelled one, or all.

    >>> nearest("cutof", ["cutoff", "kind"])
    'did you mean cutoff?'
    >>> nearest("PaiNN", ["painn", "pna"])
    'did you mean painn?'
    >>> nearest("zzz", ["cutoff", "kind"])
    'valid: cutoff, kind'
    """
    from difflib import get_close_matches

    by_letters = {one.lower(): one for one in reversed(valid)}
    close = get_close_matches(str(word).lower(), by_letters, n=1, cutoff=0.65)
    return f"did you mean {by_letters[close[0]]}?" if close else "valid: " + ", ".join(sorted(valid))


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Begin the messages of input errors in the block with a subject.

    >>> with about("branch metals"): raise InputError("the store is empty; fill it")
    Traceback (most recent call last):
    hydragnn.base.errors.InputError: branch metals: the store is empty; fill it
    """
    try:
        yield
    except InputError as error:
        if subject:
            error.args = (f"{subject}: {error}",)
        raise


def words_of(error: BaseException) -> str:
    """Return an error as one line, of other programs with its kind."""
    return " ".join((str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}").split())


@contextmanager
def as_input_error(problem: str, move: str) -> Iterator[None]:
    """Turn what other programs raise in the block into InputError.

    >>> with as_input_error("a.xyz cannot be read", "check it"): int("x")
    Traceback (most recent call last):
    hydragnn.base.errors.InputError: a.xyz cannot be read (ValueError: invalid literal for int() with base 10: 'x'); check it
    """
    try:
        yield
    except (InputError, Interrupted):
        raise
    except (SystemExit, Exception) as error:  # some readers exit
        raise InputError(f"{problem} ({words_of(error):.300}); {move}") from error


@contextmanager
def own_code(name: str, move: str = "repair it") -> Iterator[None]:
    """Turn what a user's code raises in the block into InputError.

    Errors of memory pass, since smaller batches can help.

    >>> with own_code("loss acme:huber"): raise SystemExit(0)
    Traceback (most recent call last):
    hydragnn.base.errors.InputError: loss acme:huber failed: SystemExit: 0; repair it
    """
    try:
        yield
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        if wants_memory(error):
            raise
        raise InputError(f"{name} failed: {words_of(error)}; {move}") from error


@contextmanager
def as_missing(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import in the block into MissingPackageError."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(package, extra, purpose) from error


def print_note(sentence: str) -> None:
    """Print a note to stderr."""
    print(f"note: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def as_note(subject: str, tell: Callable[[str], object] = print_note) -> Iterator[None]:
    """Turn an error in the block into a note on finished work.

    >>> with as_note("pictures", print): raise OSError("no space")
    pictures: OSError: no space
    """
    try:
        yield
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        tell(f"{subject}: {words_of(error)}".removeprefix(": "))
