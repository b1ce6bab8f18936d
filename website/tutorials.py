"""Tutorials: pages that are run as they stand, and the notebooks that are written from them.

    python -m website.tutorials          # write notebooks again; recorded outputs stay
    python -m website.tutorials --run    # run them as well, and record what they show

A page is Markdown as jupytext pairs it with a notebook: blocks of `python` and `bash` are cells, in
which `bash` holds commands of kscout. Whatever else a page shows is not run.
"""

import argparse
import ast
import io
import re
import shlex
import sys
import tempfile
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

PAGES = sorted(
    page
    for page in (Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md")
    if page.stem != "index"
)
_CELL = re.compile(r"^```(?:python|bash)\n.*?^```$", flags=re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- output (\d+) -->")


def notebook_of(page: Path) -> NotebookNode:
    """Return the notebook that a page is, without what its cells show."""
    found = jupytext.reads(page.read_text(encoding="utf-8"), fmt="md")
    for number, cell in enumerate(found.cells):
        cell.id = f"cell-{number}"
    found.metadata = NotebookNode(kernelspec=found.metadata.kernelspec)
    return found


def cells_of(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells that are run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def recorded(page: Path) -> NotebookNode:
    """Return the notebook of a page."""
    return nbformat.read(page.with_suffix(".ipynb"), as_version=4)


def run(notebook: NotebookNode, names: dict[str, Any]) -> None:
    """Run all cells in this process and folder, and let each hold what it shows.

    Args:
        notebook: its cells are changed.
        names: what the code finds and leaves, by name.
    """
    sys.path.insert(0, "")  # As of a notebook, which finds modules beside itself.
    for count, cell in enumerate(cells_of(notebook), start=1):
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            shown = _run_cell(cell.source, names)
        cell.execution_count = count
        cell.outputs = []
        if printed.getvalue():
            cell.outputs.append(nbformat.v4.new_output("stream", text=printed.getvalue()))
        if shown:
            result = nbformat.v4.new_output("execute_result", shown, execution_count=count)
            cell.outputs.append(result)


def _run_cell(source: str, names: dict[str, Any]) -> dict[str, str]:
    """Run one cell; return what its last line shows, by kind."""
    magic, _, rest = source.partition("\n")
    if magic == "%%bash":
        for line in rest.replace("\\\n", " ").splitlines():
            _command(shlex.split(line, comments=True))
        return {}
    if magic.startswith("%%writefile "):
        Path(magic.split()[1]).write_text(f"{rest}\n", encoding="utf-8")
        return {}
    parsed = ast.parse(source)
    last = parsed.body[-1] if isinstance(parsed.body[-1], ast.Expr) else None
    exec(compile(ast.Module(parsed.body[: -1 if last else None], []), "cell", "exec"), names)
    if last is None:
        return {}
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if value is None:
        return {}
    rich = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    return {**rich, "text/plain": repr(value) if not rich else f"<{type(value).__name__}>"}


def _command(words: list[str]) -> None:
    """Run a command of kscout in this process."""
    from kscout.apps.cli import main

    if not words:
        return
    if words[0] != "kscout":
        raise ValueError(f"{words[0]} is no command of kscout; blocks of bash hold nothing else")
    before, sys.argv = sys.argv, words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{shlex.join(words)} ended with {end.code}") from end
    finally:
        sys.argv = before


def with_markers(text: str) -> str:
    """Return a page that has a place for what each of its cells shows."""
    numbers = iter(range(text.count("```")))
    return _CELL.sub(lambda cell: f"{cell[0]}\n\n<!-- output {next(numbers)} -->", text)


def with_outputs(html: str, page: Path) -> str:
    """Return a page of the site with what its cells showed when they were recorded."""
    cells = cells_of(recorded(page))
    return _MARKER.sub(lambda found: "".join(map(_shown, cells[int(found[1])].outputs)), html)


def _shown(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return f'<pre class="output">{escape(output.text)}</pre>'
    if "text/html" in output.data:
        return f'<div class="output">{output.data["text/html"]}</div>'
    return f'<pre class="output">{escape(output.data["text/plain"])}</pre>'


def write(page: Path, *, is_run: bool) -> None:
    """Write the notebook of a page; a cell that did not change keeps what it showed."""
    notebook = notebook_of(page)
    if is_run:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            run(notebook, {"__name__": "__main__"})
    elif page.with_suffix(".ipynb").exists():
        # A command may stand on a page twice, and show something else the second time.
        before: dict[str, list[NotebookNode]] = {}
        for cell in cells_of(recorded(page)):
            before.setdefault(cell.source, []).append(cell)
        for cell in cells_of(notebook):
            if found := before.get(cell.source):
                own = found.pop(0)
                cell.outputs, cell.execution_count = own.outputs, own.execution_count
    nbformat.write(notebook, page.with_suffix(".ipynb"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the notebooks of the tutorials.")
    parser.add_argument("--run", action="store_true", help="run them and record what they show")
    parser.add_argument("names", nargs="*", help="only those whose names begin so")
    given = parser.parse_args()
    for page in PAGES:
        if not given.names or page.name.startswith(tuple(given.names)):
            write(page, is_run=given.run)
            print(f"{page.stem}: {time.process_time():.0f} s of CPU so far")  # noqa: T201
