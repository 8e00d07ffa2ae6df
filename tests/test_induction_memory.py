"""Associative memories of paper B: recall, the induction head by hand, probes, and capacity."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assoc.errors import InputError
from assoc.induction import (
    AssociativeTransformer,
    BigramTask,
    FullTransformer,
    OneLayerTransformer,
    after_trigger_attention,
    capacity,
    feed_forward_kl,
    ideal_memories,
    install_ideal_memories,
    memory_recall,
    memory_tables,
    outer_product_memory,
    previous_token_attention,
    recalls,
)
from assoc.seeds import seeded

N, T, D = 12, 10, 16


def random_task(n: int = N, length: int = T, seed: int = 0, **options: object) -> BigramTask:
    generator = seeded(seed)
    unigram, bigram = torch.rand(n, generator=generator) + 0.05, torch.rand(n, n, generator=generator) ** 3
    return BigramTask(
        unigram / unigram.sum(),
        bigram / bigram.sum(1, keepdim=True),
        **({"length": length, "n_triggers": 3} | options),
    )


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 8), m=st.integers(1, 8), d=st.integers(1, 5), e=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_recall_by_loops(n: int, m: int, d: int, e: int, seed: int) -> None:
    generator = seeded(seed)
    W, inputs, outputs = (torch.randn(*shape, generator=generator) for shape in ((e, d), (n, d), (m, e)))
    targets = torch.randint(m, (n,), generator=generator)
    hits = 0
    for i in range(n):
        scores = [float(outputs[j] @ W @ inputs[i]) for j in range(m)]
        hits += scores.index(max(scores)) == int(targets[i])
    assert memory_recall(W, inputs, outputs, targets) == pytest.approx(hits / n)


def test_recall_rejects_bad_input() -> None:
    W, inputs, outputs = torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5, 3)
    with pytest.raises(InputError, match="W must be"):
        memory_recall(W.T, inputs, outputs)
    with pytest.raises(InputError, match="W must be"):
        memory_recall(W, inputs[0], outputs)
    for targets in (torch.tensor([0]), torch.full((5,), 5), torch.tensor([0, 1, 2, 3, -1])):
        with pytest.raises(InputError, match="targets"):
            memory_recall(W, inputs, outputs, targets)
    with pytest.raises(InputError, match="at least 1"):
        memory_recall(W, inputs[:0], outputs)
    for name, arguments in (
        ("W", (W / 0, inputs, outputs)),
        ("inputs", (W, inputs / 0, outputs)),
        ("outputs", (W, inputs, outputs + torch.inf)),
    ):
        with pytest.raises(InputError, match=f"{name} must be finite, without NaN"):
            memory_recall(*arguments)


def test_what_does_not_fit_is_named() -> None:
    u, v, z = torch.rand(5, 3), torch.rand(5, 4), torch.zeros(2, 6, dtype=torch.int64)
    W, maps = torch.rand(3, 4), torch.rand(2, 6, 6)
    model = AssociativeTransformer(N, T, D, generator=seeded(0))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: memory_recall(W.tolist(), v, u), "W must be a tensor; got a list"),
        (lambda: memory_recall(W, v.tolist(), u), "inputs must be a tensor"),
        (lambda: memory_recall(W, v, u.tolist()), "outputs must be a tensor"),
        (lambda: memory_recall(W, v, u, [0, 1, 2, 3, 4]), "targets must be a tensor"),
        (lambda: memory_recall(W.long(), v.long(), u.long()), "W must be floating-point"),
        (lambda: memory_recall(W, v.double(), u), "inputs must be floating-point"),
        (lambda: memory_recall(W, v, u.double()), "outputs must be floating-point"),
        (lambda: outer_product_memory(u[0], v), "outputs must be"),
        (lambda: outer_product_memory(u, v[:4]), "inputs must be"),
        (lambda: outer_product_memory(u, v[0]), "inputs must be"),
        (lambda: outer_product_memory(u, v.double()), "inputs must be"),
        (lambda: outer_product_memory(u / 0, v), "outputs holds a number that is not finite"),
        (lambda: outer_product_memory(u, v / 0), "inputs holds a number that is not finite"),
        (lambda: outer_product_memory(u * (u != u[2]), v), "a row of zeros"),
        (lambda: outer_product_memory(u, v * (v != v[2])), "a row of zeros"),
        (lambda: ideal_memories(model, scale=math.nan), "scale is nan"),
        (lambda: previous_token_attention(maps[0, 0]), "attention must be"),
        (lambda: previous_token_attention(maps[:, :5]), "attention must be"),
        (lambda: previous_token_attention(maps[:, :1, :1]), "attention must be"),
        (lambda: after_trigger_attention(maps, z[0], z), "inputs must be"),
        (lambda: after_trigger_attention(maps, z, z[:, :5]), "occurrence must be"),
        (lambda: after_trigger_attention(maps[:, :5], z, z), "attention must be"),
        (lambda: after_trigger_attention(maps[:1], z, z), "attention must be"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=f"^{message}"):
            call()
    assert previous_token_attention(maps[0, :2, :2]) == pytest.approx(float(maps[0, 1, 0]))
    assert previous_token_attention(maps[:, None]) == pytest.approx(previous_token_attention(maps)), "(n, heads, T, T)"


def recalls_by_loops(model: AssociativeTransformer, tokens: list[int]) -> dict[str, float]:
    w_E, p, w_U = model.token_embedding, model.position_embedding, model.unembedding
    w_1 = [model.output1 @ model.value1 @ w_E[k] for k in range(model.vocab_size)]

    def best(scores: list[torch.Tensor]) -> int:
        return max(range(len(scores)), key=lambda j: float(scores[j]))

    output2 = [best([u @ model.output2 @ model.value2 @ w_E[v] for u in w_U]) == v for v in range(model.vocab_size)]
    key2 = [best([w_E[k] @ model.key2 @ key for key in w_1]) == k for k in tokens]
    key1 = {t: best([p[t] @ model.key1 @ key for key in p]) == t - 1 for t in range(1, model.length)}
    result = {"output2": output2, "key2": key2, "key1": list(key1.values())}
    if model.length > 64:
        result["key1_early"] = [hit for t, hit in key1.items() if t < 64]
        result["key1_late"] = [hit for t, hit in key1.items() if t >= 64]
    return {name: sum(hits) / len(hits) for name, hits in result.items()}


@pytest.mark.parametrize("length", [T, 70])
@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_recalls_by_loops(length: int, triggers: str) -> None:
    """Half-filled memories, so that every recall lies strictly between 0 and 1 and no two sets of pairs agree."""
    task = random_task(length=length, triggers=triggers)
    model = AssociativeTransformer(N, length, D, generator=seeded(0))
    ideal = ideal_memories(model, task, scale=1)
    with torch.no_grad():
        for i, (name, memory) in enumerate(ideal.items()):
            parameter = getattr(model, name)
            parameter.copy_(memory + memory.std() * 2 * torch.randn(D, D, generator=seeded(20 + i)))
        tokens = range(N) if triggers == "random" else task.fixed_triggers.tolist()
        expected = recalls_by_loops(model, list(tokens))
    assert recalls(model, task) == pytest.approx(expected)
    assert 0 < expected["output2"] < 1
    assert 0 < expected["key1"] < 1


def test_early_positions_are_the_first_64() -> None:
    """Exactly the pairs of t = 2 .. 64 (from 1) are stored, without cross-talk; others score 0 for every key."""
    model = AssociativeTransformer(N, 70, 70, generator=seeded(0))
    with torch.no_grad():
        model.position_embedding.copy_(torch.eye(70))
        model.key1.zero_()
        for t in range(2, 65):
            model.key1[t - 1, t - 2] = 1
    found = recalls(model, random_task(length=70))
    assert (found["key1"], found["key1_early"], found["key1_late"]) == (63 / 69, 1, 0)


@pytest.mark.parametrize("length", [8, 64, 66])
def test_positions_that_the_data_never_reaches_do_not_count(length: int) -> None:
    """A longer model recalls what the same model, cut to the task's length, does: neither queries nor keys beyond."""
    model, cut = (AssociativeTransformer(N, n, D, generator=seeded(0)) for n in (70, length))
    task = random_task(length=length)
    ideal = ideal_memories(model)["key1"]
    with torch.no_grad():
        model.key1.copy_(ideal + ideal.std() * 2 * torch.randn(D, D, generator=seeded(1)))
        cut.load_state_dict(model.state_dict() | {"position_embedding": model.position_embedding[:length]})
    found = recalls(model, task)
    assert found == recalls(cut, task)
    assert ("key1_early" in found) == (length > 64)
    assert found["key1"] != recalls(model, random_task(length=70))["key1"]


