"""Hook of MkDocs: reference pages made from the code, and links that leave ``docs/`` as plain text."""

import ast
import inspect
import posixpath
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from hydragnn.architectures.base import Architecture, GeometricSettings, architectures
from hydragnn.scripts.key_help import EVERY_KIND, KeySection, keys_of, sections

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
    return f"# Architectures\n\n{ARCHITECTURES}\n\n{architecture_table()}"


SIGHTS = {
    "lengths": "edge lengths",
    "directions": "directions",
    "triplets": "triplets",
    "edge_features": "edge features",
    "edge_kinds": "kinds of edges",
    "species": "species",
}


def architecture_table() -> str:
    """Return a line per architecture, in Markdown."""
    head = ["| `kind` | what it is | sees | vectors | smooth energies | its own keys |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(_architecture_line(architecture) for architecture in architectures().values())]) + "\n"


def _architecture_line(architecture: type[Architecture]) -> str:
    inputs = [
        f"**{words}**" if sight in architecture.requires else words
        for sight, words in SIGHTS.items()
        if sight in architecture.sees
    ]
    inputs += [f"{statistic} of the training part" for statistic in sorted(architecture.needs - architecture.sees)]
    settings = architecture.Settings
    shared = GeometricSettings.model_fields
    own = [f"`{key}`" for key in settings.model_fields if key not in shared]
    what = (settings.__doc__ or "").partition("\n")[0].rstrip(".")
    vectors = "yes" if 1 in architecture.gives else "no"
    smooth = (
        "-"
        if not architecture.sees_positions()
        else "no"
        if settings.parse({"kind": architecture.kind}).kinks
        else "yes"
    )
    cells = [
        f"`{architecture.kind}`",
        what,
        ", ".join(inputs) or "who is whose neighbour",
        vectors,
        smooth,
        ", ".join(own) or "-",
    ]
    return f"| {' | '.join(cells)} |"


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
    text = ["# Configuration", "", CONFIGURATION, ""]
    for section in sections():
        text += _section(section)
    return "\n".join(text) + "\n"


CONFIGURATION = """An unknown key is an error that names the nearest valid one. `--set model.hidden_dim=128` overrides a key on the command line.

A run file has the sections `[data]`, `[split]`, `[model]`, `[[heads]]`, `[batch]` and `[train]`.
A campaign file has `[search]` as well, and `[job]` for batch jobs. Times and sizes state their unit in the key or in its description."""


def _section(section: KeySection) -> list[str]:
    """Return the heading, the first line and the table of one section."""
    rows = [
        (f"`{one.key}`", *(_cell(text) for text in (one.type, one.default, one.range, one.unit, one.meaning)))
        for one in keys_of(section)
    ]
    intro = "" if section.title == EVERY_KIND else _prose(inspect.getdoc(section.settings) or "")
    table = _table(("key", "type", "default", "range", "unit", "meaning"), rows) if rows else ["No keys of its own."]
    return [f"## {section.title}", "", intro, "", *table, ""]


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


@cache
def examples() -> dict[str, tuple[str, str]]:
    """Return the shortest statement of the pages that calls each function, and its page.

    The tests run blocks of ``python``; those of ``py`` need what tests cannot count on, and stand in where there is no other.
    Later statements of a page use the names of earlier ones.
    """
    return _calls("py") | _calls("python")


def _calls(mark: str) -> dict[str, tuple[str, str]]:
    """Return the shortest call of each function in blocks of this mark."""
    found: dict[str, tuple[str, str]] = {}
    for page, block in _blocks(mark):
        for statement in filter(lambda node: isinstance(node, ast.stmt), ast.walk(ast.parse(block))):
            text = textwrap.dedent(ast.get_source_segment(block, statement, padded=True) or "")
            calls = [ast.unparse(call.func) for call in ast.walk(statement) if isinstance(call, ast.Call)]
            for name in {call.removeprefix("hydragnn.") for call in calls}:
                if name not in found or len(text) < len(found[name][0]):
                    found[name] = text, page
    return found


def _blocks(mark: str) -> list[tuple[str, str]]:
    """Return page and text of every block of code with this mark."""
    root = Path(__file__).parent
    return [
        (page.relative_to(root).as_posix(), block)
        for page in sorted([*root.glob("*.md"), *root.glob("tutorials/*.md")])
        for block in re.findall(rf"^```{mark}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    ]


def _example(name: str, value: Any) -> list[str]:
    """Return the lines of a function's example; none where its docstring has one."""
    if inspect.isclass(value) or ">>>" in (inspect.getdoc(value) or "") or name not in examples():
        return []
    text, page = examples()[name]
    return ["", f"Example, from [{page}](../../{page}):", "", "```python", text, "```"]


@cache
def _shown() -> set[str]:
    """Return every name that the pages import, or show as code in a sentence."""
    root = Path(__file__).parent
    texts = [page.read_text() for page in [*root.glob("*.md"), *root.glob("tutorials/*.md")]]
    spans = [name for text in texts for name in re.findall(r"`(?:\w+\.)*(\w+)(?:\([^`]*\))?`", text)]
    nodes = [node for mark in ("py", "python") for _, block in _blocks(mark) for node in ast.walk(ast.parse(block))]
    return {*spans, *(one.name for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names)}


def _public_names(module: Any) -> list[str]:
    """Return the names of a package that users need.

    They are those of ``__all__``, or its classes and the functions that pages or doctests show.
    """
    names = getattr(module, "__all__", None)
    if names is None:
        imports = [one for one in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(one, ast.ImportFrom)]
        ours = [node for node in imports if (node.module or "").startswith("hydragnn.") and ".base." not in node.module]
        values = {one.name: getattr(module, one.name) for node in ours for one in node.names}
        names = [
            name
            for name, value in values.items()
            if getattr(value, "__module__", "").startswith("hydragnn")
            and (not inspect.isfunction(value) or name in _shown() or ">>>" in (value.__doc__ or ""))
        ]
    return sorted(names, key=str.lower)


def _plain_signature(value: Any) -> inspect.Signature:
    """Return a signature without what annotations say to the command line."""
    signature = inspect.signature(value)
    parameters = []
    for one in signature.parameters.values():
        kind = get_args(one.annotation)[0] if get_origin(one.annotation) is Annotated else one.annotation
        parameters.append(one.replace(annotation=getattr(kind, "__forward_arg__", kind)))
    return signature.replace(parameters=parameters)


def _object_lines(name: str, value: Any) -> list[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ["", f"## {name}", "", f"Constant of type `{type(value).__name__}`."]
    try:
        signature = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", str(_plain_signature(value)))
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
        *_example(name, value),
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
