"""The benchmark: both forms it compares compute the same, its counts hold, and its file has what the page reads."""

import json

import pytest
import torch

import bench
import literal_leading_terms as literal
from assoc.leading_terms import basis_functions
from assoc.llm.covariance import covariance_cosine
from conftest import relative_error

RATES = (
    "multiply_adds_32",
    "multiply_adds_64",
    "scatter_adds",
    "look_ups",
    "look_ups_in_cache",
    "additions",
    "draws",
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes at which everything takes a moment, and tokens for them."""
    sizes = {
        "N": 12,
        "T": 10,
        "V": 30,
        "L": 2,
        "FEW": 3,
        "TOKENS": 40,
        "WIDTH": 8,
        "LAYERS": 2,
        "BATCH": 6,
        "LENGTH": 12,
        "WORDS": 9,
    }
    for name, value in sizes.items():
        monkeypatch.setattr(bench, name, value)
    x, y = torch.randint(30, (2, 12, 10), generator=torch.Generator().manual_seed(0))
    return x, y


def test_literal_basis_functions_are_ours(small: tuple) -> None:
    found, by_sequence, once = bench.literal_basis(*small, 30)
    expected = literal.basis(*(tokens.numpy() for tokens in small), 30)
    for name, tensor in basis_functions(*small, 30).items():
        assert relative_error(found[name], tensor) < 1e-10, name
        assert relative_error(found[name], expected[name]) < 1e-10, name
    assert by_sequence > 0
    assert once > 0


def test_literal_covariance_is_ours(small: tuple) -> None:
    matrices = bench.covariance_matrices()
    expected = bench.literal_covariance(*matrices)
    assert expected == pytest.approx(covariance_cosine(*matrices), rel=1e-10)
    assert bench.covariances_of_layers(*matrices) == pytest.approx([expected] * 2, rel=1e-10)


def test_literal_sampling_obeys_the_task(small: tuple) -> None:
    """Within a sequence a trigger is always followed by the same token; others follow their bigrams."""
    task = bench.bigram_task()
    sequences = torch.from_numpy(bench.literal_sample(task, 200))
    for trigger in task.fixed_triggers:
        for sequence in sequences:
            following = sequence[1:][sequence[:-1] == trigger]
            assert len(following.unique()) <= 1
    free = ~torch.isin(sequences[:, :-1], task.fixed_triggers)
    pairs = torch.zeros(9, 9, dtype=torch.float64)
    pairs.view(-1).scatter_add_(
        0, (sequences[:, :-1] * 9 + sequences[:, 1:])[free], torch.ones(int(free.sum())).double()
    )
    seen = pairs.sum(dim=1) > 50
    conditional = pairs[seen] / pairs[seen].sum(dim=1, keepdim=True)
    assert (conditional - task.bigram[seen]).abs().max() < 0.25


def test_every_measurement_runs(small: tuple) -> None:
    for name in bench.measurements():
        found = bench.measure(name, *small)
        if "error" in found:
            assert 0 < found["error"] < (1e-5 if "step" in name else 1e-12), name
            continue
        assert found["seconds"] > 0, name
        assert found["peak_bytes"] > 1e7, name


def test_a_wrong_form_shows_as_an_error(small: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench.loss_and_gradients_plain

    def wrong(model: torch.nn.Module, *tokens: torch.Tensor) -> float:
        loss = right(model, *tokens)
        model.output.grad[0] *= 1.01
        return loss

    monkeypatch.setattr(bench, "loss_and_gradients_plain", wrong)
    assert bench.error_of("step", *small) > 1e-4


def test_rates_have_the_names_that_floors_read(small: tuple) -> None:
    assert set(bench.rates()) == set(RATES)


def test_floors_follow_their_counts(small: tuple) -> None:
    x, y = small
    rate = dict.fromkeys(RATES, 1.0)
    U, P = ([len(row.unique()) for row in tokens] for tokens in small)
    entries = sum(u * u + u * p for u, p in zip(U, P, strict=True))
    pairs = len(set(zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)))
    products = 3 * pairs * 30 + bench.PASSES * 900
    assert bench.basis_floor(x, y, 30, rate) == pytest.approx(products + entries + 10 * sum(U) + 10 * entries)
    assert bench.covariance_floor(rate) == 40 * (40 * 40 + 2 * (40 * 8 + 8 * 8))
    assert bench.sampling_floor(rate) == 6 * 12 * 5
    assert bench.step_floor(x, 30, rate) == 2 * bench.step_floor(x, 30, rate | {"multiply_adds_32": 2.0})


def test_the_file(small: tuple, monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: object) -> None:
    """The whole program with measurements of one second each: what the page reads is there, and no host name."""

    def measured(name: str, *_: object) -> dict:
        if name == "rates":
            return dict.fromkeys(RATES, 1e9)
        if name == "growth":
            return {
                what: {axis: [{"value": value, "seconds": 1.0}]}
                for what, axis, value, *_ in [("basis functions", "N", 12), ("training step", "V", 30)]
            }
        return {"error": 1e-7} if name.startswith("error") else {"seconds": 1.0, "peak_bytes": 10**8}

    def points(x: torch.Tensor, y: torch.Tensor) -> object:
        yield "basis functions", "N", 12, x, y, 30
        yield "training step", "V", 30, x, y, 30

    monkeypatch.setattr(
        bench,
        "load_corpus",
        lambda *_, **__: type("Corpus", (), {"inputs": small[0], "targets": small[1], "__len__": lambda _: 12})(),
    )
    monkeypatch.setattr(bench, "in_a_process", measured)
    monkeypatch.setattr(bench, "growth_points", points)
    monkeypatch.setattr(
        bench, "CASES", tuple(case for case in bench.CASES if "2,048" not in case.what or "basis" in case.what)
    )
    path = tmp_path / "benchmark.json"
    assert bench.main(["--output", str(path)]) == 0
    content = json.loads(path.read_text())
    assert {"command", "version", "torch", "cores", "threads", "clock", "seconds", "rates", "cases", "growth"} == set(
        content
    )
    assert all(case["floor_seconds"] > 0 for case in content["cases"])
    assert content["growth"]["training step"]["V"][0]["floor_seconds"] > 0
    assert "ratio" in capsys.readouterr().out
