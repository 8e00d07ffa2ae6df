"""The bigram task with triggers: what it draws is what Section 3 of paper B says, and it draws it fast."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assoc.errors import InputError
from assoc.induction import Batch, BigramTask, induction_predictions
from assoc.induction import task as module
from assoc.induction.task import RESOLUTION, _alias_tables
from assoc.seeds import seeded
from conftest import shared_file

N, LENGTH, K = 11, 40, 3


def random_tables(n: int, seed: int = 0, zeros: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """A unigram distribution without zeros and bigram rows with some."""
    generator = seeded(seed)
    unigram = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    bigram = torch.rand(n, n, generator=generator, dtype=torch.float64)
    bigram[torch.rand(n, n, generator=generator) < zeros] = 0
    bigram[:, 0] += 0.01
    return unigram / unigram.sum(), bigram / bigram.sum(1, keepdim=True)


def make_task(**options: object) -> BigramTask:
    unigram, bigram = random_tables(N)
    return BigramTask(unigram, bigram, **({"length": LENGTH, "n_triggers": K} | options))


def chi_square_is_plausible(observed: torch.Tensor, expected: torch.Tensor, n_constraints: int = 1) -> bool:
    """Pearson's statistic within five standard deviations of its mean; cells that must be empty are."""
    cells = expected > 0
    assert (observed[~cells] == 0).all()
    assert expected[cells].min() >= 5, "too few samples for the test to mean anything"
    statistic = ((observed - expected)[cells] ** 2 / expected[cells]).sum()
    freedom = int(cells.sum()) - n_constraints
    return abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_transitions_off_triggers_follow_the_bigrams(triggers: str) -> None:
    task = make_task(triggers=triggers, length=128)
    batch = task.sample(20_000, seeded(1))
    free = batch.occurrence == 0
    assert free.sum() > 1e6
    counts = torch.bincount(batch.inputs[free] * N + batch.targets[free], minlength=N * N).view(N, N).double()
    visited = counts.sum(1) > 0
    assert visited.sum() == (N - K if triggers == "fixed" else N)
    expected = counts.sum(1, keepdim=True) * task.bigram
    assert chi_square_is_plausible(counts, expected, n_constraints=int(visited.sum()))


def test_the_chi_square_test_can_fail() -> None:
    unigram, bigram = random_tables(N)
    counts = 1e4 * (0.97 * bigram + 0.03 * unigram) * (bigram > 0)
    counts *= 1e4 / counts.sum(1, keepdim=True)
    assert not chi_square_is_plausible(counts, 1e4 * bigram, n_constraints=N)


def test_first_tokens_and_outputs_follow_their_distributions() -> None:
    uniform, bigram = make_task(), make_task(outputs="bigram")
    a, b = uniform.sample_sequences(100_000, seeded(2)), bigram.sample_sequences(100_000, seeded(3))
    firsts = torch.bincount(a.inputs[:, 0], minlength=N).double()
    assert chi_square_is_plausible(firsts, 1e5 * uniform.unigram)
    for k, trigger in enumerate(uniform.fixed_triggers):
        assert chi_square_is_plausible(torch.bincount(a.outputs[:, k], minlength=N).double(), torch.full((N,), 1e5 / N))
        drawn = torch.bincount(b.outputs[:, k], minlength=N).double()
        assert chi_square_is_plausible(drawn, 1e5 * bigram.bigram[trigger])


def test_random_triggers_are_drawn_from_the_unigrams_without_repeats() -> None:
    task = make_task(triggers="random", length=2)
    n = 100_000
    triggers = task.sample_sequences(n, seeded(4)).triggers
    pairs = torch.bincount(triggers[:, 0] * N + triggers[:, 1], minlength=N * N).view(N, N).double()
    p = task.unigram
    expected = n * p[:, None] * p / (1 - p[:, None])  # second from what the first left
    expected.fill_diagonal_(0)
    assert chi_square_is_plausible(pairs, expected)
    ordered = triggers.sort(1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all()


def occurrences_by_loops(inputs: list[list[int]], triggers: list[list[int]]) -> list[list[int]]:
    result = []
    for row, row_triggers in zip(inputs, triggers, strict=True):
        counts: dict[int, int] = {}
        result.append([])
        for token in row:
            counts[token] = counts.get(token, 0) + 1
            result[-1].append(counts[token] if token in row_triggers else 0)
    return result


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 9),
    length=st.integers(2, 30),
    k=st.integers(1, 9),
    triggers=st.sampled_from(["fixed", "random"]),
    outputs=st.sampled_from(["uniform", "bigram"]),
    seed=st.integers(0, 2**32),
)
def test_sequences_obey_their_own_triggers(n: int, length: int, k: int, triggers: str, outputs: str, seed: int) -> None:
    unigram, bigram = random_tables(n, seed)
    k = min(k, n)
    task = BigramTask(unigram, bigram, length=length, n_triggers=k, triggers=triggers, outputs=outputs)
    inputs, targets, occurrence, chosen, drawn = task.sample_sequences(7, seeded(seed))
    assert inputs.shape == targets.shape == occurrence.shape == (7, length)
    assert inputs.dtype == targets.dtype == occurrence.dtype == torch.int64
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert occurrence.tolist() == occurrences_by_loops(inputs.tolist(), chosen.tolist())
    for b in range(7):
        outputs_of = dict(zip(chosen[b].tolist(), drawn[b].tolist(), strict=True))
        assert len(outputs_of) == k
        for now, following in zip(inputs[b].tolist(), targets[b].tolist(), strict=True):
            if now in outputs_of:
                assert following == outputs_of[now]
            else:
                assert bigram[now, following] > 0


