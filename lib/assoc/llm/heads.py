"""Induction heads in language models: how they are found, what they copy, and what is lost without them.

On a block of random tokens that is repeated once, nothing but the first copy tells what comes next in the second. So a
head that helps there is an induction head, and the loss on the second copy, against that on the first, is what a model
gains from its context. Layers and heads are counted from 0; `model` is a `LanguageModel` throughout.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, whole_number
from assoc.induction.memory import check_maps
from assoc.llm.models import LanguageModel

MAP_NUMBERS = 1 << 26  # numbers of attention maps and logits that one forward pass may return: 256 MB
HeadName = tuple[int, int]
"""Layer and head, from 0."""

FINAL_NORMS = {
    "gpt_neox": "gpt_neox.final_layer_norm",
    "llama": "model.norm",
    "mistral": "model.norm",
    "gpt2": "transformer.ln_f",
}
"""Path of the norm before the unembedding, by family."""


def repeated_blocks(
    vocabulary: int | Tensor, block_length: int, n_blocks: int, generator: torch.Generator | None = None
) -> Tensor:
    """Blocks of random tokens, each repeated once: int64 (n_blocks, 2 block_length).

    Within a block all tokens differ, so that each has one first occurrence.

    Args:
        vocabulary: the tokens to draw from, (n,); or their number V, for 0 to V - 1.

    Raises:
        InputError: a length below 2, no blocks, or fewer tokens than a block needs.
    """
    tokens = vocabulary if isinstance(vocabulary, Tensor) else torch.arange(whole_number("vocabulary", vocabulary, 1))
    length, n_blocks = whole_number("block_length", block_length, 2), whole_number("n_blocks", n_blocks, 1)
    if length > len(tokens):
        raise InputError(f"a block of {length} different tokens cannot be made of {len(tokens)}: give a shorter one")
    drawn = torch.stack([torch.randperm(len(tokens), generator=generator)[:length] for _ in range(n_blocks)])
    return tokens[drawn].repeat(1, 2)


def induction_score(attention: Tensor) -> Tensor:
    """Mean attention, from each token of the second copy, to the token after its first occurrence.

        mean over t = L .. 2L - 1 of a[t, t - L + 1]        (positions from 0)

    Args:
        attention: maps (..., 2L, 2L) on a block of L tokens that is repeated once.

    Returns:
        (...). Uniform attention gives about 1/(1.4 L), a perfect induction head 1.
    """
    length = attention.shape[-1] // 2
    if attention.shape[-2:] != (2 * length, 2 * length) or length < 2:
        raise InputError(f"attention must be (..., 2L, 2L) for a block of L >= 2; got {tuple(attention.shape)}")
    return attention.diagonal(1 - length, -2, -1)[..., 1:].mean(-1)  # t = L - 1 is still of the first copy


def previous_token_score(attention: Tensor) -> Tensor:
    """Mean attention from t to t - 1 over all t but the first, of maps (..., T, T): (...).

    Raises InputError for other shapes, or a single position.
    """
    check_maps(attention)
    return attention.diagonal(-1, -2, -1).mean(-1)


def next_token_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of each next token in nats, (B, T - 1), of logits (B, T, V) on tokens (B, T).

    Raises InputError for shapes that do not fit, or logits that are not finite.
    """
    check_numbers("logits", logits, (None, None, None))
    check_whole("tokens", tokens, tuple(logits.shape[:2]), below=logits.shape[2])
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")


class CopyLosses(NamedTuple):
    """Mean loss on the first and on the second copy of a block, in nats, for each sequence: (B,).

    The second begins at its second token: its first one cannot be known to be a repetition.
    """

    first: Tensor
    second: Tensor

    @property
    def gain(self) -> Tensor:
        """What the context is worth: the loss on the first copy less that on the second, (B,)."""
        return self.first - self.second


def copy_losses(losses: Tensor) -> CopyLosses:
    """`next_token_losses` (B, 2L - 1) of repeated blocks, as means over their two copies. InputError for others."""
    if losses.ndim != 2 or losses.shape[1] < 3 or losses.shape[1] % 2 == 0:
        raise InputError(f"losses must be (B, 2L - 1) of blocks of L >= 2; got {tuple(losses.shape)}")
    length = (losses.shape[1] + 1) // 2
    return CopyLosses(losses[:, : length - 1].mean(1), losses[:, length:].mean(1))