def test_recalls_of_the_other_models() -> None:
    task, one = random_task(), OneLayerTransformer(N, T, 256, generator=seeded(0))
    assert recalls(FullTransformer(N, T, D), task) == {}
    assert recalls(one, task)["output1"] < 0.5
    with torch.no_grad():
        one.output1.copy_(outer_product_memory(one.unembedding, one.token_embedding @ one.value1.T))
    assert recalls(one, task) == {"output1": 1}
    for model_class in (AssociativeTransformer, OneLayerTransformer):
        with pytest.raises(InputError, match="the model has 11 tokens, the task 12"):
            recalls(model_class(N - 1, T, D), task)
    with torch.no_grad():
        one.token_embedding[3] = torch.nan
    with pytest.raises(InputError, match="inputs must be finite"):
        recalls(one, task)


def test_ideal_memories_are_sums_of_outer_products() -> None:
    task = random_task()
    model = AssociativeTransformer(N, T, D, feed_forward=True, generator=seeded(0)).double()
    w_E, p, w_U = (x.detach() for x in (model.token_embedding, model.position_embedding, model.unembedding))
    remap, value2 = (model.output1 @ model.value1).detach(), model.value2.detach()

    def pair(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.outer(u, v) / (u @ u) / (v @ v)

    triggers = task.fixed_triggers.tolist()
    expected = {
        "key1": 4 * math.sqrt(D) * sum(pair(p[t], p[t - 1]) for t in range(1, T)),
        "key2": 4 * math.sqrt(D) * sum(pair(w_E[k], remap @ w_E[k]) for k in triggers),
        "output2": 4 * sum(pair(w_U[v], value2 @ w_E[v]) for v in range(N)),
    }
    logits = task.bigram.clamp(min=1e-4).log()
    expected["feed_forward"] = sum(
        (logits[k, v] - logits[k].mean()) * pair(w_U[v], w_E[k]) for k in range(N) for v in range(N)
    )
    found = ideal_memories(model, task, scale=4)
    assert found.keys() == expected.keys()
    for name, memory in expected.items():
        assert torch.allclose(found[name], memory, atol=1e-12), name
    # Without a task every token is stored in W_K2, and there is no W_F to know.
    found = ideal_memories(model, scale=4)
    assert "feed_forward" not in found
    assert torch.allclose(4 * ideal_memories(model)["key1"], found["key1"], rtol=1e-12), "scale is 1 if not given"
    expected_key2 = 4 * math.sqrt(D) * sum(pair(w_E[k], remap @ w_E[k]) for k in range(N))
    assert torch.allclose(found["key2"], expected_key2, atol=1e-12)


def test_installed_memories_are_the_ideal_ones_times_thirty() -> None:
    task = random_task()
    model = AssociativeTransformer(N, T, D, feed_forward=True, generator=seeded(0)).double()
    ideal = ideal_memories(model, task)
    assert install_ideal_memories(model, task) is model
    for name, memory in ideal.items():
        factor = 1 if name == "feed_forward" else 30  # W_F holds log-probabilities: no scale makes them sharper
        assert torch.allclose(getattr(model, name), factor * memory, rtol=1e-12), name


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 7), d=st.integers(1, 5), e=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_outer_product_memory_by_loops(n: int, d: int, e: int, seed: int) -> None:
    u, v = (torch.randn(n, size, generator=seeded(seed), dtype=torch.float64) for size in (e, d))
    W = outer_product_memory(u, v)
    for a in range(e):
        for b in range(d):
            parts = (u[i, a] * v[i, b] / (u[i] @ u[i]) / (v[i] @ v[i]) for i in range(n))
            assert float(W[a, b]) == pytest.approx(float(sum(parts)), rel=1e-10, abs=1e-12)
    # Of orthogonal vectors of any length nothing but the pairs is stored, each with score 1.
    u, v = torch.diag(u[0].abs() + 0.1), torch.linalg.qr(torch.randn(e, e, generator=seeded(seed)).double())[0] * 3
    assert torch.allclose(u @ outer_product_memory(u, v) @ v.T, torch.eye(e, dtype=torch.float64), atol=1e-10)


