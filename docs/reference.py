"""Hook of MkDocs: reference pages made from the code, and links that leave ``docs/`` as plain text."""

import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic._internal._docs_extraction import extract_docstrings_from_cls
from pydantic.fields import FieldInfo

from hydragnn.base.settings import Settings

ROOMS = (
    "",
    "graphs",
    "datasets",
    "architectures",
    "layers",
    "kernels",
    "models",
    "training",
    "runs",
    "conformance",
    "hpo",
    "ensemble",
)
"""Packages whose public names are on the Python page; the first is ``hydragnn`` itself."""

MEASURED = ("conformance.md", "measurements/architectures.md", "measurements/speed.md")
"""Pages with a row or a column for every architecture; they may lag behind the code."""

LINK = re.compile(r"\[([^\]]*)\]\((?!\w+://|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside ``docs/`` into text, since the site has no such pages."""
    folder = posixpath.dirname(page.file.src_uri)

    def text_if_outside(match: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, match[2])).startswith("..")
        return match[1] if outside else match[0]

    text = re.sub(r"^```(\w+) skip$", r"```\1", markdown, flags=re.MULTILINE)  # tests skip such a block
    return LINK.sub(text_if_outside, text) + _not_measured(page.file.src_uri, markdown)


def _not_measured(page: str, markdown: str) -> str:
    """Return the sentence that names architectures without a row on a page of measurements."""
    from hydragnn.architectures import architectures

    missing = [kind for kind in architectures() if f"`{kind}`" not in markdown] if page in MEASURED else []
    return f"\n\nNot measured yet: {', '.join(f'`{kind}`' for kind in missing)}.\n" if missing else ""


def pages() -> dict[str, str]:
    """Return the Markdown of every generated page by name."""
    return {
        "index": INDEX,
        "architectures": architectures_page(),
        "command-line": command_page(),
        "configuration": configuration_page(),
        **python_pages(),
    }


INDEX = """# Reference

These pages are made from the code when the site is built.

| page | content |
|---|---|
| [Command line](command-line.md) | every command with its options and defaults |
| [Configuration](configuration.md) | every key with its type, default, range and meaning |
| [Architectures](architectures.md) | inputs, outputs and own keys of every architecture |
| [Python](python.md) | every public name with its signature |
| [Store format](../format.md) | the files of a store, byte for byte |
| [Conformance](../conformance.md) | promises that every architecture keeps |
| [Parity](../parity.md) | numbers beside those of other implementations |
| [Silent failures](../silent-failures.md) | known faults of the public HydraGNN and the tests that exclude them |
"""


def architectures_page() -> str:
    """Return the table of architectures."""
    from hydragnn.architectures.table import architecture_table

    return f"# Architectures\n\n{ARCHITECTURES}\n\n{architecture_table()}"


ARCHITECTURES = """Inputs in bold are required. The others are used if the data set has them.
"vectors" says whether heads can predict vectors and read vector states. [Smooth energies](../smooth-energies.md) explains the column of that name."""


def command_page() -> str:
    """Return the page of all commands."""
    from hydragnn.scripts.cli import app

    lines = ["# Command line", "", "`hydragnn COMMAND --help` prints the same text."]
    for path, command in _commands("hydragnn", typer.main.get_command(app)):
        lines += ["", f"## {path}", "", _prose(command.help or ""), ""]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        usage = " ".join([path, *("[OPTIONS]" for _ in options[:1]), *((p.name or "").upper() for p in arguments)])
        lines += ["```text", usage, "```", ""]
        rows = [_parameter_row(parameter) for parameter in [*arguments, *options]]
        lines += _table(("name", "type", "default", "meaning"), rows)
    return "\n".join(lines) + "\n"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group that is not hidden."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in sorted(command.commands.items()):
        if not child.hidden:
            yield from _commands(f"{path} {name}", child)


def _parameter_row(parameter: Any) -> tuple[str, ...]:
    is_argument = parameter.param_type_name == "argument"
    name = (parameter.name or "").upper() if is_argument else ", ".join(parameter.opts)
    flag = getattr(parameter, "is_flag", False)
    default = parameter.default if not callable(parameter.default) else None
    shown = getattr(parameter, "show_default", None)
    text = shown if isinstance(shown, str) else "" if flag or default in (None, [], ()) else str(default)
    required = "required" if parameter.required else text
    kind = "flag" if flag else parameter.metavar or _value_kind(parameter)
    return f"`{name}`", _cell(kind), _cell(required), _cell(getattr(parameter, "help", "") or "")


