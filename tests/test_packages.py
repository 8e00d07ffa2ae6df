"""What is installed, and on which Pythons: the files that say so say the same."""

import re
import tomllib

import pytest
import yaml

from notebooks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = PROJECT["requires-python"].removeprefix(">=")


def pinned(name: str) -> dict[str, str]:
    """Package -> version of a file of requirements, in the spelling that pip compares."""
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub("[-_.]+", "-", package).lower(): version for package, version in pairs}


def jobs(name: str) -> dict[str, dict]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]


def pythons(job: dict) -> list[str]:
    """The Pythons of a job: of its matrix, or of the step that installs one."""
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    version = setup["with"]["python-version"]
    return job["strategy"]["matrix"]["python"] if "matrix" in version else [version]


def test_python_is_as_old_everywhere() -> None:
    assert re.fullmatch(r"3\.\d+", OLDEST)
    makefile = (ROOT / "Makefile").read_text()
    checked = re.findall(r"sys\.version_info < \((\d), (\d+)\)", makefile)
    assert [".".join(version) for version in checked] == [OLDEST]
    assert set(re.findall(r"[Pp]ython (3\.\d+) or newer|is older than (3\.\d+)", makefile)) == {
        (OLDEST, ""),
        ("", OLDEST),
    }
    assert set(re.findall(r"Python (3\.\d+) or newer", (ROOT / "README.md").read_text())) == {OLDEST}


def test_the_oldest_and_a_newer_python_are_tested() -> None:
    (job,) = jobs("test.yml").values()
    versions = pythons(job)
    assert all(isinstance(version, str) for version in versions)  # 3.10 without quotes would be 3.1
    assert versions[0] == OLDEST
    assert len(versions) > 1
    assert {"make book", "make test"} <= {step.get("run") for step in job["steps"]}
    assert pythons(jobs("pages.yml")["build"]) == [OLDEST]


def test_every_job_installs_what_is_locked() -> None:
    installs = re.findall(r"\$\(INSTALL\) (.*)", (ROOT / "Makefile").read_text())
    mutants, *ready = installs  # the tool of `make mutants` comes on demand, and must leave the others as they are
    assert mutants == "--quiet $(MUTMUT) --constraint requirements.lock"
    assert ready == ["--requirement requirements.txt --constraint requirements.lock", "--no-deps --editable ."]
    for name in ("test.yml", "pages.yml"):
        for job in jobs(name).values():
            assert not any("pip install" in step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize("kind", ["library", "hub", "gguf"])
def test_what_the_library_needs_is_pinned(kind: str) -> None:
    """Only datasets is pinned apart: it is for corpora of the hub alone."""
    needed = PROJECT["dependencies"] if kind == "library" else PROJECT["optional-dependencies"][kind]
    direct = pinned("requirements.txt")
    assert [name for name in needed if "==" not in name and name.lower() not in direct] == []
