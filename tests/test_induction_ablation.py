"""Runs that withhold something: against training by hand, loops over positions, and what the book ships."""

import math

import pytest
import torch
from torch.nn import functional

from assoc.errors import InputError
from assoc.induction import AssociativeTransformer, FullTransformer, OneLayerTransformer, recalls, train_induction
from assoc.induction.ablation import (
    ARCHITECTURES,
    COMPETITION,
    FROZEN,
    TEST_SEED,
    feed_forward_run,
    first_step,
    frozen_run,
    in_order,
    is_right,
    model_run,
    new_model,
    output_run,
    over_seeds,
    share_right,
    steps_in_words,
    stories_task,
    thin,
    train_under,
    trigger_run,
    value_at,
    without,
)
from assoc.induction.alignment import MEMORIES, signal_to_noise
from assoc.induction.sweeps import SWEEPS
from assoc.seeds import seeded
from assoc.sweeps import Sweep, load_results
from notebooks import ROOT

SMALL = {"length": 24, "dim": 16, "batch_size": 8}
LARGE = [sweep for sweep in SWEEPS if "-paper-" in sweep.name]
MINE = [sweep for sweep in SWEEPS if sweep.name.startswith("4b-") and sweep not in LARGE]


def by_hand(steps: int, every: int, frozen=(), until=0, loss_on="repeated", feed_forward=False, evaluation_size=256):
    """The same training by the library's own words, without `train_under`."""
    task = stories_task(SMALL["length"], 5, "fixed", 0, "uniform")
    generator = seeded(3)
    model = AssociativeTransformer(task.vocab_size, task.length, SMALL["dim"], feed_forward, generator=generator)
    history = train_induction(
        model,
        task,
        steps=steps,
        batch_size=SMALL["batch_size"],
        learning_rate=0.2,
        frozen_until=dict.fromkeys(frozen, until),
        loss_on=loss_on,
        generator=generator,
        evaluate_every=every,
        evaluation_size=evaluation_size,
    )
    return task, model, history


def test_probes_of_ones_own_are_called_and_change_nothing() -> None:
    task, model, history = by_hand(6, 2)
    seen = []
    other, watched = train_under(
        task, seed=3, dim=16, steps=6, batch_size=8, every=2, at_probe=lambda model: seen.append(recalls(model, task))
    )
    assert len(seen) == len(watched.steps) == 4
    assert [found["key1"] for found in seen] == watched.recall["key1"]
    assert watched.in_context_loss == history.in_context_loss
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_frozen_run_is_training_with_a_memory_held_back() -> None:
    _, model, history = by_hand(12, 1, ("key2",), 8, evaluation_size=96)
    run = frozen_run("W_K2", 8, 3, **SMALL, steps=12, every=1, keep_every=3)
    assert run["probed"] == [0, 3, 6, 9, 12]
    assert run["accuracy"] == pytest.approx(history.in_context_accuracy[::3], abs=6e-4)
    for name in MEMORIES:
        assert run["recall"][name] == pytest.approx(history.recall[name][::3], abs=6e-4)
    # While it is frozen, the signal of W_K2 cannot move; the last is that of the trained model.
    key2 = run["signal"]["key2"]
    assert key2[0] == key2[1] == key2[2] != key2[3]
    task = stories_task(SMALL["length"], 5, "fixed", 0, "uniform")
    for name, value in signal_to_noise(model, task).items():
        assert run["signal"][name][-1] == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("frozen", FROZEN)
def test_frozen_names_are_parameters(frozen: str) -> None:
    assert set(FROZEN[frozen]) <= set(MEMORIES)


def test_names_that_do_not_exist_are_one_line() -> None:
    with pytest.raises(InputError, match="outputs is 'x': choose one of uniform, bigram"):
        output_run("x", 0)
    with pytest.raises(InputError, match="keep_every is 0"):
        frozen_run("nothing", 1, 0, keep_every=0)
    with pytest.raises(InputError, match="key is 'signals': choose one of probed, signal"):
        value_at({"probed": [0], "signal": {}}, "signals.key1", 0)
    model = new_model("two layers", stories_task(12, 1, "fixed", 0, "uniform"), 4, seeded(0))
    with pytest.raises(InputError, match="name is 'output9'"), without(model, "output9"):
        pass