def test_an_induction_head_takes_two_layers_and_a_task_of_its_size() -> None:
    for function in (ideal_memories, install_ideal_memories, memory_tables):
        with pytest.raises(InputError, match="takes an AssociativeTransformer; got OneLayerTransformer"):
            function(OneLayerTransformer(N, T, D))
    with pytest.raises(InputError, match="the model has 11 tokens, the task 12"):
        ideal_memories(AssociativeTransformer(N - 1, T, D), random_task())


def in_context_accuracy(model: AssociativeTransformer, batch: tuple, where: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(batch.inputs).argmax(-1) == batch.targets)[where].double().mean())


def test_an_induction_head_by_hand() -> None:
    """The paper's formula works at d = 512 but for one thing: position 1 has no previous token to attend to."""
    task = random_task(n=60, length=64, n_triggers=5)
    batch = task.sample(200, seeded(1))
    repeated, like_first = batch.occurrence >= 2, batch.inputs == batch.inputs[:, :1]
    assert (repeated & like_first).any()
    wide = AssociativeTransformer(60, 64, 512, generator=seeded(2))
    narrow = AssociativeTransformer(60, 64, 64, generator=seeded(2))
    assert in_context_accuracy(wide, batch, repeated) < 0.05
    install_ideal_memories(wide, task)
    install_ideal_memories(narrow, task)
    assert recalls(wide, task) == {"output2": 1, "key2": 1, "key1": 1}
    assert in_context_accuracy(wide, batch, repeated & ~like_first) > 0.99
    assert in_context_accuracy(wide, batch, repeated & like_first) < 0.95
    assert in_context_accuracy(narrow, batch, repeated) < 0.6, "too narrow for vectors to be nearly orthogonal"
    attention1, attention2 = wide.attention_maps(batch.inputs)
    assert previous_token_attention(attention1) > 0.98
    assert after_trigger_attention(attention2, batch.inputs, batch.occurrence) > 0.9
    for name, parameter in wide.named_parameters():
        assert parameter.requires_grad == (name in wide.TRAINED)


