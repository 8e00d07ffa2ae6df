"""The commands `basis`, `neighbours` and `train`, and the neighbours they print."""

import json

import numpy as np
import pytest
import torch

from assoc.__main__ import main
from assoc.corpus import load_corpus
from assoc.errors import InputError
from assoc.leading_terms import association, basis_functions, neighbours
from assoc.leading_terms.neighbours import strongest

SMALL = ["--vocab-size", "60", "--length", "12", "--max-sequences", "24", "--unknown", "map"]


@pytest.fixture(scope="module")
def stories() -> tuple:
    corpus = load_corpus("stories", vocab_size=600, length=64, unknown="map")
    return corpus, basis_functions(corpus.inputs, corpus.targets, corpus.vocab_size)


def test_normalised_associations(stories: tuple) -> None:
    _, basis = stories
    S = association(basis, "interchangeability", normalised=True)
    B = basis.bigram
    i, j = 17, 90
    by_hand = (B[:, i] @ B[:, j]) / (B[:, i].norm() * B[:, j].norm())
    assert float(S[i, j]) == pytest.approx(float(by_hand))
    assert float(S.diagonal().max()) == pytest.approx(1)
    for name in ("bigram", "context"):
        norms = association(basis, name, normalised=True).norm(dim=0)
        assert bool(((norms - 1).abs() < 1e-12).logical_or(norms == 0).all())
        assert torch.equal(association(basis, name), getattr(basis, name))


def test_words_that_never_occur_have_no_associations() -> None:
    basis = basis_functions(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), 3)
    for name in ("bigram", "interchangeability", "context"):
        assert association(basis, name, normalised=True).isfinite().all()


def test_neighbours_are_the_strongest_of_the_row(stories: tuple) -> None:
    corpus, basis = stories
    found = neighbours(basis, corpus.vocabulary, "red", "bigram", top=5)
    row = basis.bigram[corpus.index("red")]
    assert [n.strength for n in found] == sorted(row.tolist(), reverse=True)[:5]
    assert [row[corpus.index(n.word)] for n in found] == [n.strength for n in found]


def test_colours_are_interchangeable(stories: tuple) -> None:
    corpus, basis = stories
    found = neighbours(basis, corpus.vocabulary, "red", "interchangeability", top=15, normalised=True)
    words = [n.word for n in found]
    assert "red" not in words
    assert words[0] == "blue"
    colours = {"blue", "green", "yellow", "white", "pink", "black", "brown", "orange"}
    assert len(colours & set(words)) >= 3, words  # by chance 0.2


def test_ties_go_to_the_earlier_word() -> None:
    found = strongest(torch.tensor([1.0, 2.0, 1.0]), ["a", "b", "c"], top=3)
    assert [n.word for n in found] == ["b", "a", "c"]


def test_words_without_ties_are_not_listed(stories: tuple) -> None:
    """Fewer words follow "once" than are asked for; the others, at the level of chance or below, are no neighbours."""
    corpus, basis = stories
    index = corpus.index("once")
    followers = set(corpus.targets[corpus.inputs == index].tolist())
    found = neighbours(basis, corpus.vocabulary, "once", "bigram", top=600)
    assert 0 < len(found) <= len(followers)
    assert {corpus.index(n.word) for n in found} <= followers
    alone = basis_functions(torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), 3)
    assert neighbours(alone, ["a", "b", "c"], "c", "bigram") == []
    # A word may well stand before itself; only interchangeability leaves it out.
    assert "the" in [n.word for n in neighbours(basis, corpus.vocabulary, "the", "context", top=600)]


def test_neighbours_refuse_bad_input(stories: tuple) -> None:
    corpus, basis = stories
    cases = [
        ("zebrafish", "bigram", 5, "not among"),
        ("red", "trigram", 5, "choose one of"),
        ("red", "bigram", 0, "top"),
    ]
    for word, name, top, message in cases:
        with pytest.raises(InputError, match=message):
            neighbours(basis, corpus.vocabulary, word, name, top)
    with pytest.raises(InputError, match="the vocabulary has 1 words"):
        neighbours(basis, ["red"], "red", "bigram")


def test_basis_command_writes_all_six(tmp_path, capsys) -> None:
    output = tmp_path / "deep" / "basis.npz"
    assert main(["basis", *SMALL, "--output", str(output)]) == 0
    corpus = load_corpus("stories", vocab_size=60, length=12, max_sequences=24, unknown="map")
    expected = basis_functions(corpus.inputs, corpus.targets, 60)
    with np.load(output) as file:
        assert file["vocabulary"].tolist() == corpus.vocabulary
        for name, tensor in expected.items():
            assert np.array_equal(file[name], tensor.numpy())
    assert "attention" in capsys.readouterr().out
    assert [path.name for path in output.parent.iterdir()] == ["basis.npz"]


def test_neighbours_command(capsys) -> None:
    assert main(["neighbours", "the", "--top", "3", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(3 <= len(line.split()) <= 5 for line in lines)


def test_train_command_writes_a_history_with_what_made_it(tmp_path, capsys) -> None:
    output = tmp_path / "train.json"
    command = ["train", *SMALL, "--layers", "2", "--steps", "4", "--learning-rate", "0.5", "--output", str(output)]
    assert main(command) == 0
    history = json.loads(output.read_text())
    assert history["steps"] == [0, 1, 2, 3, 4]
    assert {"command", "version", "seed", "seconds", "loss", "agreements"} <= history.keys()
    assert len(history["agreements"][-1]) == 7
    printed = capsys.readouterr().out
    assert "s eta = 2: loss" in printed
    assert f"{history['agreements'][-1][0]['cosine']:.5f}" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--steps", "1", "--seed", "-1"], "seed"),
        (["train", "--steps", "1", "--seed", "9" * 30], "seed"),
        (["train", "--steps", "1", "--output", "."], "cannot write"),
        (["neighbours", "zebrafish"], "not among"),
        (["neighbours", "the", "--top", "0"], "top"),
        (["basis", "--output", "basis.csv"], "must end in .npz"),
        (["basis", "--corpus", "nowhere"], "nowhere"),
        (["train", "--steps", "0"], "steps"),
        (["train", "--learning-rate", "-1"], "learning_rate"),
        (["train", "--learning-rate", "nan"], "learning_rate"),
        (["train", "--layers", "0"], "n_layers"),
        (["train", "--batch-size", "1000"], "batch_size"),
        (["train", "--steps", "1", "--output", "/dev/null/x.json"], "cannot write"),
    ],
)
def test_bad_input_ends_in_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main([*arguments, *SMALL]) == 2
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in error


def test_the_place_is_checked_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assoc.leading_terms.cli.train", lambda *_, **__: pytest.fail("trained first"))
    assert main(["train", "--output", "/dev/null/x.json", *SMALL]) == 2


@pytest.mark.parametrize("option", [["--seed", "1"], ["--dtype", "float64"], ["--batch-size", "8"], ["--layers", "1"]])
def test_options_of_train_change_the_run(option: list[str], tmp_path, capsys) -> None:
    def run(*more: str) -> dict:
        output = tmp_path / "history.json"
        assert main(["train", *SMALL, "--steps", "4", "--batch-size", "12", *more, "--output", str(output)]) == 0
        return json.loads(output.read_text())

    plain, again, changed = run(), run(), run(*option)
    assert plain["agreements"] == again["agreements"]
    assert plain["agreements"] != changed["agreements"]
    assert " ".join(option) in changed["command"]


def test_unknown_options_end_in_one_line(capsys) -> None:
    for arguments in (["train", "--length", "abc"], ["nonsense"], []):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