def _value_kind(parameter: Any) -> str:
    """Return the type of an option's value, in releases of typer with and without click."""
    kind = getattr(parameter, "type", None)
    if kind is not None:
        return str(kind.name)
    annotation = parameter.type_descriptor.annotation
    bounds = [f"{sign} {b}" for sign, b in ((">=", parameter.min), ("<=", parameter.max)) if b is not None]
    return " ".join([getattr(annotation, "__name__", str(annotation)).lower(), *bounds])


def configuration_page() -> str:
    """Return the page of all configuration keys."""
    from hydragnn.architectures import architecture_of, architectures
    from hydragnn.config import RunConfig
    from hydragnn.datasets.sources.registry import sources
    from hydragnn.hpo import SearchSettings
    from hydragnn.hpo.job import JobSettings
    from hydragnn.hpo.simulation.assumptions import Assumptions
    from hydragnn.models.heads.base import head_kinds

    sections = {name: _settings_in(field.annotation) for name, field in RunConfig.model_fields.items()}
    text = ["# Configuration", "", CONFIGURATION, ""]
    for name in ("data", "split", "batch", "train"):
        text += _section(f"[{name}]", sections[name][0])
    shared = set.intersection(*(set(architecture_of(kind).Settings.model_fields) for kind in architectures()))
    first = architecture_of(next(iter(architectures()))).Settings
    text += _section("[model], every kind", first, only=shared - {"kind"})
    for kind in architectures():
        text += _section(f'[model] kind = "{kind}"', architecture_of(kind).Settings, leave_out=shared)
    for name, field in first.model_fields.items():
        for nested in _settings_in(field.annotation):
            text += _section(f"[model.{name}]", nested)
    for kind, settings in sorted(head_kinds().items()):
        text += _section(f'[[heads]] kind = "{kind}"', settings)
    text += _section("[search]", SearchSettings)
    text += _section("[job]", JobSettings)
    for kind, settings in sources().items():
        text += _section(f'BUILD.toml, kind = "{kind}"', settings)
        nested_settings = [(n, s) for n, f in settings.model_fields.items() for s in _settings_in(f.annotation)]
    for name, nested in nested_settings:
        text += _section(f"BUILD.toml, {name}", nested)
    text += _section("Assumptions of hydragnn simulate", Assumptions)
    return "\n".join(text) + "\n"


CONFIGURATION = """An unknown key is an error that names the nearest valid one. `--set model.hidden_dim=128` overrides a key on the command line.

A run file has the sections `[data]`, `[split]`, `[model]`, `[[heads]]`, `[batch]` and `[train]`.
A campaign file has `[search]` as well, and `[job]` for batch jobs. Times and sizes state their unit in the key or in its description."""


def _settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes that occur in an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, Settings):
        return [annotation]
    return [cls for argument in get_args(annotation) for cls in _settings_in(argument)]


def _section(
    title: str,
    settings: type[Settings],
    *,
    only: set[str] | None = None,
    leave_out: frozenset[str] | set[str] = frozenset(),
) -> list[str]:
    """Return the heading, the first line and the table of one settings class."""
    meanings = meanings_of(settings)
    rows = [
        (
            f"`{name}`",
            _cell(_type_text(field)),
            _cell(_default_text(field)),
            _cell(_range_text(field)),
            _cell(_unit_text(name, field, meanings.get(name, ""))),
            _cell(meanings.get(name, "")),
        )
        for name, field in settings.model_fields.items()
        if (only is None or name in only) and name not in leave_out
    ]
    intro = "" if only is not None else _prose(inspect.getdoc(settings) or "")
    table = _table(("key", "type", "default", "range", "unit", "meaning"), rows) if rows else ["No keys of its own."]
    return [f"## {title}", "", intro, "", *table, ""]


def meanings_of(settings: type[Settings]) -> dict[str, str]:
    """Return the text of every key: its description, or the docstring below it."""
    meanings: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if issubclass(base, Settings):
            meanings |= extract_docstrings_from_cls(base, use_inspect=True)
    described = {name: field.description for name, field in settings.model_fields.items() if field.description}
    return {
        name: " ".join(text.split()) for name, text in (meanings | described).items() if name in settings.model_fields
    }


