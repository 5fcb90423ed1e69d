"""What goes wrong because of what came in from outside; every other exception is a defect of ours."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: one sentence with what, where and the next move; the command line prints it and exits with 2."""

    code = 2


class Busy(InputError):
    """Somebody else works there: the same may succeed later; the command line exits with 75."""

    code = 75


class AllocationEnded(InputError):
    """The allocation that a command is to run in is over: the same may succeed in a new one; the command line exits with 75."""

    code = 75


class TakenOver(InputError):
    """Another process goes on with the same work, and this one must leave; the command line exits with 4, as attempts do."""

    code = 4


class SaidByFirst(InputError):
    """What the first of several ranks says for all of them: the others exit as it does and print nothing."""


class Interrupted(Exception):
    """Ctrl-C or a signal: everything finished is saved; the message says how to go on; the command line exits with 130."""

    code = 130


class OutOfWalltime(Interrupted):
    """The allocation ends: everything finished is saved, and there is more to do; the command line exits with 75."""

    code = 75


class MissingPackageError(InputError):
    """An optional package is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}; install it with: pip install 'hydragnn-ensemble[{extra}]'"
        )


NO_MEMORY = (
    "there is no memory for this command or the libraries that it loads; give it more (the memory of its job, `ulimit -v`), or use "
    "smaller batches"
)


def wants_memory(error: BaseException | None) -> bool:
    """Return True where an error, or one that led to it, says that the system gives no memory.

    >>> wants_memory(ImportError("libx.so: failed to map segment from shared object")), wants_memory(ImportError("no x"))
    (True, False)
    """
    while error is not None:
        words = str(error).lower()
        if isinstance(error, MemoryError) or "failed to map segment" in words or "allocate memory" in words:
            return True
        error = error.__cause__ or error.__context__
    return False


def nearest(word: str, valid: list[str]) -> str:
    """The hint for a misspelled word: the closest valid one, whatever its case, or the whole list where none is close.

    >>> nearest("cutof", ["cutoff", "kind"])
    'did you mean cutoff?'
    >>> nearest("PaiNN", ["painn", "pna"])
    'did you mean painn?'
    >>> nearest("zzz", ["cutoff", "kind"])
    'valid: cutoff, kind'
    """
    from difflib import get_close_matches

    by_letters = {one.lower(): one for one in reversed(valid)}
    close = get_close_matches(word.lower(), by_letters, n=1, cutoff=0.65)
    return f"did you mean {by_letters[close[0]]}?" if close else "valid: " + ", ".join(sorted(valid))


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Sentences of input errors inside begin with the subject; none where it is empty.

    >>> with about("branch metals"): raise InputError("the store is empty; fill it")
    Traceback (most recent call last):
    hydragnn.base.errors.InputError: branch metals: the store is empty; fill it
    """
    try:
        yield
    except InputError as error:
        if not subject:
            raise
        raise InputError(f"{subject}: {error}") from error