def test_memory_tables_show_the_stored_pairs() -> None:
    task = random_task()
    model = AssociativeTransformer(N, T, 1024, feed_forward=True, generator=seeded(0))
    install_ideal_memories(model, task, scale=1)
    tables = memory_tables(model)
    is_trigger = torch.zeros(N).index_fill(0, task.fixed_triggers, 1)
    assert (tables["key1"] - torch.ones(T, T).tril(-1).triu(-1)).abs().max() < 0.4
    assert (tables["key2"] - torch.diag(is_trigger)).abs().max() < 0.4
    assert (tables["output2"] - torch.eye(N)).abs().max() < 0.4
    assert (tables["key1"].argmax(1)[1:] == torch.arange(T - 1)).all(), "row = query, column = key"
    # Each table is a table of the scores that the model itself computes.
    t, s, k, v = 3, 7, 2, 5
    w_E, p, w_U, W = model.token_embedding, model.position_embedding, model.unembedding, model
    for name, row, column, value in (
        ("key1", t, s, p[t] @ W.key1 @ p[s] / 32),
        ("key2", k, v, w_E[k] @ W.key2 @ W.output1 @ W.value1 @ w_E[v] / 32),
        ("output2", k, v, w_U[v] @ W.output2 @ W.value2 @ w_E[k]),
        ("feed_forward", k, v, w_U[v] @ W.feed_forward @ w_E[k]),
    ):
        assert tables[name][row, column].item() == pytest.approx(value.item(), rel=1e-3, abs=1e-4)
    assert "feed_forward" not in memory_tables(AssociativeTransformer(N, T, D))
    with torch.no_grad():
        model.value2[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"not finite \(value2\)"):
        memory_tables(model)


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_feed_forward_kl_by_loops(with_residual: bool, triggers: str) -> None:
    tables = random_task()
    bigram = tables.bigram.clone()
    bigram[:, 3], bigram[:, 4] = bigram[:, 3] + bigram[:, 4], 0  # zeros contribute nothing
    task = BigramTask(tables.unigram, bigram, length=T, n_triggers=3, triggers=triggers)
    model = AssociativeTransformer(N, T, D, feed_forward=True, generator=seeded(0)).double()
    total = 0.0
    tokens = range(N) if triggers == "random" else set(range(N)) - set(task.fixed_triggers.tolist())
    for k in tokens:
        x = model.feed_forward @ model.token_embedding[k]
        predicted = (model.unembedding @ (x + model.token_embedding[k] if with_residual else x)).softmax(0).detach()
        total += sum(float(p * (p / q).log()) for p, q in zip(task.bigram[k], predicted, strict=True) if p > 0)
    assert feed_forward_kl(model, task, with_residual) == pytest.approx(total / len(tokens), abs=1e-10)


