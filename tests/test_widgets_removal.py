"""The explorer of removed leading terms: its numbers against the library's own, its controls, and bad input."""

import pytest
import torch

from assoc import widgets
from assoc.errors import InputError
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, mean_cross_entropy, train
from assoc.leading_terms.ablation import projection
from assoc.widgets.removal import SHARES, next_words, tokens_of_sentence

VOCABULARY = ["the", ",", "bird", "fish", "<unk>", '"', "flew", "swam"]


@pytest.fixture(scope="module")
def trained():
    sequences = torch.randint(8, (12, 11), generator=torch.Generator().manual_seed(0)) // 2 * 2
    inputs, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    basis = basis_functions(inputs, targets, 8)
    model = AttentionOnlyTransformer(8, 10, 2)
    train(model, inputs, targets, learning_rate=0.5, steps=8, show_progress=False)
    return model, basis, inputs, targets


@pytest.fixture(scope="module")
def explorer(trained):
    return widgets.removal_explorer(*trained, VOCABULARY, "the bird")


def test_every_choice_has_a_picture_with_its_loss(trained, explorer) -> None:
    model, basis, inputs, targets = trained
    names = ["output", "value, layer 1", "value, layer 2"]
    names += [f"{kind}, all layers" for kind in ("value", "attention", "position")]
    assert set(explorer.frames) == {(name, f"{share:g}") for name in names for share in SHARES}
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        model.output -= 1.5 * projection(model.output, basis.bigram)
        loss = float(mean_cross_entropy(model, inputs, targets))
        probabilities = model(torch.tensor([[0, 2]]))[0, -1].softmax(dim=0)
        model.load_state_dict(before)
    frame = explorer.frames["output", "1.5"]
    assert f"leading term {loss:.2f}" in frame
    best = int(probabilities.argmax())
    assert f"{VOCABULARY[best]}</th><td>{float(probabilities[best]):.1%}" in frame


def test_drawing_leaves_the_model_as_it_was(trained) -> None:
    model = trained[0]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    widgets.removal_explorer(*trained, VOCABULARY, "the")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_pictures_differ_along_both_controls(explorer) -> None:
    assert len(set(explorer.frames.values())) == len(explorer.frames)


def test_another_sentence_is_answered_where_there_is_a_kernel(explorer) -> None:
    box = explorer.children[-1]
    text, answer = box.children
    text.value = "the fish swam"
    assert "Next after “the fish swam”" in answer.value
    text.value = "the whale"
    assert "whale" in answer.value
    assert "alert" in answer.value


def test_next_words_are_the_largest_probabilities(trained) -> None:
    model = trained[0]
    sentence = tokens_of_sentence("the fish", VOCABULARY, 10)
    expected = model(sentence[None])[0, -1].softmax(dim=0).tolist()
    found = next_words(model, sentence, 3)
    assert [p for _, p in found] == pytest.approx(sorted(expected, reverse=True)[:3])
    assert all(expected[token] == pytest.approx(p) for token, p in found)


@pytest.mark.parametrize(("sentence", "needle"), [("", "0 words"), ("the whale", "whale"), ("the " * 11, "11 words")])
def test_bad_sentences(trained, sentence: str, needle: str) -> None:
    with pytest.raises(InputError, match=needle):
        widgets.removal_explorer(*trained, VOCABULARY, sentence)
