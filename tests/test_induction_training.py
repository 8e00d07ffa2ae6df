"""Training and its probes: what is frozen stays, what is reported is so, and the induction head is born."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from assoc.corpus import load_texts
from assoc.errors import InputError
from assoc.induction import (
    AssociativeTransformer,
    BigramTask,
    FullTransformer,
    InductionHistory,
    OneLayerTransformer,
    after_trigger_attention,
    feed_forward_kl,
    previous_token_attention,
    recalls,
    train_induction,
    training,
)
from assoc.seeds import seeded

N, T, D = 9, 14, 12


def small_task(**options: object) -> BigramTask:
    generator = seeded(0)
    unigram, bigram = torch.rand(N, generator=generator) + 0.1, torch.rand(N, N, generator=generator)
    arguments = {"length": T, "n_triggers": 2} | options
    return BigramTask(unigram / unigram.sum(), bigram / bigram.sum(1, keepdim=True), **arguments)


def small_model(model_class: type = AssociativeTransformer, **options: object) -> torch.nn.Module:
    return model_class(N, T, D, generator=seeded(0), **options)


def train_small(model: torch.nn.Module, task: BigramTask | None = None, **options: object) -> InductionHistory:
    arguments = {"steps": 6, "batch_size": 16, "learning_rate": 0.1, "evaluate_every": 2, "generator": seeded(1)}
    return train_induction(model, task or small_task(), **(arguments | {"evaluation_size": 32} | options))


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer])
def test_only_the_trained_parameters_move(model_class: type) -> None:
    model = small_model(model_class, feed_forward=True)
    before = weights(model)
    train_small(model, loss_on="all")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name not in model.TRAINED), name
        assert parameter.requires_grad == (name in model.TRAINED)


def test_frozen_until() -> None:
    """Bit by bit the same until the step, although weight decay pulls at whatever is not frozen; then it trains."""
    start = weights(small_model())
    for steps, moves in ((3, False), (4, True)):
        model = small_model()
        train_small(model, steps=steps, frozen_until={"output2": 3, "key1": 0}, weight_decay=0.1)
        assert torch.equal(model.output2, start["output2"]) != moves
        assert not torch.equal(model.key1, start["key1"])
        assert model.output2.requires_grad
    everything_frozen = small_model()
    train_small(everything_frozen, frozen_until=dict.fromkeys(("key1", "key2", "output2"), 6))
    assert all(torch.equal(parameter, start[name]) for name, parameter in everything_frozen.named_parameters())


def by_hand(
    task: BigramTask, steps: int, frozen_until: int, loss_on: str
) -> tuple[AssociativeTransformer, list[float]]:
    """SGD with momentum and weight decay as its textbook formulas, on the same sequences."""
    model, generator = small_model().double(), seeded(1)
    inputs, targets, occurrence = task.sample(32, generator)
    repeated = occurrence >= 2
    buffers: dict[str, torch.Tensor] = {}
    accuracy = []
    for step in range(steps + 1):
        predicted = model(inputs).argmax(-1)
        accuracy.append(float((predicted == targets)[repeated].double().mean()))
        batch = task.sample(16, generator)
        kept = batch.occurrence >= (2 if loss_on == "repeated" else 0)
        loss = functional.cross_entropy(model(batch.inputs)[kept], batch.targets[kept])
        trained = {name: getattr(model, name) for name in ("key1", "key2", "output2")}
        gradients = torch.autograd.grad(loss, list(trained.values()))
        with torch.no_grad():
            for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
                if step < steps and not (name == "output2" and step < frozen_until):
                    change = gradient + 0.01 * parameter
                    buffers[name] = 0.5 * buffers[name] + change if name in buffers else change
                    parameter -= 0.1 * buffers[name]
    return model, accuracy


@pytest.mark.parametrize("loss_on", ["repeated", "all"])
def test_training_by_hand(loss_on: str) -> None:
    task, model = small_task(triggers="random"), small_model().double()
    history = train_small(
        model,
        task,
        evaluate_every=1,
        momentum=0.5,
        weight_decay=0.01,
        frozen_until={"output2": 2},
        loss_on=loss_on,
    )
    expected, accuracy = by_hand(task, 6, 2, loss_on)
    for name in ("key1", "key2", "output2"):
        assert torch.allclose(getattr(model, name), getattr(expected, name), atol=1e-12), name
    assert history.in_context_accuracy == pytest.approx(accuracy)


def test_parts_of_a_batch_train_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of parts add up to that of the batch, also where a part has no repeated output."""
    task = small_task()
    whole, parts = small_model(), small_model()
    train_small(whole, task, steps=4)
    monkeypatch.setattr(training, "MAP_ENTRIES", task.length**2)  # one sequence a part
    assert len(training.in_parts(torch.zeros(5, task.length))) == 5
    train_small(parts, task, steps=4)
    assert any((task.sample(1, seeded(seed)).occurrence < 2).all() for seed in range(40))
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_defaults_are_those_of_the_paper() -> None:
    a, b = small_model(), small_model()
    train_small(a)
    train_small(b, momentum=0.9, weight_decay=1e-4)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    for options in ({"momentum": 0.9, "weight_decay": 0}, {"momentum": 0.8, "weight_decay": 1e-4}):
        other = small_model()
        train_small(other, **options)
        assert not torch.equal(a.output2, other.output2), options


