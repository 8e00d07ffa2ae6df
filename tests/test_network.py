"""Nothing needs a network: chapters execute and pages are built where it is cut, and no test looks for one."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import assets
import notebooks
import offline
from assoc.errors import InputError
from assoc.llm import load_model
from test_book import missing_pages
from test_determinism import texts

NOWHERE = "192.0.2.1"  # set aside for documentation: no machine has it
CHAPTER = "1b-bigram-task"
PARTS = ("_config.yml", "_toc.yml", "requirements.lock", "book", "lib", "tools")


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection((NOWHERE, 80)),
        lambda: socket.create_connection(("example.org", 80)),
        lambda: socket.socket().connect_ex((NOWHERE, 80)),
        lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).connect((NOWHERE, 53)),
        lambda: urllib.request.urlopen(f"http://{NOWHERE}"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_test_that_wants_the_network_fails_at_once(reach: object) -> None:
    started = time.perf_counter()
    with pytest.raises(pytest.fail.Exception, match="tests must do without a network"):
        reach()
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_machine_itself_can_be_reached(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        assert near.getpeername() == server.getsockname()


def test_reading_a_model_asks_the_hub_nothing_but_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library would fetch a list first by which it tells who is using it, even for files at hand."""
    from huggingface_hub.utils import _headers

    asked = []
    monkeypatch.setattr(_headers, "detect_agent", lambda: asked.append("who"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(InputError, match="hub gave no"):
        load_model("nobody/no-model")
    assert asked == []
    _headers.build_hf_headers()
    assert asked  # outside, the library is as it was


# --- with the network really cut, for everything that the command starts


@pytest.fixture(scope="module")
def cut() -> list[str]:
    """What to put before a command to cut its network."""
    prefix, reason = offline.prefix()
    if reason:
        pytest.skip(reason)
    return prefix


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh checkout of the book, whose pages are made from the committed outputs."""
    folder = tmp_path_factory.mktemp("project")
    hidden = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.egg-info")
    for part in PARTS:
        source = notebooks.ROOT / part
        shutil.copytree(source, folder / part, ignore=hidden) if source.is_dir() else shutil.copy(source, folder)
    config = folder / "_config.yml"
    text = config.read_text()
    assert text.count("execute_notebooks: cache") == 1
    config.write_text(text.replace("execute_notebooks: cache", 'execute_notebooks: "off"'))
    return folder


def run(command: list[str], project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(project / "lib"), "npm_config_cache": str(project / "npm")} | environment
    return subprocess.run(
        command, cwd=project, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_where_the_network_cannot_be_cut_tests_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no program unshare" in offline.prefix()[1]
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    assert offline.prefix() == (
        [],
        "the kernel does not let the network be cut: unshare failed: Operation not permitted",
    )


def test_the_cut_is_real(cut: list[str], project: Path) -> None:
    code = f"""
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
try:
    socket.create_connection(("{NOWHERE}", 80), timeout=5)
except OSError as error:
    print(error.strerror)
"""
    assert run([*cut, sys.executable, "-c", code], project).stdout == "Network is unreachable\n"


def test_a_chapter_executes_without_a_network(cut: list[str], project: Path) -> None:
    twin = project / f"book/{CHAPTER}.ipynb"
    committed = texts(twin)
    twin.unlink()
    done = run([*cut, sys.executable, "tools/notebooks.py", "execute", f"book/{CHAPTER}.md"], project)
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(twin) == committed


def test_pages_are_built_without_a_network(cut: list[str], project: Path) -> None:
    """Also where npm is there, and tries in vain."""
    done = run([*cut, sys.executable, "tools/book.py"], project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert missing_pages(project / "_build/html") == []
    (lacking,) = [line for line in done.stdout.splitlines() if "lack" in line]
    assert lacking.startswith("Without a network the pages lack widgets and formulas, whose scripts come from a CDN (")
    assert ("npm is not installed" in lacking) == (shutil.which("npm") is None)


@pytest.fixture
def silent() -> Iterator[str]:
    """A registry that takes every question and never answers, as it looks where packets are swallowed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        ended, taken = threading.Event(), []

        def take() -> None:
            while not ended.is_set():
                try:
                    taken.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()
        assert taken
        for connection in taken:
            connection.close()


def test_a_network_that_swallows_everything_holds_the_build_up_for_seconds(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setattr(assets, "FOLDER", tmp_path / "assets")
    monkeypatch.setattr(assets, "ANSWER_TIME", 2)
    monkeypatch.setenv("npm_config_registry", silent)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    started = time.perf_counter()
    reason = assets.fetch()
    assert reason.startswith(f"npm could not get {assets.WIDGETS}@")
    assert time.perf_counter() - started < 3 * assets.ANSWER_TIME + 1
