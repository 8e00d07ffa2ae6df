"""Paper A, Table 3: a share of a leading term is taken out of a trained weight; what becomes of predictions?"""

from collections.abc import Mapping, Sequence
from html import escape

import torch
from ipywidgets import Text
from torch import Tensor

from assoc.corpus.tokens import word_index
from assoc.errors import InputError
from assoc.leading_terms.ablation import every_weight, frequency_terms, loss_without, parts, replaced
from assoc.leading_terms.basis import BasisFunctions
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.seeds import seeded
from assoc.widgets.explorer import Explorer, choice, live_box, slider
from assoc.widgets.pictures import Mark, bar, legend, line_chart, marks, panes, table

SHOWN = {"leading term": "#0072B2", "its frequencies": "#D55E00", "random": "#767676"}
"""The parts whose losses are drawn, with their colours."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

Places = Sequence[tuple[str, int]]


def removal_marks() -> dict[str, Mark]:
    """How the curve of each part looks."""
    return {name: Mark(SHOWN[name], *mark[1:]) for name, mark in marks(list(SHOWN)).items()}


def groups_of_weights(model: AttentionOnlyTransformer) -> dict[str, Places]:
    """What the explorer offers: the output matrix, the values of each layer, and all layers of each other kind."""
    layers = range(1, model.n_layers + 1)
    return {
        "output": [("output", 0)],
        **{f"value, layer {layer}": [("value", layer)] for layer in layers},
        **{f"{kind}, all layers": [(kind, layer) for layer in layers] for kind in ("value", "attention", "position")},
    }


@torch.no_grad()
def next_words(model: AttentionOnlyTransformer, sentence: Tensor, count: int = 6) -> list[tuple[int, float]]:
    """The most probable tokens after a sentence, int64 (T,), with their probabilities."""
    probabilities = model(sentence[None])[0, -1].double().softmax(dim=0)
    top = probabilities.topk(min(count, len(probabilities)))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def next_words_table(sentence: str, share: float, predictions: Sequence[tuple[str, float]]) -> str:
    """The words that come next, with probabilities, when a share of a leading term is missing."""
    largest = predictions[0][1]  # bars compare with the first word: after a removal all are small
    rows = [
        [escape(word), f"{probability:.1%}", f"<div class='track'>{bar(probability / largest)}</div>"]
        for word, probability in predictions
    ]
    return table(f"Next after “{sentence}”, without {share:g} of the leading term", ["word", "", ""], rows)


def tokens_of_sentence(sentence: str, vocabulary: Sequence[str], longest: int) -> Tensor:
    """Token numbers of words separated by spaces, int64 (T,). Raises InputError for other words, none or too many."""
    words = sentence.lower().split()
    if not 1 <= len(words) <= longest:
        raise InputError(f"the sentence has {len(words)} words: give 1 to {longest}, separated by spaces")
    return torch.tensor([word_index(list(vocabulary), word) for word in words])


def removal_picture(
    name: str,
    share: float,
    losses: Mapping[str, Sequence[float]],
    predictions: Sequence[tuple[str, float]],
    sentence: str,
    limits: tuple[float, float],
) -> str:
    """Loss over the share taken out, for each part, and the next words that are left at one share.

    Args:
        losses: part -> loss at each of `SHARES`. predictions: the most probable words, with probabilities.
        limits: the ends of the loss axis, the same for all weights so that they can be compared.
    """
    place = SHARES.index(share)
    now = ", ".join(f"{part} {values[place]:.2f}" for part, values in losses.items())
    chart = line_chart(
        SHARES,
        losses,
        removal_marks(),
        x_name="share taken out",
        y_name="loss in nats",
        description=f"Loss over the share taken out of {name}; at {share:g}: {now}",
        at=place,
        y_range=limits,
    )
    words = next_words_table(sentence, share, predictions)
    return f"<p>{escape(name)}, loss in nats without {share:g} of: {now}</p>{panes(chart, words)}"


def removal_explorer(
    model: AttentionOnlyTransformer,
    basis: BasisFunctions,
    inputs: Tensor,
    targets: Tensor,
    vocabulary: Sequence[str],
    sentence: str,
    seed: int = 0,
) -> Explorer:
    """Choose a weight and how much of its leading term to take out; see the loss, and the next word of a sentence.

    Beside the leading term, the curves take out its part along word frequencies, or a random direction as large.

    Args:
        model: trained. basis: basis functions of its data.
        inputs, targets: what the loss is measured on, int64 (N, T).
        vocabulary: the V words. sentence: words of it, separated by spaces.
        seed: of the random directions.

    Raises:
        InputError: an empty sentence, one longer than the model reads, or a word outside the vocabulary; a vocabulary
            of another size than the model's; a seed out of range.
    """
    if len(vocabulary) != model.vocab_size:
        raise InputError(f"the vocabulary has {len(vocabulary)} words, the model {model.vocab_size}: give its own")
    tokens_of_sentence(sentence, vocabulary, model.length)  # bad input is told before the work
    generator = seeded(seed)
    by_frequency = frequency_terms(basis, inputs, targets)
    weights = every_weight(model)
    taken = {
        place: parts(weight, basis.leading_term(place[0]), by_frequency[place[0]], generator)
        for place, weight in weights.items()
    }
    groups = groups_of_weights(model)
    losses = {
        name: {
            part: [
                loss_without(model, inputs, targets, {place: share * taken[place][part] for place in places})
                for share in SHARES
            ]
            for part in SHOWN
        }
        for name, places in groups.items()
    }

    every_loss = [value for curves in losses.values() for curve in curves.values() for value in curve]
    limits = (min(every_loss), max(every_loss))

    def predicted(text: str, name: str, share: float) -> list[tuple[str, float]]:
        left = {place: weights[place] - share * taken[place]["leading term"] for place in groups[name]}
        with replaced(model, left):
            found = next_words(model, tokens_of_sentence(text, vocabulary, model.length))
        return [(vocabulary[token], probability) for token, probability in found]

    def draw(name: str, share: float) -> str:
        return removal_picture(name, share, losses[name], predicted(sentence, name, share), sentence, limits)

    def any_sentence(text: str, name: str, share: float) -> str:
        return next_words_table(text, share, predicted(text, name, share)) if text.strip() else ""

    weight = choice("weight", [(name, name) for name in groups], "where the leading term is taken out")
    shares = slider("share taken out", [(f"{share:g}", share) for share in SHARES], "of the projection on the term")
    other = Text(
        description="another sentence",
        placeholder="words with spaces between",
        tooltip="words of the vocabulary with spaces between, then Enter",
        continuous_update=False,
        style={"description_width": "initial"},
    )
    return Explorer(
        "Taking out the leading term",
        "Choose a weight, then drag from nothing (0) over Table 3's removal (1) to the sign turned around (2).",
        [weight, shares],
        draw,
        legend=legend(removal_marks()),
        live=[live_box([other, weight, shares], any_sentence)],
    )
