"""What the docs site adds to MkDocs: links, formulas, notebooks, arguments, offline search."""

import html
import itertools
import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (.*)")


def on_config(config: Any) -> Any:
    """Take the project's address from where it is kept."""
    config.repo_url, config.repo_name = PROJECT["urls"]["Source"], "Source"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook, and what the search needs where there is no server."""
    shim = (ROOT / "scripts" / "iframe-worker.js").read_text("utf-8")
    files.append(File.generated(config, "assets/iframe-worker.js", content=shim))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        text = "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Spell out all public names of a module, and point links to where the site has them."""
    markdown = re.sub(r"^::: (.+)\.\*$", _public_names, markdown, flags=re.MULTILINE)
    markdown = re.sub(r"\]\(([^):]+)\.ipynb\)", r"](\1.md)", markdown)
    up = "../" * (page.file.src_uri.count("/") + 1)
    return markdown.replace(f"]({up}", f"]({config.repo_url}/blob/main/")


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML, which browsers draw without a script."""
    return FORMULA.sub(_formula, content)


def _public_names(match: re.Match[str]) -> str:
    return "\n".join(f"::: {match[1]}.{name}" for name in import_module(match[1]).__all__)


def _formula(match: re.Match[str]) -> str:
    tex = html.unescape(match[2]).strip()
    return str(convert(tex, display="block" if match[1] == "div" else "inline"))


def _cell(cell: dict[str, Any]) -> list[str]:
    """Return a cell of a notebook as parts of a Markdown page."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", data.get("text/plain", "")))
        if "image/png" in data:
            picture = "".join(data["image/png"]).replace("\n", "")
            parts.append(f"![What the code above draws](data:image/png;base64,{picture})")
        elif text:
            parts.append(f"```text\n{text.rstrip()}\n```")
    return parts


class Arguments(griffe.Extension):
    """Shows what a docstring, or the comment beside a field, says of an argument as a table."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Give a docstring's arguments the heading that the parser looks for."""
        if obj.docstring is None or not isinstance(obj, griffe.Class | griffe.Function):
            return
        known = {item.name for item in obj.parameters} | set(obj.members)
        blocks, arguments, last = [], [], False
        for line in obj.docstring.lines:
            match = ARGUMENT.fullmatch(line)
            if match and known.issuperset(match[1].split(", ")):
                arguments += [f"    {name}: {match[2]}" for name in match[1].split(", ")]
                last = True
            elif last and line.startswith(" "):
                arguments.append(f"    {line}")
            else:
                blocks.append(line)
                last = False
        if isinstance(obj, griffe.Class) and "dataclass" in obj.labels:
            told = {line.strip().partition(":")[0] for line in arguments}
            fields = {item.name: _comment(obj, item.name) for item in obj.parameters}
            arguments += [f"    {k}: {v}" for k, v in fields.items() if v and k not in told]
        if arguments:
            obj.docstring.value = "\n".join([*blocks, "", "Args:", *arguments])


def _comment(home: griffe.Class, name: str) -> str:
    """Return the comment behind a field, or else the lines of comment above it."""
    field = next((c.members[name] for c in (home, *home.mro()) if name in c.members), None)
    if field is None or not isinstance(field, griffe.Attribute) or field.lineno is None:
        return ""
    lines = Path(str(field.filepath)).read_text("utf-8").splitlines()
    own = lines[(field.endlineno or field.lineno) - 1].partition("  # ")[2]
    above = itertools.takewhile(
        lambda line: line.startswith("    # "), reversed(lines[: field.lineno - 1])
    )
    return own or " ".join(line.removeprefix("    # ") for line in reversed([*above]))
