"""Nano: a small GPT-NeoX, trained on the spot by Pythia's recipe scaled down, with Pythia's early checkpoints.

Pythia's checkpoints at steps 0, 1, 2, 4, .., 512 are what paper A (Section 5.2) compares with its leading terms. They
can't be had without a network; nano stands in for them: the same architecture (transformers' own GPTNeoXForCausalLM:
parallel residual, rotary positions in a quarter of each head, untied embeddings), start, optimiser and checkpoints,
but four to six layers, a vocabulary of words, and the book's stories.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from assoc.checks import MOST_LAYERS
from assoc.corpus import TokenSequences, load_corpus, load_texts
from assoc.errors import InputError, learning_rate_above_zero, whole_number
from assoc.leading_terms.basis import BasisFunctions, basis_functions, check_tokens
from assoc.llm.beyond import (
    Yardstick,
    all_tokens,
    frequency_groups,
    residual_features,
    score_features,
    shared_cosine,
    yardstick,
)
from assoc.llm.covariance import PreparedTerms, compare_layers, prepare_terms
from assoc.llm.models import LanguageModel, as_language_model, load_model
from assoc.llm.smollm2 import smollm2_path
from assoc.llm.statistics import token_statistics
from assoc.progress import progress
from assoc.seeds import seeded

KINDS = ("embedding", "without_mlp", "attention", "attention_transposed")
"""What of a layer is compared with a leading term, named as in `LayerAgreement`."""

RESIDUAL_STATISTICS = ("value", "bigram", "interchangeability", "context_transposed")
SCORE_STATISTICS = ("attention", "attention_transposed", "bigram", "value")
"""The statistics that residuals and scores are compared with beyond what tokens share: is it the leading term?"""


@dataclass(frozen=True)
class NanoSettings:
    """Size and training of a nano model.

    Attributes:
        n_layers, dim, n_heads: L, d, H. vocab_size, length: V and T of the corpus.
        batch_size: sequences of a step.
        learning_rate: of AdamW, once warm.
        warm_up: steps over which the rate rises in a straight line, 1,430 for Pythia: all the checkpoints up to step
            512 lie inside the warm-up.
    """

    n_layers: int = 6
    dim: int = 192
    n_heads: int = 6
    vocab_size: int = 2000
    length: int = 64
    batch_size: int = 8
    learning_rate: float = 1e-3
    warm_up: int = 1430


LIVE = NanoSettings(n_layers=4, dim=96, n_heads=4, vocab_size=1000, batch_size=16, learning_rate=3e-3, warm_up=256)
"""A smaller one with larger steps, which shows rise and fall within 128 of them and in seconds."""

BETAS, EPSILON, WEIGHT_DECAY, LARGEST_GRADIENT = (0.9, 0.95), 1e-8, 0.1, 1.0  # Pythia's
ROTARY_SHARE = 0.25  # Pythia's


def checkpoint_steps(last: int) -> list[int]:
    """Pythia's early checkpoints up to a step: 0, 1, 2, 4, 8, ..."""
    last = whole_number("last", last, minimum=1)
    return [0, *(2**k for k in range(last.bit_length()))]


def nano_model(settings: NanoSettings, generator: torch.Generator) -> LanguageModel:
    """An untrained nano model, with GPT-NeoX's start.

    Weights are drawn from N(0, 2/(5 d)), those that write to the residual from N(0, 4/(L^2 d)); biases are 0.

    Raises:
        InputError: sizes that no model can have.
    """
    _check(settings)
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM  # seconds, so only when needed

    config = GPTNeoXConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.dim,
        num_hidden_layers=settings.n_layers,
        num_attention_heads=settings.n_heads,
        intermediate_size=4 * settings.dim,
        max_position_embeddings=max(2048, settings.length),
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": ROTARY_SHARE},
        use_parallel_residual=True,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",  # so that attention maps can be read
    )
    with torch.random.fork_rng(devices=[]):  # the library draws a start of its own, from the global generator
        model = GPTNeoXForCausalLM(config)
    usual = math.sqrt(2 / (5 * settings.dim))
    writing = 2 / (settings.n_layers * math.sqrt(settings.dim))
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            to_residual = name.endswith(("attention.dense.weight", "mlp.dense_4h_to_h.weight"))
            nn.init.normal_(weight, std=writing if to_residual else usual, generator=generator)
    return as_language_model(model, name="nano")


