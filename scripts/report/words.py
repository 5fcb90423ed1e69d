"""Numbers, units, times and values as the report prints them."""

import json
import math
from collections.abc import Sequence
from typing import Any


def plain_number(value: int | float) -> str:
    """Return a number with three digits and without computer notation.

    >>> [plain_number(value) for value in (0.0123456, 1234.5, 0.5, 0, 3e-7, -2e9, 1e-8)]
    ['0.0123', '1230', '0.5', '0', '3×10⁻⁷', '−2×10⁹', '10⁻⁸']
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    sign = "−" if value < 0 else ""
    size = abs(value)
    exponent = math.floor(math.log10(size))
    if -5 < exponent < 6:
        rounded = float(f"{size:.3g}")
        return sign + (f"{rounded:.0f}" if rounded >= 100 else f"{rounded:.7f}".rstrip("0").rstrip("."))
    mantissa = f"{float(f'{size / 10**exponent:.3g}'):g}"
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return sign + ("" if mantissa == "1" else f"{mantissa}×") + f"10{raised}"


def measured(value: int | float) -> str:
    """Return a number for a table: three digits, final zeros included.

    >>> [measured(value) for value in (0.097, 12.0, 0.0, 3e-7)]
    ['0.0970', '12.0', '0', '3×10⁻⁷']
    """
    size = abs(value)
    if not math.isfinite(value) or not 1e-4 <= size < 99.95:
        return plain_number(value)
    places = 2 - math.floor(math.log10(float(f"{size:.2e}")))
    return ("−" if value < 0 else "") + f"{size:.{places}f}"


def share(value: float) -> str:
    """Return a number near one with three decimals.

    >>> share(-0.0001), share(0.98765), share(math.nan)
    ('0.000', '0.988', '–')
    """
    return f"{value + 0.0:.3f}".replace("-0.000", "0.000").replace("-", "−") if math.isfinite(value) else "–"


def thousands(count: int) -> str:
    """Return a count with its thousands set apart.

    >>> thousands(1234567).split("\u202f")
    ['1', '234', '567']
    """
    return f"{count:,}".replace(",", "\u202f")


def pretty_unit(unit: str) -> str:
    """Return a unit with its signs.

    >>> pretty_unit("eV/Angstrom")
    'eV/Å'
    """
    return unit.replace("Angstrom", "Å").replace("^2", "²").replace("^3", "³").replace("**2", "²").replace("**3", "³")


def with_unit(text: str, unit: str, form: str = "{0} ({1})") -> str:
    """Return the text with its unit, or alone where there is none.

    >>> with_unit("true", "eV"), with_unit("true", "")
    ('true (eV)', 'true')
    """
    return form.format(text, pretty_unit(unit)) if unit else text


def per_node(value: float, unit: str) -> str:
    """Return an error per node with its unit; energies in meV/atom.

    >>> per_node(0.0113, "eV"), per_node(0.5, "e A"), per_node(0.5, "")
    ('11.3 meV/atom', '0.500 e A per node', '0.500 per node')
    """
    if unit == "eV":
        return f"{measured(1e3 * value)} meV/atom"
    return with_unit(measured(value), unit, "{0} {1}") + " per node"


def text(value: Any) -> str:
    """Return a configuration value as text.

    >>> text(0.00123456), text(True), text(None), text([64, 64])
    ('0.00123', 'yes', '–', '[64, 64]')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain_number(value)
    return value if isinstance(value, str) else json.dumps(value)


def join(words: Sequence[str], last: str = "and") -> str:
    """Return words as a list in a sentence.

    >>> join(["a", "b", "c"]), join(["a", "b"], "or")
    ('a, b and c', 'a or b')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def short(path: str) -> str:
    """Return a configuration path without its section.

    >>> short("train.learning_rate"), short("heads.0.weight"), short("valid/loss")
    ('learning_rate', 'heads.0.weight', 'valid/loss')
    >>> short("model.num_layers#small+large")
    'num_layers (small, large)'
    """
    place, _, kinds = path.partition("#")
    parts = place.split(".")
    return (parts[-1] if len(parts) == 2 else place) + (f" ({kinds.replace('+', ', ')})" if kinds else "")


def shorten(text: str, length: int) -> str:
    """Return the text, cut in the middle if longer than ``length``.

    >>> shorten("effective_conductivity", 12)
    'effect…ivity'
    """
    return text if len(text) <= length else text[: length // 2] + "…" + text[len(text) - (length - 1) // 2 :]
