"""The chapters as notebooks: both files of a pair agree, and nbval gets the committed outputs again.

nbval passes in silence over cells whose outputs it does not compare. So the cells it did compare are counted, a
chapter with none fails, and the notebooks in tests/broken show that each check fails when it must.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbval.plugin import find_comment_markers, find_metadata_tags

import notebooks

BROKEN = Path(__file__).parent / "broken"
CHAPTERS = notebooks.chapters()
SLOWEST_CHAPTER = 300  # seconds; the book promises 60 on two free cores, and a busy test machine may be far slower


@dataclass
class Validation:
    """What nbval found in one notebook."""

    code_cells: int
    compared: int
    seconds: float
    failures: list[str] = field(default_factory=list)


def is_compared(cell: NotebookNode) -> bool:
    """Whether nbval compares an output of this cell that says something: text, and not the text beside a picture."""
    options = {"check": True} | dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    if options.get("skip") or not options["check"] or cell.execution_count is None:
        return False
    texts = (
        text
        for output in cell.outputs
        for text in (output.get("text", ""), output.get("data", {}).get("text/plain", ""))
        if not any(kind.startswith("image/") for kind in output.get("data", {}))
    )
    return any(text.strip() for text in texts)


def validate(notebook: Path, report: Path) -> Validation:
    """Execute a notebook with nbval in a process of its own, and count the cells whose outputs were compared."""
    notebooks.prepare_kernels()
    settings = ["-c", Path(__file__).parent / "nbval.ini", "--rootdir", notebook.parent, "--color=no"]
    nbval = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={notebooks.CELL_TIMEOUT}"]
    nbval.append(f"--nbval-sanitize-with={Path(__file__).parent / 'nbval-sanitize.cfg'}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    started = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *nbval, f"--junitxml={report}", notebook],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    found = Validation(len(cells), 0, seconds)
    results = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    for result, cell in zip(results, cells, strict=False):
        verdict = next((child for child in result if child.tag in ("failure", "error")), None)
        if verdict is not None:
            found.failures.append(f"{result.get('name')}: {verdict.text or verdict.get('message')}")
        elif result.find("skipped") is None:
            found.compared += is_compared(cell)
    if len(results) != len(cells) or (run.returncode != 0 and not found.failures):
        found.failures.append(f"nbval ended with status {run.returncode}:\n{run.stdout}{run.stderr}")
    if not found.compared:
        found.failures.append("no output of any cell was compared")
    return found


class Summary:
    """A pytest plugin that closes the run with the cells compared and the seconds of every chapter."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("chapters executed by nbval")
        for line in self.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def summary(request: pytest.FixtureRequest) -> Summary:
    plugin = Summary()
    request.config.pluginmanager.register(plugin)
    return plugin


def test_the_book_has_chapters() -> None:
    assert CHAPTERS
    assert notebooks.orphans() == []


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_both_files_of_a_pair_agree(source: Path) -> None:
    assert notebooks.problems(source) == []


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_outputs_come_again(source: Path, tmp_path: Path, summary: Summary) -> None:
    found = validate(source.with_suffix(".ipynb"), tmp_path / "report.xml")
    summary.lines.append(
        f"{source.stem:<28}{found.compared:>3} of {found.code_cells:>2} code cells compared{found.seconds:>8.1f} s"
    )
    assert not found.failures, "\n".join(found.failures)
    assert found.seconds <= SLOWEST_CHAPTER, "every output came again, but too slowly: is the machine busy?"


@pytest.mark.parametrize(
    ("name", "pair_problems", "failures"),
    [
        ("wrong-output", [], ["Cell outputs differ", "no output of any cell was compared"]),
        ("raises", [], ["ZeroDivisionError"]),
        ("never-executed", ["was never executed"], ["no output of any cell was compared"]),
        ("nothing-compared", [], ["no output of any cell was compared"]),
        ("drifted", ["differs from its twin in its source"], []),
    ],
)
def test_broken_notebooks_fail_for_their_own_reason(
    name: str, pair_problems: list[str], failures: list[str], tmp_path: Path
) -> None:
    source = BROKEN / f"{name}.md"
    found_in_pair = notebooks.problems(source)
    found_by_nbval = validate(source.with_suffix(".ipynb"), tmp_path / "report.xml").failures
    for found, expected in ((found_in_pair, pair_problems), (found_by_nbval, failures)):
        assert len(found) == len(expected), found
        assert all(reason in message for reason, message in zip(expected, found, strict=True)), found


# --- the pair check on one sound pair, spoilt in one way at a time


SOURCE = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

```{code-cell} ipython3
print(6 * 7)
```