def test_first_steps_are_the_first() -> None:
    assert first_step([0, 5, 10], [0.1, 0.6, 0.5], 0.5) == 5
    assert first_step([0, 5], [0.1, math.nan], 0.5) is None
    assert thin([0.12345, 1, 2, 3, 4], 2) == [0.123, 2, 4]


def test_a_trigger_run_counts_repeated_outputs() -> None:
    run = trigger_run(3, "random", 0, "repeated", 3, **SMALL, steps=4, every=2, keep_every=1)
    task = stories_task(SMALL["length"], 3, "random", 0, "uniform")
    inputs, targets, occurrence = (part.tolist() for part in task.sample(400, seeded(TEST_SEED + 3)))
    repeated = [(b, t) for b in range(400) for t in range(24) if occurrence[b][t] >= 2]
    same = sum(inputs[b][t] == targets[b][t] for b, t in repeated)
    assert run["repeated"] == pytest.approx(len(repeated) / 400, abs=6e-3)
    assert run["same"] == pytest.approx(same / len(repeated), abs=6e-4)
    assert run["probed"] == [0, 2, 4]
    assert run["global_nine"] is None  # nothing global is trained
    assert len(run["accuracy"]) == len(run["changing"]) == 3


def test_accuracies_are_shares_of_right_guesses() -> None:
    task, model, _ = by_hand(4, 4)
    batch = task.sample(6, seeded(8))
    where = batch.occurrence == 0
    logits = model(batch.inputs)
    expected = []
    for b, t in where.nonzero().tolist():
        expected.append(int(logits[b, t].argmax()) == int(batch.targets[b, t]))
    assert is_right(model, batch, where).tolist() == expected
    assert share_right(model, batch, where) == pytest.approx(sum(expected) / len(expected))
    assert math.isnan(share_right(model, batch, batch.occurrence > 99))


def test_a_matrix_is_gone_inside_the_context_only() -> None:
    _, model, _ = by_hand(1, 1)
    before = model.output2.detach().clone()
    with without(model, "output2"):
        assert not model.output2.any()
    assert torch.equal(model.output2, before)
    assert model.output2.requires_grad


def test_an_output_run_tests_each_token() -> None:
    run = output_run("bigram", 3, **SMALL, steps=30, every=15)
    uniform, bigram = (stories_task(SMALL["length"], 5, "fixed", 0, kind) for kind in ("uniform", "bigram"))
    model, _ = train_under(bigram, seed=3, dim=16, steps=30, batch_size=8, every=15, evaluation_size=64)
    test = uniform.sample(800, seeded(TEST_SEED + 3))
    right, count = [0] * uniform.vocab_size, [0] * uniform.vocab_size
    guess = model(test.inputs).argmax(dim=-1)
    for b, t in (test.occurrence >= 2).nonzero().tolist():
        target = int(test.targets[b, t])
        if target != int(test.inputs[b, t]):
            count[target] += 1
            right[target] += int(guess[b, t]) == target
    assert run["by_token"] == pytest.approx([r / n for r, n in zip(right, count, strict=True)], abs=6e-4)
    assert sum(run["seen"]) == pytest.approx(1, abs=1e-3)
    # No output is drawn that has probability 0 after all triggers.
    never = (bigram.bigram[bigram.fixed_triggers] == 0).all(dim=0)
    assert never.any()
    assert not torch.tensor(run["seen"])[never].any()
    assert len(run["on_uniform"]) == len(run["on_bigram"]) == 3


def test_a_competition_run_takes_each_part_out() -> None:
    run = feed_forward_run("both", 3, **SMALL, steps=4, every=2)
    task, model, history = by_hand(4, 2, loss_on="all", feed_forward=True, evaluation_size=64)
    test = task.sample(200, seeded(TEST_SEED + 3))
    free = test.occurrence == 0
    floor = task.global_loss_floor(test.inputs, test.occurrence)

    def excess(model: AssociativeTransformer) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(model(test.inputs)[free], test.targets[free])) - floor

    assert run["global_excess"][-1] == pytest.approx(excess(model), abs=2e-3)
    assert run["kl"] == pytest.approx(history.feed_forward_kl, abs=6e-4)
    assert run["cosine_output2"][0] == run["cosine_feed_forward"][0] == 0
    model.output2.data.zero_()
    assert run["without_output2"][-1] == pytest.approx(excess(model), abs=2e-3)
    assert run["probed"] == history.steps


