"""The explorer of errors and bounds: what its frames say against the records, and bad input."""

import math
import re

import pytest

from assoc import widgets
from assoc.errors import InputError
from assoc.leading_terms import KINDS
from assoc.leading_terms.limits import bounds_point
from assoc.widgets.limits import QUANTITIES


@pytest.fixture(scope="module")
def runs() -> dict[str, list[dict]]:
    sizes = {"vocab_size": 30, "length": 16, "n_sequences": 8, "record_at": [3, 4], "seed": 0}
    return {
        f"{n} layers": [
            record for eta in (0.01, 1.0) for record in bounds_point(**sizes, n_layers=n, learning_rate=eta)["records"]
        ]
        for n in (1, 2)
    }


def test_frames_tell_the_records(runs) -> None:
    explorer = widgets.limits_explorer(runs)
    assert len(explorer.frames) == 8
    for (name, label), frame in explorer.frames.items():
        record = next(record for record in runs[name] if f"{record['time']:.2g}" == label)
        assert ("not proved" in frame) == (not record["proved"])
        rows = re.findall(r"<tr><th scope='row'>(\w+)</th>(.*?)</tr>", frame)
        assert [kind for kind, _ in rows] == list(KINDS)
        for kind, row in rows:
            numbers = record["kinds"][kind]
            cells = re.findall(r"<td>([^<]*)</td>", row)
            says = "yes" if numbers["bound"] < numbers["term"] else "no"
            assert cells == [*(f"{numbers[q]:.0e}" for q in QUANTITIES), says, f"{numbers['cosine']:.4f}"]


def test_bars_are_logarithms_on_one_scale(runs) -> None:
    low, high = -20.0, 5.0
    frame = widgets.limits_picture(runs["1 layers"][0], low, high)
    widths = [int(width) for width in re.findall(r"width:(\d+)%", frame)]
    numbers = [runs["1 layers"][0]["kinds"][kind][q] for kind in KINDS for q in QUANTITIES]
    assert widths == [round(100 * (math.log10(number) - low) / (high - low)) for number in numbers]


def test_bad_input(runs) -> None:
    with pytest.raises(InputError, match="at least one"):
        widgets.limits_explorer({})
    with pytest.raises(InputError, match="same training times"):
        widgets.limits_explorer({"a": runs["1 layers"], "b": runs["2 layers"][:2]})