```{code-cell} ipython3
---
mystnb:
  figure:
    caption: A caption
    name: fig-name
  image:
    alt: Words
---
draw()
```
"""


def output(kind: str, **fields: object) -> NotebookNode:
    return nbformat.v4.new_output(kind, **fields)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Path]:
    """The source of a pair without problems."""
    source = tmp_path / "chapter.md"
    source.write_text(SOURCE)
    notebook = notebooks.read_source(source)
    picture = output("display_data", data={"image/png": "AAAA", "text/plain": "<Figure>"})
    for count, (cell, result) in enumerate(
        zip(notebook.cells[1:], (output("stream", name="stdout", text="42\n"), picture), strict=True), start=1
    ):
        cell.execution_count = count
        cell.outputs = [result]
    nbformat.write(notebook, source.with_suffix(".ipynb"))
    assert notebooks.problems(source) == []
    return source


def spoil(source: Path, change: Callable[[NotebookNode], None]) -> list[str]:
    twin = source.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    change(notebook)
    twin.write_text(nbformat.writes(notebook))
    return notebooks.problems(source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda nb: nb.cells[1].update(source="print(43)"),
            "cell 2 ('print(6 * 7)') differs from its twin in its source",
        ),
        (lambda nb: nb.cells[0].update(cell_type="raw"), "in its type"),
        (lambda nb: nb.cells[1].metadata.update(tags=["hide-cell"]), "in its metadata"),
        (lambda nb: nb.cells[1].update(id="other"), "in its id"),
        (lambda nb: nb.cells.pop(0), "3 cells in the .md, 2 in the .ipynb"),
        (lambda nb: nb.metadata.kernelspec.update(name="conda"), "metadata differ in kernelspec"),
        (lambda nb: nb.metadata.update(widgets={}), "widget state"),
        (lambda nb: nb.cells[1].update(execution_count=None), "was never executed"),
        (lambda nb: nb.cells[1].update(execution_count=7), "out of order"),
        (lambda nb: nb.cells[1].outputs.append(output("stream", name="stderr", text="a\nWarning: b\n")), "Warning: b"),
        (lambda nb: nb.cells[1].outputs.append(output("error", ename="E", evalue="", traceback=[])), "holds an error"),
        (
            lambda nb: nb.cells[1].outputs.append(output("display_data", data={notebooks.WIDGET_VIEW: {}})),
            "state of a widget",
        ),
        (lambda nb: nb.cells[2].update(source="draw();"), "hides its value with a semicolon"),
        (lambda nb: nb.cells[2].outputs.append(nb.cells[2].outputs[0]), "should show one figure, but shows 2"),
        (lambda nb: nb.cells[2].update(outputs=[]), "should show one figure, but shows 0"),
        (lambda nb: nb.cells[2].metadata.mystnb.figure.pop("caption"), "without a caption"),
        (lambda nb: nb.cells[2].metadata.mystnb.figure.pop("name"), "without a name"),
        (lambda nb: nb.cells[2].metadata.mystnb.image.update(alt=" "), "without alt text"),
    ],
)
def test_each_kind_of_drift_is_found(pair: Path, change: Callable[[NotebookNode], None], words: str) -> None:
    found = spoil(pair, change)
    assert any(words in problem for problem in found), found
    assert all("\n" not in problem for problem in found)


def test_changed_prose_keeps_the_outputs_and_changed_code_does_not(pair: Path) -> None:
    pair.write_text(pair.read_text().replace("# A chapter", "# A better chapter"))
    assert notebooks.problems(pair) != []
    notebooks.update_prose(pair)
    assert notebooks.problems(pair) == []
    assert "42" in pair.with_suffix(".ipynb").read_text()
    pair.write_text(pair.read_text().replace("6 * 7", "6 * 8"))
    with pytest.raises(notebooks.NotebookError, match="execute it"):
        notebooks.update_prose(pair)


def test_a_missing_or_unreadable_twin_is_found(pair: Path) -> None:
    twin = pair.with_suffix(".ipynb")
    twin.write_text("{")
    assert "is not a notebook" in notebooks.problems(pair)[0]
    twin.unlink()
    assert "is missing: run make notebooks" in notebooks.problems(pair)[0]


def test_a_source_without_a_kernel_is_refused(pair: Path) -> None:
    pair.write_text("# Only text\n")
    assert "kernelspec" in notebooks.problems(pair)[0]


def test_version_numbers_of_jupytext_are_taken_out_of_the_header(tmp_path: Path) -> None:
    source = tmp_path / "chapter.md"
    header = "---\njupytext:\n  text_representation:\n    format_name: myst\n{}---\n"
    body = "\nFormat\n   jupytext_version: 1 in the text\n---\n"
    source.write_text(header.format("    format_version: 0.13\n    jupytext_version: 1.19.6\n") + body)
    notebooks.tidy_header(source)
    assert source.read_text() == header.format("") + body


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1 / 0", "cell 2 ('1 / 0') raised ZeroDivisionError: division by zero"),
        ("import sys\nprint('careful', file=sys.stderr)", "writes to stderr: careful"),
    ],
)
def test_a_chapter_that_fails_leaves_its_notebook_alone(tmp_path: Path, code: str, words: str) -> None:
    source = tmp_path / "chapter.md"
    source.write_text(SOURCE.split("```{code-cell}")[0] + f"```{{code-cell}} ipython3\n{code}\n```\n")
    source.with_suffix(".ipynb").write_text("the old one")
    notebooks.prepare_kernels()
    with pytest.raises(notebooks.NotebookError) as caught:
        notebooks.execute(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert source.with_suffix(".ipynb").read_text() == "the old one"


def test_executing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "chapter.md"
    code = "import ipywidgets\nfrom matplotlib import pyplot as plt\nfrom assoc import figures\n\nfigures.use_style()"
    figure = SOURCE.split("```{code-cell} ipython3\n---")[1].replace("draw()", "_ = plt.plot([1, 2])")
    widget = "```{code-cell} ipython3\nipywidgets.IntSlider(value=3)\n```\n"
    source.write_text(
        SOURCE.split("```{code-cell}")[0]
        + f"```{{code-cell}} ipython3\n{code}\n```\n\n```{{code-cell}} ipython3\n---{figure}\n{widget}"
    )
    notebooks.prepare_kernels()
    notebooks.execute(source)
    first = source.with_suffix(".ipynb").read_bytes()
    notebooks.execute(source)
    assert source.with_suffix(".ipynb").read_bytes() == first
    assert notebooks.problems(source) == []
    assert b"IntSlider" in first
    assert b"image/png" in first