@dataclass(frozen=True, eq=False)
class HeadScores:
    """What all heads do on repeated blocks.

    Attributes:
        induction, previous_token: of each head on each block, (B, layers, heads).
        losses: of each next token, in nats, (B, 2L - 1).
    """

    induction: Tensor
    previous_token: Tensor
    losses: Tensor

    def best(self, score: str, n_heads: int) -> list[HeadName]:
        """The heads of the highest mean "induction" or "previous_token" score, the best first.

        Raises InputError for another score, or more heads than there are.
        """
        if score not in ("induction", "previous_token"):
            raise InputError(f"there is no score {score!r}: choose induction or previous_token")
        return best_heads(getattr(self, score).mean(0), n_heads)


def best_heads(scores: Tensor, n_heads: int) -> list[HeadName]:
    """The (layer, head) of the n highest scores, the best first, of scores (layers, heads).

    Raises:
        InputError: more heads than there are.
    """
    n_heads = whole_number("n_heads", n_heads, minimum=0)
    check_numbers("scores", scores, (None, None))
    if n_heads > scores.numel():
        raise InputError(f"there are {scores.numel()} heads, not {n_heads}: ask for fewer")
    flat = scores.flatten().argsort(descending=True, stable=True)[:n_heads]
    return [(int(place) // scores.shape[1], int(place) % scores.shape[1]) for place in flat]


@torch.no_grad()
def head_scores(model: LanguageModel, tokens: Tensor) -> HeadScores:
    """Scores of every head, and the losses, on `repeated_blocks` (B, 2L); a few blocks at a time.

    Raises:
        InputError: no tokens of this model, or not an even number of positions.
    """
    _check_tokens(model, tokens)
    length = tokens.shape[1]
    if length % 2 or length < 4:
        raise InputError(f"the sequences have {length} tokens: give blocks of at least 2 that are repeated once")
    parts = []
    at_once = _at_once(length * (model.n_layers * model.n_heads * length + model.vocab_size))
    for chunk in tokens.split(at_once):
        result = model.model(chunk, output_attentions=True, use_cache=False)
        maps = result.attentions
        scores = [torch.stack([score(a) for a in maps], 1) for score in (induction_score, previous_token_score)]
        parts.append((*scores, next_token_losses(result.logits, chunk)))
    return HeadScores(*(torch.cat(values) for values in zip(*parts, strict=True)))


@torch.no_grad()
def sequence_losses(model: LanguageModel, tokens: Tensor) -> Tensor:
    """`next_token_losses` (B, T - 1) of tokens (B, T), a few sequences at a time."""
    _check_tokens(model, tokens)
    at_once = _at_once(tokens.shape[1] * model.vocab_size)
    return torch.cat([next_token_losses(model.model(c, use_cache=False).logits, c) for c in tokens.split(at_once)])


def attention_of(model: LanguageModel, tokens: Tensor, heads: Sequence[HeadName]) -> Tensor:
    """Attention maps of some heads on tokens (B, T): (B, len(heads), T, T). InputError without heads, or for others."""
    _check_tokens(model, tokens)
    if not _by_layer(model, heads):
        raise InputError("there are no heads to look at: give at least one (layer, head)")
    with torch.no_grad():
        maps = model.model(tokens, output_attentions=True, use_cache=False).attentions
    return torch.stack([maps[layer][:, head] for layer, head in heads], 1)


# Removing heads


@contextmanager
def ablated(model: LanguageModel, heads: Sequence[HeadName], means: Tensor | None = None) -> Iterator[None]:
    """Inside this context, the outputs of these heads are zero, or their means, at every position.

    A head's output is its attention-weighted mean of values, (T, k), before W_O: with zero, the head adds nothing to
    the residual, as if its k rows of W_O were zero. On exit everything is as it was.

    Args:
        means: of `head_means`, (layers, heads, k), instead of zero.

    Raises:
        InputError: a head that the model does not have, or means of another shape.
    """
    chosen = _by_layer(model, heads)
    if means is not None:
        check_numbers("means", means, (model.n_layers, model.n_heads, model.head_dim))
    with ExitStack() as hooks:
        for layer, of_layer in chosen.items():
            values = torch.zeros(len(of_layer), model.head_dim) if means is None else means[layer, of_layer]

            def replace(
                _: nn.Module, arguments: tuple[Tensor, ...], of_layer: list[int] = of_layer, values: Tensor = values
            ) -> tuple[Tensor]:
                by_head = arguments[0].unflatten(-1, (model.n_heads, model.head_dim)).clone()
                by_head[..., of_layer, :] = values.to(by_head.dtype)
                return (by_head.flatten(-2),)

            hooks.callback(model.output_projection(layer).register_forward_pre_hook(replace).remove)
        yield


@torch.no_grad()
def head_means(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Mean output of each head, before W_O, over all positions of tokens (B, T): (layers, heads, k)."""
    _check_tokens(model, tokens)
    means = torch.zeros(model.n_layers, model.n_heads, model.head_dim, dtype=model.embedding.dtype)
    with ExitStack() as hooks:
        for layer in range(model.n_layers):

            def keep(_: nn.Module, arguments: tuple[Tensor, ...], layer: int = layer) -> None:
                means[layer] += arguments[0].unflatten(-1, means.shape[1:]).sum((0, 1))

            hooks.callback(model.output_projection(layer).register_forward_pre_hook(keep).remove)
        for chunk in tokens.split(_at_once(tokens.shape[1] * model.vocab_size)):
            model.model(chunk, use_cache=False)
    return means / tokens.numel()


def random_heads(
    model: LanguageModel,
    n_heads: int,
    generator: torch.Generator | None = None,
    *,
    without: Sequence[HeadName] = (),
    like: Sequence[HeadName] | None = None,
) -> list[HeadName]:
    """Heads drawn at random without repeats, as a control for the removal of chosen ones.

    Args:
        without: heads that are not drawn.
        like: draw one head from the layer of each of these, as long as the layer has any left; else from any layer.

    Raises:
        InputError: fewer heads than asked for are left.
    """
    n_heads = whole_number("n_heads", n_heads, minimum=0)
    layers, kept_out = model.n_layers, set(without)
    free = [(layer, head) for layer in range(layers) for head in range(model.n_heads) if (layer, head) not in kept_out]
    if n_heads > len(free):
        raise InputError(f"there are {len(free)} other heads to draw {n_heads} from: ask for fewer")
    free = [free[place] for place in torch.randperm(len(free), generator=generator)]
    drawn = []
    for layer, _ in list(like or ())[:n_heads]:
        pick = next((head for head in free if head[0] == layer), None)
        if pick is not None:
            free.remove(pick)
            drawn.append(pick)
    return drawn + free[: n_heads - len(drawn)]


# What a head copies


class Copying(NamedTuple):
    """Does a head that attends to a token raise the logit of that token? Each (heads,), of one layer.

    Attributes:
        rank: mean share of the vocabulary that the token's logit beats. 0.5 by chance, 1 if it is always on top.
        top: share of tokens that are among the TOP highest logits. TOP/V by chance.
    """

    rank: Tensor
    top: Tensor


TOP = 10


@torch.no_grad()
def copying(model: LanguageModel, layer: int, tokens: Tensor, residuals: Tensor | None = None) -> Copying:
    """What the heads of a layer say of a token they attend to: the logits W_U W_OV w_E(v), for each token v.

    On rows, (w_E(v) * g) W_V W_O * g' times W_U', with the gains g and g' of the norms before the attention
    and before the unembedding, both centred where the norm centres. (Other scales do not change ranks.) Biases, and all
    that other layers do, are left out. The map has the rank k of a head, and is never formed as V x V.

    Args:
        tokens: the v whose logits are ranked, int64 (n,).
        residuals: what the tokens have become when they enter the layer, (n, d), of `residuals_of`; the ranks are then
            those of norm(residual) W_V W_O, in place of the embeddings.

    Raises:
        InputError: no tokens of this model, or residuals of another shape.
    """
    check_whole("tokens", tokens, (None,), below=model.vocab_size)
    if residuals is not None:
        check_numbers("residuals", residuals, (len(tokens), model.dim), dtype=model.embedding.dtype)
    heads, norm = model.heads(layer), model.attention_norm(layer)
    entering = through_gain(model.embedding[tokens], norm) if residuals is None else norm(residuals)
    rank, top = torch.zeros(model.n_heads), torch.zeros(model.n_heads)
    for head in range(model.n_heads):
        to_logits = through_gain(heads.output[head], final_norm(model)) @ model.unembedding.T
        rank[head], top[head] = _standing(entering @ heads.value[head], to_logits, tokens)
    return Copying(rank, top)


def _standing(values: Tensor, to_logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Mean share of logits values @ to_logits, (n, k) by (k, V), that each row's token beats, and its share in TOP."""
    beaten, in_top = [], []
    at_once = _at_once(to_logits.shape[1])
    for rows, own in zip(values.split(at_once), tokens.split(at_once), strict=True):
        logits = rows @ to_logits
        mine = logits.gather(1, own[:, None])
        beaten.append((logits < mine).double().mean(1))
        in_top.append(((logits > mine).sum(1) < TOP).double())
    return torch.cat(beaten).mean(), torch.cat(in_top).mean()


@torch.no_grad()
def residuals_of(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, ...]:
    """What enters each layer on tokens (B, T): one (B, T, d) a layer."""
    _check_tokens(model, tokens)
    return model.model(tokens, output_hidden_states=True, use_cache=False).hidden_states[: model.n_layers]


def final_norm(model: LanguageModel) -> nn.Module:
    """The norm between the last residual and the unembedding."""
    return model.model.get_submodule(FINAL_NORMS[model.model.config.model_type])


def through_gain(rows: Tensor, norm: nn.Module) -> Tensor:
    """Rows as a norm's fixed part sees them: centred if it centres, times its gain; without its scale and bias."""
    rows = rows.detach()
    if isinstance(norm, nn.LayerNorm):
        rows = rows - rows.mean(-1, keepdim=True)
    return rows * norm.weight.detach()


# Which head provides what another looks for


@torch.no_grad()
def composition_recall(model: LanguageModel, tokens: Tensor, head: HeadName) -> Tensor:
    """How well each earlier head provides the keys of an induction head: (layers below, H).

    Paper B's W_K2 (Section 4.2) joins the query w_E(k) to the key w_1(k), which says "the token before was k". Here the
    query is that of the head, at each place t of the second copy but its first. Candidate keys are what the earlier
    head would write when it attends to a place s of the first copy, norm(x_s) W_V W_O * g, through W_K; g is the gain
    of the head's norm. Recall is the share of t whose best candidate is the same token, s = t - L. 1/(L - 1) by chance.

    Biases and rotation are left out.

    Args:
        tokens: `repeated_blocks` (B, 2L).

    Raises:
        InputError: no such head, none below it, or no repeated blocks.
    """
    _by_layer(model, [head])
    _check_tokens(model, tokens)
    if tokens.shape[1] % 2 or tokens.shape[1] < 4:
        raise InputError(
            f"the sequences have {tokens.shape[1]} tokens: give blocks of at least 2 that are repeated once"
        )
    layer, number = head
    if layer == 0:
        raise InputError("heads of layer 0 have none below them: give one of a higher layer")
    entering = residuals_of(model, tokens)
    length = tokens.shape[1] // 2
    own, norm = model.heads(layer), model.attention_norm(layer)
    queries = norm(entering[layer][:, length + 1 :]) @ own.query[number]  # (B, L - 1, k)
    result = torch.zeros(layer, model.n_heads)
    for below in range(layer):
        heads = model.heads(below)
        seen = model.attention_norm(below)(entering[below][:, 1:length])[:, None]  # (B, 1, L - 1, d)
        keys = through_gain(seen @ heads.value @ heads.output, norm) @ own.key[number]  # (B, H, L - 1, k)
        best = (queries[:, None] @ keys.transpose(2, 3)).argmax(3)
        result[below] = (best == torch.arange(length - 1)).double().mean((0, 2))
    return result


# What a head sees of positions alone


@torch.no_grad()
def distance_scores(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Attention scores of each head's mean query with its mean key, by their distance: (layers, H, T).

        score(n) = mean(q)' R^n mean(k) / sqrt(k),    n = 0 .. T - 1

    Queries and keys (biases and norms included) are averaged over tokens (B, T), all positions but the first, before
    they are rotated; R is the rotation of one position. This part of the scores is the same for all tokens.

    Raises:
        InputError: a model without rotary positions.
    """
    _check_tokens(model, tokens)
    rotary = getattr(model.model.base_model, "rotary_emb", None)
    if rotary is None:
        raise InputError(f"{model.name} has no rotary positions: its scores are not a function of distance")
    query, key = _mean_queries_and_keys(model, tokens)
    cosines, sines = (wave[0] for wave in rotary(query, torch.arange(tokens.shape[1])[None]))  # (T, r), r <= k
    size, half = cosines.shape[1], cosines.shape[1] // 2
    turned, rest = query[..., None, :size], query[..., None, size:]
    quarter_turn = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
    rotated = torch.cat([turned * cosines + quarter_turn * sines, rest.expand(-1, -1, len(cosines), -1)], dim=-1)
    return (rotated @ key[..., None])[..., 0] / model.head_dim**0.5


def attention_by_distance(scores: Tensor) -> Tensor:
    """Causal attention (..., T, T) by distance alone, of scores (..., T): a[t, s] = softmax over s of scores[t - s].

    Raises InputError for scores that are no finite floating-point numbers.
    """
    check_numbers("scores", scores, (None,) * scores.ndim)
    length = scores.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return scores[..., distance.clamp(min=0)].masked_fill(distance < 0, -torch.inf).softmax(-1)


def _mean_queries_and_keys(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Mean query and key of each head before rotation, (layers, H, k) each; shared keys are repeated."""
    names = model.layout.projections
    sums: dict[str, list[Tensor | float]] = {name: [0.0] * model.n_layers for name in names}
    with ExitStack() as hooks:
        for layer in range(model.n_layers):
            for name in names:

                def keep(_: nn.Module, __: Any, output: Tensor, layer: int = layer, name: str = name) -> None:
                    sums[name][layer] += output[:, 1:].sum((0, 1))

                projection = model.attention_module(layer).get_submodule(name)
                hooks.callback(projection.register_forward_hook(keep).remove)
        for chunk in tokens.split(_at_once(tokens.shape[1] * model.vocab_size)):
            model.model(chunk, use_cache=False)
    means = [torch.stack(totals).unflatten(1, (-1, model.head_dim)) / tokens[:, 1:].numel() for totals in sums.values()]
    if len(names) == 1:  # [query, key, value] of each head in turn
        return means[0][:, 0::3], means[0][:, 1::3]
    return means[0], means[1].repeat_interleave(model.n_heads // model.n_key_value_heads, dim=1)


@torch.no_grad()
def position_scores(model: LanguageModel, layer: int = 0) -> Tensor:
    """Attention scores that learned positions alone give, p_t W_Q (p_s W_K)'/sqrt(k): (H, T, T), row t the query.

    Positions go through the fixed part of the norm before attention.

    Raises:
        InputError: a model without learned positions.
    """
    positions = getattr(model.model.base_model, "wpe", None)
    if positions is None:
        raise InputError(f"{model.name} has no learned positions: see distance_scores")
    heads, entering = model.heads(layer), through_gain(positions.weight, model.attention_norm(layer))
    return (entering @ heads.query) @ (entering @ heads.key).transpose(1, 2) / model.head_dim**0.5


def _by_layer(model: LanguageModel, heads: Sequence[HeadName]) -> dict[int, list[int]]:
    """Layer -> its heads among these; InputError for a head that is not there."""
    chosen: dict[int, list[int]] = {}
    for name in heads:
        try:
            layer, head = map(operator.index, name)
        except (TypeError, ValueError):
            raise InputError(f"a head is {name!r}: give (layer, head), two whole numbers") from None
        if not (0 <= layer < model.n_layers and 0 <= head < model.n_heads):
            raise InputError(
                f"{model.name} has no head {layer}.{head}: layers go from 0 to {model.n_layers - 1}, heads to "
                f"{model.n_heads - 1}"
            )
        chosen.setdefault(layer, []).append(head)
    return chosen


def _at_once(numbers_each: int) -> int:
    """How many sequences, or rows, of so many numbers each one pass may hold."""
    return max(1, MAP_NUMBERS // numbers_each)


def _check_tokens(model: LanguageModel, tokens: Tensor) -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 2 or not len(tokens):
        raise InputError("tokens must be an int64 tensor (B, T) with B >= 1")
    length = tokens.shape[1]
    longest = getattr(model.model.config, "max_position_embeddings", None) or length
    if not 2 <= length <= longest:
        raise InputError(f"sequences of {length} tokens: {model.name} takes from 2 to {longest} here")
    _check_known(model, tokens)


def _check_known(model: LanguageModel, tokens: Tensor) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= model.vocab_size:
        raise InputError(f"tokens run from {low} to {high}; {model.name} knows 0 to {model.vocab_size - 1}")
