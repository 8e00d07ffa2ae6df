"""The explorer of removed heads: its numbers against the points, what it frames, its size, and bad input."""

import json

import pytest
import torch
from ipywidgets.embed import dependency_state

from assoc.errors import InputError
from assoc.llm.birth import SmallTransformer
from assoc.llm.removal import losses_without
from assoc.widgets import heads_picture, removed_heads
from assoc.widgets.heads import SETS

PAGE_BUDGET = 600_000  # bytes of widget state in one chapter


def point(seed: int) -> dict:
    """A point like those of `study_removal`, with losses that say which set and number they belong to."""
    rows = [{"set": "none", "n": 0, "first": 12.0, "second": 2.0 + seed, "text": 3.0, "induction_score": 0.9}]
    for place, name in enumerate(SETS):
        for n in (1, 4):
            rows += [
                {
                    "set": name,
                    "n": n,
                    "first": 12.5,
                    "second": 3.0 + place + n / 10,
                    "text": 3.1,
                    "induction_score": 0.5,
                }
            ] * 2
    scores = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed))
    order = [[4, 1], [3, 0], [5, 2], [2, 2]]
    return {
        "removed": rows,
        "induction": scores.tolist(),
        "previous_token": scores.flip(0).tolist(),
        "induction_heads": order,
        "previous_token_heads": order[::-1],
    }


@pytest.fixture(scope="module")
def points() -> list[dict]:
    return [point(0), point(1)]


def test_losses_are_collected_over_points_and_draws(points):
    assert losses_without(points, "none", 0)["second"].tolist() == [2.0, 3.0]
    assert losses_without(points, "random", 4)["second"].tolist() == pytest.approx([6.4] * 4)
    with pytest.raises(InputError, match="no set 'random' with 3 heads"):
        losses_without(points, "random", 3)


def test_every_choice_shows_its_losses_and_frames(points):
    explorer = removed_heads(points)
    assert len(explorer.frames) == 4 * 3
    frame = explorer.frames["best induction heads", "4"]
    assert "without 4 best induction heads: 3.4 nats, with all heads 2.5" in frame
    assert "4 heads framed" in frame
    assert "Loss without 4 best induction heads, nats" in frame
    assert "0 heads framed" in explorer.frames["random heads", "4"]
    assert "0 heads framed" in explorer.frames["best induction heads", "0"]
    assert frame == heads_picture(points, [0, 1, 4], "induction", 4)


def test_the_state_of_a_model_of_270_heads_fits_a_page(points):
    large = [
        dict(one, induction=torch.rand(30, 9).tolist(), previous_token=torch.rand(30, 9).tolist()) for one in points
    ]
    assert len(json.dumps(dependency_state(removed_heads(large)))) < PAGE_BUDGET


def test_no_points():
    with pytest.raises(InputError, match="no points"):
        removed_heads([])


def test_it_takes_what_the_study_returns():
    from assoc.llm.removal import study_removal

    class Words:
        all_special_ids = (0,)

        def encode(self, text: str, **_: object) -> list[int]:
            return [ord(character) % 30 for character in text]

    made = SmallTransformer(30, 24, 16, n_heads=4, positions="rotary", generator=torch.Generator().manual_seed(0))
    model = made.language_model
    object.__setattr__(model, "tokenizer", Words())
    found = study_removal(model, 0, block_length=8, n_blocks=2, n_draws=1, counts=(1, 2))
    assert len(removed_heads([found]).frames) == 12
    assert [row["n"] for row in found["removed"]] == [0, *[1] * 5, *[2] * 5]
    assert set(found["by_position"]) == {"none", "previous-token"}  # eight heads were never removed
    assert len(found["by_position"]["none"]) == 15