def test_fixed_triggers_are_the_most_frequent_tokens_past_the_offset() -> None:
    unigram = make_task().unigram
    by_frequency = sorted(range(N), key=lambda token: -unigram[token])
    assert make_task().fixed_triggers.tolist() == by_frequency[:K]
    assert make_task(trigger_offset=4).fixed_triggers.tolist() == by_frequency[4 : 4 + K]
    assert make_task(triggers="random").fixed_triggers is None


def test_impossible_transitions_are_never_drawn() -> None:
    """A row of zeros around tiny probabilities: only possible successors appear, whatever the rounding."""
    bigram = torch.zeros(6, 6, dtype=torch.float64)
    bigram[:, 1], bigram[:, 3] = 1 - 1e-9, 1e-9
    bigram[0] = torch.tensor([0, 0.1, 0.2, 0.3, 0.4, 0])
    task = BigramTask(torch.full((6,), 1 / 6), bigram, length=100, n_triggers=1)
    batch = task.sample(1000, seeded(0))
    free = batch.occurrence == 0
    assert (bigram[batch.inputs[free], batch.targets[free]] > 0).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=4))
def test_alias_tables_hold_the_distribution(rows: list[list[float]]) -> None:
    """Columns of 2^48 levels, each its token's up to its share and its alias's above, are 5 2^48 levels in all."""
    table = torch.tensor(rows, dtype=torch.float64) + 1e-300
    table[:, 0] += (table.sum(1) < 1e-6).double()
    table /= table.sum(1, keepdim=True)
    share, alias = (values.reshape(-1, 5) for values in _alias_tables(table))
    assert (share >= 0).all()
    assert (share <= RESOLUTION).all()
    for row, probabilities in enumerate(table.tolist()):
        levels = [0] * 5
        for column in range(5):
            levels[column] += int(share[row, column])
            levels[alias[row, column]] += RESOLUTION - int(share[row, column])
        assert sum(levels) == 5 * RESOLUTION
        assert levels == pytest.approx([p * 5 * RESOLUTION for p in probabilities], abs=2000)
        assert all(level == 0 for level, p in zip(levels, probabilities, strict=True) if p < 1e-17)


def test_tokens_of_probability_zero_are_no_triggers() -> None:
    task = BigramTask(
        torch.tensor([0.5, 0, 0.3, 0, 0.2]), torch.full((5, 5), 0.2), length=2, n_triggers=3, triggers="random"
    )
    assert set(task.sample_sequences(500, seeded(0)).triggers.flatten().tolist()) == {0, 2, 4}
    with pytest.raises(InputError, match="only 3 tokens"):
        BigramTask(task.unigram, task.bigram, length=2, n_triggers=4, triggers="random")


def test_the_same_generator_state_gives_the_same_batch() -> None:
    task = make_task(triggers="random")
    first, again, other = (task.sample_sequences(8, seeded(seed)) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.inputs, other.inputs)
    batch = task.sample(8, seeded(5))
    assert isinstance(batch, Batch)
    inputs, targets, occurrence = batch
    assert torch.equal(inputs, first.inputs)
    assert torch.equal(targets, first.targets)
    assert torch.equal(occurrence, first.occurrence)


def sample_by_loops(task: BigramTask, batch_size: int, choose: object) -> tuple[list, list, list]:
    """One sequence after the other, one position after the other, as Section 3 of the paper reads."""
    triggers = task.fixed_triggers.tolist()
    unigram, bigram = task.unigram.numpy(), task.bigram.numpy()
    uniform = np.full(task.vocab_size, 1 / task.vocab_size)
    all_inputs, all_targets, all_occurrences = [], [], []
    for _ in range(batch_size):
        output_of = {trigger: choose(uniform) for trigger in triggers}
        sequence = [choose(unigram)]
        seen: dict[int, int] = {}
        occurrence = []
        for _ in range(task.length):
            now = sequence[-1]
            if now in output_of:
                seen[now] = seen.get(now, 0) + 1
                occurrence.append(seen[now])
                sequence.append(output_of[now])
            else:
                occurrence.append(0)
                sequence.append(choose(bigram[now]))
        all_inputs.append(sequence[:-1])
        all_targets.append(sequence[1:])
        all_occurrences.append(occurrence)
    return all_inputs, all_targets, all_occurrences