def test_competition_conditions_hold_what_they_name() -> None:
    alone = feed_forward_run("W_F alone", 3, **SMALL, steps=4, every=2)
    assert set(alone["cosine_output2"]) == {0}
    assert alone["cosine_feed_forward"][-1] != 0
    assert "kl" not in feed_forward_run("no W_F", 3, **SMALL, steps=2, every=2)
    assert set(COMPETITION) == {"both", "no W_F", "W_F alone"}


def test_architectures_are_what_they_are_called() -> None:
    task = stories_task(24, 5, "fixed", 0, "uniform")
    models = {name: new_model(name, task, 16, seeded(0)) for name in ARCHITECTURES}
    assert isinstance(models["one layer"], OneLayerTransformer)
    assert set(models["two layers"].trained_parameters()) == set(MEMORIES)
    learned = models["learned embeddings"]
    assert len(learned.trained_parameters()) == len(list(learned.parameters())) > len(MEMORIES)
    assert isinstance(models["full"], FullTransformer)
    assert [models[name].blocks[0].n_heads for name in ("full", "full, four heads")] == [1, 4]


def test_a_model_run_is_training() -> None:
    run = model_run("one layer", 3, **SMALL, steps=6, every=2, keep_every=1)
    assert run["probed"] == [0, 2, 4, 6]
    assert set(run["recall"]) == {"output1"}
    assert all(0 <= value <= 1 for name in ("accuracy", "previous", "after") for value in run[name])
    full = model_run("full, four heads", 3, **SMALL, steps=2, every=2, keep_every=1)
    assert full["recall"] == {}


def test_values_and_orders_are_read_from_points() -> None:
    run = {"probed": [0, 10], "accuracy": [0.1, 0.2], "signal": {"key1": [1.0, 2.0]}}
    assert value_at(run, "accuracy", 0) == 0.1
    assert value_at(run, "signal.key1", 10) == 2.0
    with pytest.raises(InputError, match="step 5 was not kept"):
        value_at(run, "accuracy", 5)
    assert in_order([1, 2, None])
    assert not in_order([1, 1, 2])
    assert not in_order([1, None, 2])
    assert not in_order([1, None, None])


def test_seeds_are_put_together() -> None:
    points = [{"a": {"b": [0.0, 2.0]}, "c": [1.0]}, {"a": {"b": [1.0, 6.0]}, "c": [1.0, 2.0]}]
    mean, low, high = over_seeds(points, "a.b")
    assert (mean.tolist(), low.tolist(), high.tolist()) == ([0.5, 4], [0, 2], [1, 6])
    for bad in (points, []):
        with pytest.raises(InputError, match="one length"):
            over_seeds(bad, "c")
    assert steps_in_words([80, 90, 85]) == "85 (80 to 90)"
    assert steps_in_words([80, None, 90]) == "85 (80 to 90), 1 of 3 never"
    assert steps_in_words([80, None]) == "80, 1 of 2 never"
    assert steps_in_words([None, None]) == "never"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frozen_run("W_V2", 5, 0), "frozen is 'W_V2'"),
        (lambda: feed_forward_run("neither", 0), "condition is 'neither'"),
        (lambda: model_run("three layers", 0), "architecture is 'three layers'"),
    ],
)
def test_other_names_are_refused(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def check_beginning(sweep: Sweep, place: int, steps: int) -> None:
    """The same seeds, so the same beginning."""
    found = sweep.function(**{**sweep.points[place], "steps": steps})
    kept = load_results(ROOT / "book" / "results" / f"{sweep.name}.json").points[place]
    n = len(found["probed"])
    assert n > 1
    assert found["probed"] == kept["probed"][:n]
    curves = {"accuracy", "on_uniform", "global_excess"} & found.keys()
    assert curves
    for name in curves:
        assert found[name] == pytest.approx(kept[name][:n], abs=0.02)


@pytest.mark.parametrize("sweep", MINE, ids=lambda sweep: sweep.name)
def test_what_is_shipped_comes_again(sweep: Sweep) -> None:
    """The first twenty steps of each sweep's first and last point."""
    for place in (0, -1):
        check_beginning(sweep, place, steps=20)


@pytest.mark.parametrize("sweep", LARGE, ids=lambda sweep: sweep.name)
def test_what_is_shipped_at_the_papers_size_comes_again(sweep: Sweep) -> None:
    """A step takes about a second here: as many as there are up to the first probe."""
    check_beginning(sweep, 0, steps=sweep.points[0]["every"])
