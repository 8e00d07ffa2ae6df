"""Sweeps: points are kept one by one, runs go on, result files say where they come from; those shipped fit the plan."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assoc import __version__
from assoc.__main__ import main
from assoc.errors import InputError
from assoc.sweeps import (
    Sweep,
    choose,
    duration,
    every_sweep,
    load_results,
    missing_points,
    plan,
    point_path,
    rounded,
    run,
)
from notebooks import ROOT

SHIPPED = ROOT / "book" / "results"


class Counter:
    """A point function that counts its calls and can be told to break off."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.breaks_at: int | None = None

    def __call__(self, x: int, seed: int) -> dict[str, Any]:
        if x == self.breaks_at:
            raise KeyboardInterrupt
        self.calls.append(x)
        return {"square": x * x + 1 / 3, "nothing": float("nan")}


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def sweep(counter: Counter) -> Sweep:
    return Sweep("0-squares", "squares", counter, [{"x": x, "seed": 7} for x in range(4)], seconds=60)


def test_a_run_writes_what_made_it(sweep: Sweep, tmp_path: Path) -> None:
    results = load_results(run(sweep, tmp_path / "results", tmp_path / "kept"))
    assert results.command == "python -m assoc reproduce 0-squares"
    assert results.version == __version__
    assert results.seed == [7]
    assert results.points[2] == {"x": 2, "seed": 7, "square": 4.33333, "nothing": None}
    assert results.where(x=3) == [results.points[3]]
    assert "4 points" in results.origin()
    with pytest.raises(InputError, match="no point"):
        results.where(x=9)


def test_a_run_that_was_stopped_goes_on(sweep: Sweep, counter: Counter, tmp_path: Path) -> None:
    results, kept = tmp_path / "results", tmp_path / "kept"
    counter.breaks_at = 2
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results, kept)
    assert not results.exists()  # nothing half-written
    assert [point["x"] for point in missing_points(sweep, kept)] == [2, 3]
    assert "4 points, 2 at hand, 2 min left" in plan([sweep], kept)[0]
    counter.breaks_at = None
    run(sweep, results, kept)
    assert counter.calls == [0, 1, 2, 3]
    run(sweep, results, kept)
    assert counter.calls == [0, 1, 2, 3]


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '{"point": {"x": 3}, "found": {}, "seconds": 1}'])
def test_a_kept_point_that_is_broken_is_computed_again(
    content: str, sweep: Sweep, counter: Counter, tmp_path: Path
) -> None:
    """Half a file, or a file of another point."""
    first = load_results(run(sweep, tmp_path, tmp_path / "kept"))
    point_path(sweep, sweep.points[1], tmp_path / "kept").write_text(content)
    assert missing_points(sweep, tmp_path / "kept") == [sweep.points[1]]
    assert load_results(run(sweep, tmp_path, tmp_path / "kept")).points == first.points
    assert counter.calls == [0, 1, 2, 3, 1]