def _type_text(field: FieldInfo) -> str:
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value!r}`".replace("'", '"') for value in get_args(annotation))
    text = annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=not field.default_factory_takes_validated_data)
    if isinstance(value, Settings):
        return "the section's defaults"
    return "none" if value is None else f"`{json.dumps(value, default=str)}`"


UNITS = (
    (re.compile(r"(^|_)seconds$"), "s"),
    (re.compile(r"(^|_)minutes$"), "min"),
    (re.compile(r"(^|_)hours$"), "h"),
    (re.compile(r"(^|_)epochs$"), "epochs"),
)
"""Units by the end of a key."""


def _unit_text(name: str, field: FieldInfo, text: str) -> str:
    """Return the unit of a key, from its name or its meaning."""
    by_name = [unit for pattern, unit in UNITS if pattern.search(name)]
    stated = [unit for unit in ("Angstrom", "GB", "degrees") if re.search(rf"\b{unit}\b", text)]
    length = ["length of the store"] if name in ("cutoff", "side") and not stated else []
    return (by_name + stated + length + [""])[0] if field.annotation is not bool else ""


def _number(value: Any) -> str:
    """Return a bound; powers of two that integers end at are written as such."""
    return "2^63" if value == 2**63 else str(value)


def _range_text(field: FieldInfo) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "max_length": "length <="}
    bounds = [
        f"{sign} {_number(value)}"
        for item in field.metadata
        for key, sign in signs.items()
        if (value := getattr(item, key, None)) is not None
    ]
    return ", ".join(bounds)


def python_pages() -> dict[str, str]:
    """Return a page of public names per package, and their index."""
    rows, rooms = [], {}
    for room in ROOMS:
        module = import_module(f"hydragnn.{room}".rstrip("."))
        first, _, more = (inspect.getdoc(module) or "").partition("\n")
        lines = [f"# {module.__name__}", "", _prose(f"{first}\n{more}"), ""]
        for name in _public_names(module):
            lines += _object_lines(name, getattr(module, name))
        rooms[f"python/{room or 'hydragnn'}"] = "\n".join(lines) + "\n"
        rows.append((f"[{module.__name__}](python/{room or 'hydragnn'}.md)", _cell(first)))
    text = "Public names of every package. Other modules may change without notice."
    index = ["# Python", "", text, "", *_table(("package", "content"), rows)]
    return {"python": "\n".join(index) + "\n", **rooms}


def _public_names(module: Any) -> list[str]:
    """Return the names that a package exports: ``__all__``, its table of lazy names, or what it imports."""
    names = getattr(module, "__all__", None)
    if names is None and hasattr(module, "MODULES"):
        names = [name for group in module.MODULES.values() for name in group]
    if names is None:
        names = [
            n
            for n, value in vars(module).items()
            if not n.startswith("_") and getattr(value, "__module__", "").startswith("hydragnn")
        ]
    return sorted(names, key=str.lower)


def _object_lines(name: str, value: Any) -> list[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ["", f"## {name}", "", f"Constant of type `{type(value).__name__}`."]
    try:
        signature = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        signature = "(...)"
    kind = "class " if inspect.isclass(value) else ""
    lines = [
        "",
        f"## {name}",
        "",
        "```python",
        f"{kind}{name}{_wrapped(signature)}",
        "```",
        "",
        _prose(inspect.getdoc(value) or ""),
    ]
    if inspect.isclass(value):
        for member, function in vars(value).items():
            target = function.__func__ if isinstance(function, classmethod | staticmethod) else function
            text = inspect.getdoc(target.fget if isinstance(target, property) else target)
            if not member.startswith("_") and text and (inspect.isfunction(target) or isinstance(target, property)):
                lines += ["", f"* `{member}`: {_cell(text.splitlines()[0])}"]
    return lines


def _wrapped(signature: str) -> str:
    """Break a long signature at its arguments."""
    if len(signature) <= 100:
        return signature
    depth, text = 0, ""
    for letter in signature:
        depth += (letter in "([{") - (letter in ")]}")
        text += ",\n   " if letter == "," and depth == 1 else letter
    return text


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: doctests become code blocks, the rest paragraphs."""
    blocks = []
    for block in re.split(r"\n\s*\n", docstring.strip()):
        if block.lstrip().startswith(">>>"):
            blocks.append(f"```pycon\n{inspect.cleandoc(block)}\n```")
        elif "\n    " in block or block.startswith("    "):
            blocks.append(f"```text\n{block}\n```")
        else:
            blocks.append(_escaped(" ".join(block.split())))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    """Escape what Markdown would read as markup, outside of code."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(p.replace("``", "`") if p.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", p) for p in parts)


def _cell(text: str) -> str:
    """Return text that fits into a cell of a table."""
    return _escaped(" ".join(str(text).split())).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