def test_of_several_heads_the_history_has_the_one_that_looks_most() -> None:
    task, model = small_task(), small_model(FullTransformer, n_heads=2)
    history = train_small(model, task)
    inputs, _, occurrence = task.sample(32, seeded(1))
    first, last = model.attention_maps(inputs)
    previous = [previous_token_attention(first[:, head]) for head in range(2)]
    after = [after_trigger_attention(last[:, head], inputs, occurrence) for head in range(2)]
    assert previous[0] != previous[1]
    assert after[0] != after[1]
    assert history.previous_token_attention[-1] == max(previous)
    assert history.after_trigger_attention[-1] == max(after)


def test_history_reports_what_the_model_does() -> None:
    task, model = small_task(), small_model(feed_forward=True)
    probe_inputs = task.sample(2, seeded(5)).inputs
    history = train_small(model, task, steps=5, loss_on="all", probe_inputs=probe_inputs, snapshot_steps=(0, 3, 5))
    assert history.steps == [0, 2, 4, 5]
    names = ["in_context_loss", "global_loss", "previous_token_attention", "after_trigger_attention", "feed_forward_kl"]
    for name in ("in_context_accuracy", "seconds", *names, "key1", "key2", "output2"):
        assert len(history.series(name)) == 4, name
    inputs, targets, occurrence = task.sample(32, seeded(1))
    losses = -model(inputs).detach().log_softmax(-1).gather(2, targets[..., None]).squeeze(-1)
    assert history.in_context_loss[-1] == pytest.approx(losses[occurrence >= 2].mean().item(), rel=1e-5)
    assert history.global_loss[-1] == pytest.approx(losses[occurrence == 0].mean().item(), rel=1e-5)
    assert history.global_loss_floor == pytest.approx(task.global_loss_floor(inputs, occurrence))
    assert {name: values[-1] for name, values in history.recall.items()} == recalls(model, task)
    assert history.feed_forward_kl[-1] == feed_forward_kl(model, task)
    attention1, attention2 = model.attention_maps(inputs)
    assert history.previous_token_attention[-1] == previous_token_attention(attention1)
    assert history.after_trigger_attention[-1] == after_trigger_attention(attention2, inputs, occurrence)
    guesses = (task.bigram.argmax(1)[inputs] == targets)[occurrence >= 2]
    assert history.bigram_accuracy == pytest.approx(guesses.double().mean().item())
    assert sorted(history.snapshots) == [0, 3, 5]
    for kept, now in zip(history.snapshots[5], model.attention_maps(probe_inputs), strict=True):
        assert torch.equal(kept, now)
    assert not torch.equal(history.snapshots[0][1], history.snapshots[5][1])