def test_where_nothing_can_be_kept_nothing_is_computed(sweep: Sweep, counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for results, kept in (("out", "file"), ("file", "kept")):
        with pytest.raises(InputError, match="cannot write"):
            run(sweep, tmp_path / results, tmp_path / kept)
    assert counter.calls == []


def test_points_may_vanish_while_a_run_goes_on(sweep: Sweep, tmp_path: Path) -> None:
    """Another run with --fresh takes them away: this one has what it computed."""

    def steals(x: int, seed: int) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        return {"twice": 2 * x}

    results = load_results(run(replace(sweep, function=steals), tmp_path, tmp_path / "kept"))
    assert [point["twice"] for point in results.points] == [0, 2, 4, 6]


@pytest.mark.parametrize("found", [[1], {"x": 1}, None])
def test_points_must_return_mappings_with_names_of_their_own(found: object, sweep: Sweep, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must return a mapping"):
        run(replace(sweep, function=lambda **_: found), tmp_path, tmp_path / "kept")


def test_fresh_throws_nothing_away_before_it_can_write(
    sweep: Sweep, counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("assoc.sweeps.every_sweep", lambda: [sweep])
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", sweep.name, "--kept", "kept", "--output"]
    assert main([*command, "out"]) == 0
    Path("file").write_text("")
    assert main([*command, "file", "--fresh"]) == 2
    assert "error: cannot write 'file/" in capsys.readouterr().err
    assert missing_points(sweep, Path("kept")) == []
    assert main([*command, "out"]) == 0
    assert counter.calls == [0, 1, 2, 3]
    assert main([*command, "out", "--fresh"]) == 0
    assert counter.calls == [0, 1, 2, 3] * 2


def test_points_of_another_version_are_not_used(
    sweep: Sweep, counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sweep, tmp_path, tmp_path / "kept")
    monkeypatch.setattr("assoc.sweeps.__version__", "99")
    assert len(missing_points(sweep, tmp_path / "kept")) == 4


def test_numbers_are_rounded_and_strange_things_refused() -> None:
    assert rounded({"a": [1 / 3, 2, None, "x", True, math.inf, math.nan], 5: (1e-9 / 3,)}) == {
        "a": [0.333333, 2, None, "x", True, None, None],
        "5": [3.33333e-10],
    }
    with pytest.raises(InputError, match="object"):
        rounded({"a": object()})


@pytest.mark.parametrize(
    ("seconds", "words"), [(40.4, "40 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_unknown_names_and_files_are_one_line_errors(sweep: Sweep, tmp_path: Path) -> None:
    assert choose([], [sweep]) == [sweep]
    with pytest.raises(InputError, match="no sweep 'x': choose from 0-squares"):
        choose(["x"], [sweep])
    other = tmp_path / "other.json"
    whole = '{"command": "", "version": "1", "seed": [], "seconds": 1, "points": %s}'
    for content in ("{", "[]", '{"command": 1}', whole % 5, whole % "[5]"):
        other.write_text(content)
        with pytest.raises(InputError, match="reproduce"):
            load_results(other)
    with pytest.raises(InputError, match="reproduce"):
        load_results(tmp_path / "missing.json")


# --- the sweeps of the book


def test_names_are_unique_and_say_the_chapter() -> None:
    names = [sweep.name for sweep in every_sweep()]
    assert len(set(names)) == len(names)
    assert all(name[0].isdigit() and "-" in name for name in names)


@pytest.mark.parametrize("sweep", every_sweep(), ids=lambda sweep: sweep.name)
def test_shipped_results_are_those_of_the_plan(sweep: Sweep) -> None:
    path = SHIPPED / f"{sweep.name}.json"
    results = load_results(path)
    points = json.loads(json.dumps([dict(point) for point in sweep.points]))
    assert [{key: found[key] for key in point} for found, point in zip(results.points, points, strict=True)] == points
    assert path.stat().st_size < 300_000


def test_the_plan_is_printed_without_computing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["reproduce", "--plan", "--kept", str(tmp_path / "kept"), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert all(sweep.name in printed for sweep in every_sweep())
    assert "two cores" in printed
    assert list(tmp_path.iterdir()) == []
    assert main(["reproduce", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no sweep 'nonsense'")


def test_a_sweep_without_its_file_is_left_out_or_refused(tmp_path: Path) -> None:
    needed = tmp_path / "corpus.txt"
    free, bound = (Sweep(name, "", dict, [], 1, needs) for name, needs in (("free", None), ("bound", str(needed))))
    assert choose([], [free, bound]) == [free]
    with pytest.raises(InputError, match=r"bound needs the file '.*corpus.txt'"):
        choose(["bound"], [free, bound])
    needed.write_text("once")
    assert choose([], [free, bound]) == [free, bound]
    assert choose(["bound"], [free, bound]) == [bound]