@dataclass(frozen=True, eq=False)
class NanoRun:
    """A training run with its checkpoints.

    Attributes:
        settings: what was trained. losses: of each step's batch, before the step, in nats.
        checkpoints: step -> the model as it was after so many steps, in evaluation mode and without gradients.
    """

    settings: NanoSettings
    losses: list[float]
    checkpoints: Mapping[int, LanguageModel]


def train_nano(
    inputs: Tensor,
    targets: Tensor,
    settings: NanoSettings,
    steps: int,
    generator: torch.Generator,
    show_progress: bool = True,
) -> NanoRun:
    """Train a nano model on sequences, keeping copies of it at Pythia's early checkpoints.

    AdamW with beta = (0.9, 0.95), weight decay 0.1 on matrices, gradients cut to norm 1, a rate that rises in a
    straight line over the warm-up; batches of a fresh shuffle an epoch.

    Args:
        inputs, targets: int64 (N, T).
        settings: size of the model, batches and rates. steps: how many; the last checkpoint is at or before it.
        generator: draws the start and the shuffles.

    Raises:
        InputError: sizes that do not fit, or a loss that is not finite.
    """
    _check(settings)
    check_tokens(inputs, targets, settings.vocab_size)
    kept = checkpoint_steps(steps)
    if settings.batch_size > len(inputs):
        raise InputError(f"batch_size is {settings.batch_size}: give at most the number of sequences, {len(inputs)}")
    nano = nano_model(settings, generator)
    model = nano.model.train()
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if weight.ndim != 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=BETAS,
        eps=EPSILON,
    )
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / settings.warm_up))
    batches = _batches(len(inputs), settings.batch_size, generator)
    losses: list[float] = []
    checkpoints = {0: _frozen_copy(model, 0)}
    for step in progress(range(1, kept[-1] + 1), "training nano") if show_progress else range(1, kept[-1] + 1):
        batch = next(batches)
        logits = model(inputs[batch], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets[batch].flatten())
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise InputError(f"the loss is not finite after {step - 1} steps: lower the learning rate")
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimiser.step()
        warm_up.step()
        if step in kept:
            checkpoints[step] = _frozen_copy(model, step)
    return NanoRun(settings, losses, checkpoints)