def test_what_there_is_nothing_to_measure_of() -> None:
    """With every token a trigger there is no other position and no bigram to learn."""
    history = train_small(small_model(feed_forward=True), small_task(n_triggers=N))
    assert all(math.isnan(loss) for loss in history.global_loss)
    assert history.feed_forward_kl == []


def test_a_history_comes_back_from_its_file(tmp_path: object) -> None:
    history = train_small(small_model(feed_forward=True))
    history.global_loss[1], history.recall["key1"][0], history.bigram_accuracy = math.nan, math.nan, math.nan
    again = InductionHistory.load(history.save(tmp_path / "history.json"))
    assert repr(again) == repr(history)  # nan equals nan in print
    assert again.first_step("global_loss", 1e9) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recall": ...}, "there is no recall"),
        ({"global_loss_floor": ..., "seconds": ...}, "there is no global_loss_floor, no seconds"),
        ({"recall": [1]}, "one number for each step"),
        ({"recall": {"key1": [1]}}, "one number for each step"),
        ({"steps": 3}, "one number for each step"),
        ({"seconds": [1.0]}, "one number for each step"),
        ({"steps": None}, "one number for each step"),
        ({"in_context_loss": ["1", "2", "3", "4"]}, "not made of numbers"),
        ({"bigram_accuracy": "half"}, "not made of numbers"),
    ],
)
def test_other_files_are_no_histories(change: dict, message: str, tmp_path: object) -> None:
    content = {name: value for name, value in (train_small(small_model()).to_dict() | change).items() if value != ...}
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"cannot read a history from .*{message}"):
        InductionHistory.load(path)


def test_history_answers_questions(tmp_path: object) -> None:
    history = InductionHistory(
        steps=[0, 10, 20], in_context_accuracy=[0.1, 0.6, 0.7], in_context_loss=[3, 2, 1], recall={"key1": [0, 1, 1]}
    )
    assert history.first_step("in_context_accuracy", 0.6) == 10
    assert history.first_step("in_context_accuracy", 0.9) is None
    assert history.first_step("in_context_loss", 1.5, falling=True) == 20
    assert history.first_step("key1", 1) == 10
    assert history.at_step("key1", 20) == 1
    with pytest.raises(InputError, match=r"no series 'key9'.*in_context_accuracy.*key1"):
        history.series("key9")
    with pytest.raises(InputError, match="step 5 was not probed"):
        history.at_step("key1", 5)
    path = history.save(tmp_path / "deep" / "history.json")
    again = InductionHistory.load(path)
    assert again.steps == history.steps
    assert again.recall == history.recall
    assert json.loads(path.read_text())["global_loss_floor"] is None
    for content in ("[1]", "{", '{"steps": ', "{}", '{"steps": [0, 1], "loss": [2.0, 1.0]}'):
        path.write_text(content)
        with pytest.raises(InputError, match="cannot read a history"):
            InductionHistory.load(path)
    with pytest.raises(InputError, match="cannot read a history"):
        InductionHistory.load(tmp_path / "none.json")