@contextmanager
def one_thread() -> Iterator[None]:
    """No other threads of torch inside: processor time counts them even while they only wait."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def seconds(function: object, repeats: int) -> float:
    """The least processor time of one call: what others make the machine do does not count."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def test_sampling_is_much_faster_than_a_loop_over_sequences() -> None:
    unigram, bigram = random_tables(65)
    task = BigramTask(unigram, bigram, length=64, n_triggers=5)
    generator, loop_generator = seeded(0), np.random.default_rng(0)
    with one_thread():
        batched = seconds(lambda: task.sample(128, generator), repeats=30)
        looped = seconds(lambda: sample_by_loops(task, 128, lambda p: int(loop_generator.choice(65, p=p))), repeats=2)
    print(f"\n128 x 64: {batched * 1e3:.2f} ms in one batch, {looped * 1e3:.0f} ms by loops: {looped / batched:.0f} x")
    assert looped / batched > 50


def test_from_text_counts_within_texts() -> None:
    task = BigramTask.from_text(["abab\nc", "", "ba"], length=4, n_triggers=2)
    assert task.vocabulary == ["\n", "a", "b", "c"]
    assert torch.allclose(task.unigram * 8, torch.tensor([1.0, 3, 3, 1], dtype=torch.float64))
    expected = [[0, 0, 0, 1], [0, 0, 1, 0], [1 / 3, 2 / 3, 0, 0]]
    assert torch.allclose(task.bigram[:3], torch.tensor(expected, dtype=torch.float64))
    assert torch.allclose(task.bigram[3], task.unigram), "c is only ever last: followed by the unigrams"
    assert task.decode(torch.tensor([1, 2, 0, 3])) == "ab\nc"


def test_from_text_reads_tiny_shakespeare() -> None:
    text = shared_file("data/tinyshakespeare.txt").read_text()
    task = BigramTask.from_text(text, length=64, n_triggers=5)
    assert task.vocab_size == 65
    assert [task.vocabulary[token] for token in task.fixed_triggers] == [" ", "e", "t", "o", "a"]
    a, b = task.vocabulary.index("t"), task.vocabulary.index("h")
    assert float(task.bigram[a, b]) == pytest.approx(text.count("th") / text.count("t"), rel=1e-9)


def test_entropies() -> None:
    task = make_task()
    bigram = task.bigram
    entropies = [-sum(p * torch.tensor(p).log().item() for p in row if p > 0) for row in bigram.tolist()]
    assert torch.allclose(task.successor_entropy(), torch.tensor(entropies, dtype=torch.float64), atol=1e-6)
    values, vectors = torch.linalg.eig(bigram.T)
    stationary = vectors[:, (values - 1).abs().argmin()].real
    stationary = stationary / stationary.sum()
    assert task.entropy_rate() == pytest.approx(
        float(stationary @ torch.tensor(entropies, dtype=torch.float64)), abs=1e-6
    )
    # A chain that flips between two tokens for ever, periodic, has no entropy; uniform rows have log 2.
    flip = BigramTask([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], length=2, n_triggers=1)
    coin = BigramTask([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], length=2, n_triggers=1)
    assert flip.entropy_rate() == pytest.approx(0)
    assert coin.entropy_rate() == pytest.approx(0.693147, abs=1e-6)
    # Two chains in one table: where it starts decides for ever which of them runs.
    halves = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]]
    for start, expected in (([1.0, 0, 0], 0), ([0, 0, 1.0], 0.693147), ([0.75, 0.25, 0], 0.25 * 0.693147)):
        assert BigramTask(start, halves, length=2, n_triggers=1).entropy_rate() == pytest.approx(expected, abs=1e-6)
    batch = task.sample(50, seeded(0))
    free = [entropies[z] for z, n in zip(batch.inputs.flatten(), batch.occurrence.flatten(), strict=True) if n == 0]
    assert task.global_loss_floor(batch.inputs, batch.occurrence) == pytest.approx(sum(free) / len(free))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 25), st.integers(0, 2**32))
def test_induction_predictions_copy_what_followed(n: int, length: int, seed: int) -> None:
    inputs = torch.randint(n, (5, length), generator=seeded(seed))
    expected = []
    for row in inputs.tolist():
        follower: dict[int, int] = {}
        expected.append([])
        for t, token in enumerate(row):
            expected[-1].append(follower.get(token, -1))
            if t + 1 < length:
                follower[token] = row[t + 1]
    assert induction_predictions(inputs).tolist() == expected