def _batches(n_sequences: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(n_sequences, generator=generator)
        yield from order[: n_sequences - n_sequences % batch_size].split(batch_size)


def _frozen_copy(model: nn.Module, step: int) -> LanguageModel:
    return as_language_model(copy.deepcopy(model).eval().requires_grad_(False), name=f"nano at step {step}")


def _check(settings: NanoSettings) -> None:
    learning_rate_above_zero(settings.learning_rate)
    whole_number("n_layers", settings.n_layers, minimum=1, maximum=MOST_LAYERS)
    for name, value in asdict(settings).items():
        if name != "learning_rate":
            whole_number(name, value, minimum=2 if name in ("vocab_size", "length") else 1)
    head_dim, rest = divmod(settings.dim, settings.n_heads)
    if rest or head_dim % 8:
        raise InputError(
            f"dim {settings.dim} with {settings.n_heads} heads: give a multiple of 8 for each head, a quarter of "
            "which is rotated in pairs"
        )


# What its layers agree with


@dataclass(frozen=True, eq=False)
class Yardsticks:
    """What every layer is compared with: terms as in the paper, and statistics beyond what tokens share.

    Attributes:
        terms: of `prepare_terms`, as in paper A.
        plain: "embedding" and "attention" -> the value and the attention term, with nothing taken away.
        beyond_shared: kind -> name of a statistic -> yardstick without the mean over tokens.
        beyond_frequency: the same without the means over tokens of about equal frequency.
    """

    terms: PreparedTerms
    plain: Mapping[str, Yardstick]
    beyond_shared: Mapping[str, Mapping[str, Yardstick]]
    beyond_frequency: Mapping[str, Mapping[str, Yardstick]]


def prepare_yardsticks(basis: BasisFunctions, counts: Tensor) -> Yardsticks:
    """Yardsticks of a corpus: basis functions over n tokens, and how often each token occurs, (n,)."""
    statistics = {
        "value": basis.value,
        "bigram": basis.bigram,
        "interchangeability": basis.interchangeability,
        "context_transposed": basis.context.T,
        "attention": basis.attention,
        "attention_transposed": basis.attention.T,
    }
    compared = {"embedding": RESIDUAL_STATISTICS, "attention": SCORE_STATISTICS}

    def prepared(groups: Tensor) -> dict[str, dict[str, Yardstick]]:
        found = {name: yardstick(statistic, groups) for name, statistic in statistics.items()}
        return {kind: {name: found[name] for name in names} for kind, names in compared.items()}

    return Yardsticks(
        terms=prepare_terms(basis.value, basis.attention),
        plain={"embedding": yardstick(basis.value), "attention": yardstick(basis.attention)},
        beyond_shared=prepared(all_tokens(len(counts))),
        beyond_frequency=prepared(frequency_groups(counts)),
    )


def compare_beyond(model: LanguageModel, tokens: Tensor, yardsticks: Yardsticks) -> dict[str, Any]:
    """Every layer of a model against the leading terms, with the levels that say what the cosines mean.

    Args:
        model: a causal language model. tokens: those of the yardsticks, int64 (n,).

    Returns:
        Lists with a number a layer: "cosines", kind -> as in paper A; "heads", a list a layer; "shared", what all
        tokens share; "chance", shuffled tokens; "beyond_shared", "beyond_frequency": kind -> statistic -> cosines;
        "beyond_shared_chance".
    """
    layers = list(compare_layers(model, tokens, yardsticks.terms))
    found: dict[str, Any] = {
        "cosines": {kind: [getattr(layer, kind) for layer in layers] for kind in KINDS},
        "heads": [layer.heads for layer in layers],
    }
    found |= {name: {kind: [] for kind in yardsticks.plain} for name in ("shared", "chance", "beyond_shared_chance")}
    for name in ("beyond_shared", "beyond_frequency"):
        found[name] = {kind: {key: [] for key in sticks} for kind, sticks in getattr(yardsticks, name).items()}
    for layer, before, _, after in model.single_token_residuals(tokens):
        features = {
            "embedding": residual_features(after),
            "attention": score_features(before, model.mean_query_key(layer)),
        }
        for kind, C in features.items():
            found["shared"][kind].append(shared_cosine(C))
            found["chance"][kind].append(yardsticks.plain[kind].chance(C))
            leading = yardsticks.beyond_shared[kind]["value" if kind == "embedding" else "attention"]
            found["beyond_shared_chance"][kind].append(leading.chance(C))
            for name in ("beyond_shared", "beyond_frequency"):
                for key, stick in getattr(yardsticks, name)[kind].items():
                    found[name][kind][key].append(stick.cosine(C))
    return found


def levels(yardsticks: Yardsticks) -> dict[str, float]:
    """For each kind, the cosine of a model in which all tokens look the same."""
    terms = yardsticks.terms
    return {
        "embedding": terms.value.constant_cosine,
        "without_mlp": terms.value.constant_cosine,
        "attention": terms.attention.constant_cosine,
        "attention_transposed": terms.attention_transposed.constant_cosine,
    }


@lru_cache(maxsize=1)
def stories_for(settings: NanoSettings) -> tuple[TokenSequences, Yardsticks]:
    """The stories in a model's words, and their yardsticks."""
    corpus = load_corpus("stories", vocab_size=settings.vocab_size, length=settings.length, unknown="map")
    basis = basis_functions(corpus.inputs, corpus.targets, settings.vocab_size)
    return corpus, prepare_yardsticks(basis, corpus.inputs.flatten().bincount(minlength=settings.vocab_size))


def nano_point(seed: int, steps: int = 512, **sizes: Any) -> dict[str, Any]:
    """Train nano on the stories and compare each checkpoint: a point of the sweep 6a-nano.

    Args:
        seed: of start and shuffles. steps: the last checkpoint. sizes: of `NanoSettings`, where they differ.

    Returns:
        "steps", "loss" (mean since the checkpoint before), "levels", and what `compare_beyond` returns, where every
        list of layers has become a list of checkpoints with one number a layer in each.
    """
    settings = NanoSettings(**sizes)
    corpus, yardsticks = stories_for(settings)
    run = train_nano(corpus.inputs, corpus.targets, settings, steps, seeded(seed), show_progress=False)
    tokens = torch.arange(settings.vocab_size)
    records = [compare_beyond(model, tokens, yardsticks) for model in run.checkpoints.values()]
    return {
        "steps": list(run.checkpoints),
        "loss": mean_losses(run),
        "levels": levels(yardsticks),
        **by_checkpoint(records),
    }


def mean_losses(run: NanoRun) -> list[float]:
    """The mean loss of the batches since the checkpoint before; at step 0, the loss of the first batch."""
    marks = list(run.checkpoints)
    spans = [run.losses[:1], *(run.losses[a:b] for a, b in pairwise(marks))]
    return [sum(span) / len(span) for span in spans]


def by_checkpoint(records: Sequence[Any]) -> Any:
    """Records of one shape, dictionaries within dictionaries, as one in which each end is the list of theirs."""
    if not isinstance(records[0], Mapping):
        return list(records)
    return {key: by_checkpoint([record[key] for record in records]) for key in records[0]}


def model_point(model: str, n_tokens: int, length: int) -> dict[str, Any]:
    """A trained model at its end against the leading terms of the stories over its own tokens: a point of 6a-smollm2.

    Args:
        model: "smollm2", once fetched, or whatever `load_model` takes.
        n_tokens: most common tokens. length: T.
    """
    loaded = load_model(smollm2_path() if model == "smollm2" else model)
    statistics = token_statistics(load_texts("stories").texts, loaded.encode, n_tokens, length)
    yardsticks = prepare_yardsticks(statistics.basis, statistics.counts)
    return {
        "coverage": statistics.coverage,
        "n_sequences": statistics.n_sequences,
        "levels": levels(yardsticks),
        **compare_beyond(loaded, statistics.tokens, yardsticks),
    }


def position_point(model: str, n_tokens: int, seed: int) -> dict[str, Any]:
    """Residuals of random tokens at the first position, as paper A feeds them, and at the second, after another token.

    Returns:
        For "first" and "second", lists with a number a layer (the last left out): "norm", the mean norm of a token's
        residual after the layer, and "shared", the cosine of the tokens' covariance with the matrix of ones.
    """
    return positions_compared(load_model(smollm2_path() if model == "smollm2" else model), n_tokens, seeded(seed))


@torch.no_grad()
def positions_compared(model: LanguageModel, n_tokens: int, generator: torch.Generator) -> dict[str, Any]:
    """What `position_point` returns, of a model at hand. Raises InputError for more tokens than it has others."""
    n_tokens = whole_number("n_tokens", n_tokens, minimum=1, maximum=model.vocab_size - 1)
    tokens = torch.randperm(model.vocab_size, generator=generator)[: n_tokens + 1]
    found = {}
    for name, sequences in (
        ("first", tokens[1:, None]),
        ("second", torch.stack([tokens[:1].expand(n_tokens), tokens[1:]], dim=1)),
    ):
        states = model.model(sequences, output_hidden_states=True, use_cache=False).hidden_states[1:-1]
        residuals = [state[:, -1].double() for state in states]
        found[name] = {
            "norm": [float(x.norm(dim=1).mean()) for x in residuals],
            "shared": [shared_cosine(residual_features(x)) for x in residuals],
        }
    return found