def test_the_same_seed_gives_the_same_history() -> None:
    first, again = small_model(), small_model()
    a, b = train_small(first), train_small(again)
    assert a.in_context_loss == b.in_context_loss
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), again.parameters(), strict=True))
    assert train_small(small_model(), generator=seeded(2)).in_context_loss != a.in_context_loss


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer, FullTransformer])
def test_every_model_trains(model_class: type) -> None:
    history = train_small(small_model(model_class), steps=40, loss_on="all", evaluate_every=40)
    assert history.global_loss[-1] < history.global_loss[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"evaluation_size": 1.5}, "evaluation_size is 1.5"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"momentum": 1}, "momentum is 1"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"weight_decay": 1e300}, "from 0 to 1"),
        ({"weight_decay": True}, "weight_decay is True"),
        ({"snapshot_steps": 1}, "snapshot_steps is 1"),
        ({"snapshot_steps": [10**6], "probe_inputs": torch.zeros(1, 2, dtype=torch.int64)}, "snapshot_steps hold"),
        ({"momentum": "0.9"}, "momentum is '0.9'"),
        ({"frozen_until": ["output2"]}, "frozen_until is .*give the step for each name"),
        ({"frozen_until": {"key1": 1.5}}, r"frozen_until\['key1'\] is 1.5"),
        ({"loss_on": "some"}, "'repeated' or 'all'"),
        ({"frozen_until": {"value1": 3}}, "names 'value1'.*key1, key2, output2"),
        ({"frozen_until": {"feed_forward": 3}}, "names 'feed_forward'"),
        ({"frozen_until": {"key1": -1}}, "at least 0"),
        ({"snapshot_steps": [0]}, "needs probe_inputs"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_small(small_model(), **options)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    numbers = {"steps": 4, "batch_size": 8, "evaluate_every": 2, "evaluation_size": 32}
    a = train_small(small_model(), **numbers, frozen_until={"key1": 2})
    numbers = {name: np.int64(number) for name, number in numbers.items()}
    b = train_small(small_model(), **numbers, frozen_until={"key1": np.int64(2)}, learning_rate=np.float64(0.1))
    assert a.steps == b.steps == [0, 2, 4]
    assert a.in_context_loss == b.in_context_loss


def test_a_model_that_cannot_train_is_refused() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(InputError, match="no weight of this model has requires_grad"):
        train_small(model)


def test_model_and_task_must_fit() -> None:
    for model in (AssociativeTransformer(N + 1, T, D), AssociativeTransformer(N, T - 1, D)):
        with pytest.raises(InputError, match="make the model with the task's"):
            train_small(model)
    with pytest.raises(InputError, match="no trigger occurs twice"):
        train_small(small_model(), small_task(length=2), evaluation_size=1)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    model = small_model()
    with pytest.raises(InputError, match=r"no longer finite after step .*lower learning rate"):
        train_small(model, learning_rate=9e29, steps=20)
    assert all(parameter.requires_grad for parameter in (model.key1, model.key2, model.output2))


def test_weights_that_are_not_finite_do_not_ask_for_a_lower_learning_rate() -> None:
    for value, message in ((math.nan, r"weights are not finite \(value1\)"), (1e38, "weights are too large")):
        model = small_model()
        with torch.no_grad():
            model.value1[0, 0] = value
        with pytest.raises(InputError, match=f"{message}: make a new model"):
            train_small(model)


@pytest.fixture(scope="module")
def birth() -> tuple[BigramTask, AssociativeTransformer, InductionHistory]:
    """The first 120 steps of the book's main run, on the embedded stories."""
    task = BigramTask.from_text(load_texts("stories").texts, length=64, n_triggers=5)
    model = AssociativeTransformer(task.vocab_size, 64, 128, generator=seeded(0))
    options = {"steps": 120, "batch_size": 128, "learning_rate": 0.2, "evaluate_every": 5, "evaluation_size": 128}
    return task, model, train_induction(model, task, generator=seeded(1), **options)


def test_an_induction_head_is_born(birth: tuple) -> None:
    task, _, history = birth
    assert task.vocab_size == 60
    assert history.in_context_accuracy[0] < 0.05
    assert history.bigram_accuracy < 0.05
    assert history.in_context_accuracy[-1] > 0.9
    assert history.after_trigger_attention[-1] > 0.9
    assert history.previous_token_attention[-1] > 5 * history.previous_token_attention[0]


def test_it_is_born_from_the_top_down(birth: tuple) -> None:
    _, _, history = birth
    late = history.first_step("key1", 0.9) or math.inf
    assert history.first_step("output2", 0.9) < late
    assert history.first_step("key2", 0.9) < late
    assert history.first_step("output2", 0.5) < history.first_step("key1", 0.5)
    assert history.first_step("key2", 0.5) < history.first_step("key1", 0.5)