@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_best_in_context_accuracy_is_one(triggers: str) -> None:
    batch = make_task(triggers=triggers).sample(200, seeded(0))
    repeated = batch.occurrence >= 2
    assert repeated.any()
    assert (induction_predictions(batch.inputs)[repeated] == batch.targets[repeated]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length is 1"),
        ({"length": 2.5}, "length is 2.5"),
        ({"n_triggers": 0}, "n_triggers is 0"),
        ({"n_triggers": N + 1}, f"only {N} tokens"),
        ({"trigger_offset": N}, f"only {N} tokens"),
        ({"trigger_offset": -1}, "trigger_offset is -1"),
        ({"trigger_offset": 1, "triggers": "random"}, "trigger_offset chooses fixed triggers"),
        ({"triggers": "often"}, "'fixed' or 'random'"),
        ({"outputs": "often"}, "'uniform' or 'bigram'"),
        ({"vocabulary": ["a"]}, f"must have {N} tokens"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_task(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u, b: (u * 2, b), "unigram must sum to 1; one sum is 2$"),
        (lambda u, b: (u, b * 0.5), "bigram must sum to 1 in every row"),
        (lambda u, b: (u, b.index_fill(0, torch.tensor([2]), 0)), "one sum is 0"),
        (lambda u, b: (u * torch.nan, b), "finite"),
        (lambda u, b: (u, b.index_fill(1, torch.tensor([0]), torch.inf)), "finite"),
        (lambda u, b: (torch.cat([u[:-2], u[-2:] + torch.tensor([1.0, -1.0])]), b), "at least 0"),
        (lambda u, b: (u[:-1] / u[:-1].sum(), b), r"bigram must be \(N, N\)"),
        (lambda u, b: (b, b), "unigram must have 1 dim"),
        (lambda u, b: (u[:0], b), "not be empty"),
        (lambda u, b: ("abc", b), "unigram must be a tensor, or lists of numbers"),
        (lambda u, b: (u, None), "bigram must be a tensor, or lists of numbers"),
        (lambda u, b: (u, [[1.0, 0.0], [1.0]]), "bigram must be a tensor, or lists of numbers of equal length"),
    ],
)
def test_bad_tables(change: object, message: str) -> None:
    unigram, bigram = change(*random_tables(N))
    with pytest.raises(InputError, match=message):
        BigramTask(unigram, bigram, length=LENGTH, n_triggers=K)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    task = make_task(length=np.int64(12), n_triggers=np.int32(2), trigger_offset=np.int64(1))
    again = make_task(length=12, n_triggers=2, trigger_offset=1)
    assert type(task.length) is int
    assert torch.equal(task.sample(np.int64(3), seeded(0)).inputs, again.sample(3, seeded(0)).inputs)


def test_tables_that_memory_could_not_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MAX_VOCAB_SIZE <= 4096
    task = make_task()
    assert task._share.size == task._alias.size == (N + 1) * N, "one row for each token, one for the first"
    monkeypatch.setattr(module, "MAX_VOCAB_SIZE", N - 1)
    with pytest.raises(InputError, match=f"{N} tokens are too many: at most {N - 1}"):
        make_task()


def test_a_task_keeps_its_own_tables() -> None:
    unigram, bigram = random_tables(N)
    task = BigramTask(unigram, bigram, length=LENGTH, n_triggers=K)
    kept = task.unigram.clone(), task.bigram.clone()
    unigram.zero_()
    bigram.zero_()
    assert torch.equal(task.unigram, kept[0])
    assert torch.equal(task.bigram, kept[1])


def test_other_bad_input() -> None:
    for batch_size in (0, -1, 2.0, True):
        with pytest.raises(InputError, match="batch_size"):
            make_task().sample(batch_size)
    with pytest.raises(InputError, match="no vocabulary"):
        make_task().decode(torch.tensor([0]))
    for text in ("", "a", ["a", "b"], []):
        with pytest.raises(InputError, match="two characters"):
            BigramTask.from_text(text, length=4, n_triggers=1)
    for text in (None, 5, ["abc", None], b"abc"):
        with pytest.raises(InputError, match="text must be a string"):
            BigramTask.from_text(text, length=4, n_triggers=1)
    with pytest.raises(InputError, match="half a character at place 2"):
        BigramTask.from_text("ab\ud800ab", length=4, n_triggers=1)
    with pytest.raises(InputError, match="leave out vocabulary"):
        BigramTask.from_text("abab", length=4, n_triggers=1, vocabulary=["a", "b"])
    task = BigramTask.from_text("abab", length=4, n_triggers=1)
    for tokens in (torch.tensor([7]), torch.tensor([-1]), torch.tensor([[0]]), torch.tensor([0.0])):
        with pytest.raises(InputError, match="whole numbers from 0 to 1"):
            task.decode(tokens)
    assert "length=40" in repr(make_task())