def test_feed_forward_kl_is_small_for_the_ideal_memory_only() -> None:
    task = random_task()
    model = AssociativeTransformer(N, T, 2048, feed_forward=True, generator=seeded(0))
    before = feed_forward_kl(model, task)
    install_ideal_memories(model, task)
    assert feed_forward_kl(model, task) < 0.1 < before
    for other in (AssociativeTransformer(N, T, D), OneLayerTransformer(N, T, D), FullTransformer(N, T, D)):
        with pytest.raises(InputError, match=r"^this model has no feed_forward: .*feed_forward=True$"):
            feed_forward_kl(other, task)
    with pytest.raises(InputError, match="the model has 11 tokens, the task 12"):
        feed_forward_kl(AssociativeTransformer(N - 1, T, D, feed_forward=True), task)
    with pytest.raises(InputError, match=r"^all tokens are triggers"):
        feed_forward_kl(model, random_task(n_triggers=N))
    assert feed_forward_kl(model, random_task(n_triggers=N, triggers="random")) > 0


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 4), length=st.integers(2, 12), n_tokens=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_attention_probes_by_loops(n: int, length: int, n_tokens: int, seed: int) -> None:
    generator = seeded(seed)
    inputs = torch.randint(n_tokens, (n, length), generator=generator)
    occurrence = torch.randint(1, 4, (n, length), generator=generator)
    occurrence[0, -1] = 2  # at least one place to average over
    attention = torch.rand(n, length, length, generator=generator, dtype=torch.float64).tril()
    attention /= attention.sum(-1, keepdim=True)
    previous = [float(attention[b, t, t - 1]) for b in range(n) for t in range(1, length)]
    assert previous_token_attention(attention) == pytest.approx(sum(previous) / len(previous))
    looks = []
    for b in range(n):
        for t in range(length):
            if occurrence[b, t] >= 2:
                places = [s for s in range(1, t + 1) if inputs[b, s - 1] == inputs[b, t]]
                looks.append(sum(float(attention[b, t, s]) for s in places))
    assert after_trigger_attention(attention, inputs, occurrence) == pytest.approx(sum(looks) / len(looks))


def test_capacity_grows_with_the_square_of_the_dimension() -> None:
    assert capacity(1, 4, seeded(0)) == 1
    small, large = (capacity(n_pairs, 32, seeded(0), n_repeats=4) for n_pairs in (16, 2048))
    assert small > 0.99
    assert large < 0.2
    assert capacity(4 * 128, 64, seeded(0), 4) == pytest.approx(capacity(128, 32, seeded(1), 4), abs=0.12)
    assert capacity(20, 32, seeded(3)) == capacity(20, 32, seeded(3))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 6), repeats=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_capacity_is_the_recall_of_each_draw(n: int, d: int, repeats: int, seed: int) -> None:
    drawn = torch.randn(2, repeats, n, d, generator=seeded(seed))
    u, v = drawn / drawn.square().sum(dim=-1, keepdim=True).sqrt()
    surely, maybe = 0, 0  # matches may tie up to rounding, in one dimension all do: any of the best wins
    for r in range(repeats):
        W = sum(torch.outer(u[r, i], v[r, i]) for i in range(n))
        for i in range(n):
            scores = [float(u[r, j] @ W @ v[r, i]) for j in range(n)]
            others = max((score for j, score in enumerate(scores) if j != i), default=-math.inf)
            surely, maybe = surely + (scores[i] > others + 1e-5), maybe + (scores[i] > others - 1e-5)
    assert surely - 1e-9 <= capacity(n, d, seeded(seed), repeats) * n * repeats <= maybe + 1e-9


def test_capacity_by_loops() -> None:
    u, v = torch.nn.functional.normalize(torch.randn(2, 1, 60, 8, generator=seeded(0)), dim=-1)
    W = sum(torch.outer(u[0, i], v[0, i]) for i in range(60))
    expected = memory_recall(W, v[0], u[0])
    assert 0.05 < expected < 0.95
    assert capacity(60, 8, seeded(0)) == pytest.approx(expected)
    assert capacity(torch.tensor(60).numpy()[()], 8, seeded(0)) == pytest.approx(expected)
    for arguments, name in (
        ((0, 1), "n_pairs"),
        ((1, 0), "dim"),
        ((1, 1, None, 0), "n_repeats"),
        ((1.5, 1), "n_pairs"),
    ):
        with pytest.raises(InputError, match=f"^{name} is .* at least 1"):
            capacity(*arguments)
