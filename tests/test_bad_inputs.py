"""The book's promise on bad input, across the library and the command line, in one place.

Bad input ends in one line that says what to do: in the library as an `InputError`, on the command line as `error: ...`
with status 2 and nothing else. Nothing is left half-written, by a refusal, a full disk or Ctrl-C.

What one module alone is asked for is in its own tests: corpora and tokenizers in test_corpus, test_bpe and
test_cli_corpus; paper A in test_leading_terms_* and test_recovery; paper B in test_induction_*; language models, broken
checkpoints and hubs in test_llm_*; widgets in test_widgets*; the ledger in test_ledger; sweeps that are stopped in
test_sweeps; files in test_files; a run that is killed in test_leading_terms_checkpoint.
"""

import copy
import io
import json
import math
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from assoc import distributed, files, ledger, together, widgets
from assoc.__main__ import main
from assoc.corpus import load_corpus, load_texts
from assoc.corpus.bpe import bpe_tokenizer
from assoc.corpus.tokens import word_index
from assoc.errors import InputError, finite_number, whole_number
from assoc.induction import (
    AssociativeTransformer,
    BigramTask,
    FullTransformer,
    InductionHistory,
    OneLayerTransformer,
    after_trigger_attention,
    alignment,
    capacity,
    cross_talk,
    display,
    filtered_memory,
    ideal_memories,
    induction_predictions,
    install_ideal_memories,
    lemma1_gradient,
    lemma2_gradient,
    memory_recall,
    memory_tables,
    noisy_inputs,
    outer_product_memory,
    previous_token_attention,
    recalls,
    statistics,
    three_step_runs,
    three_steps,
    train_induction,
)
from assoc.leading_terms import (
    AttentionAndPosition,
    AttentionOnlyTransformer,
    BigramAndContext,
    ablation,
    basis_functions,
    basis_functions_of_batches,
    bounds_apply,
    compare_with_leading_terms,
    conditions,
    corrections,
    cosine,
    error_bounds,
    gradients,
    leading_terms,
    limits,
    loss_and_gradients,
    mean_cross_entropy,
    model,
    neighbours,
    products,
    recovery,
    remove_projection,
    step_coefficients,
    theory,
    train,
)
from assoc.leading_terms.basis import attention_and_position, context
from assoc.llm import as_language_model, beyond, covariance, heads, load_model, models, nano, token_statistics
from assoc.llm import removal as llm_removal
from assoc.llm.birth import SmallTransformer, stored_pairs
from assoc.llm.smollm2 import fetch_smollm2, smollm2_path
from assoc.seeds import seeded
from assoc.sweeps import Sweep, load_results, rounded
from assoc.widgets.explorer import Explorer

STORY = "the cat sat on the mat and the dog sat on the cat"
V, T = 8, 6


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@cache
def made() -> SimpleNamespace:
    """Good input of every kind, small; no test changes it."""
    t = SimpleNamespace()
    t.x = torch.randint(V, (5, T), generator=torch.Generator().manual_seed(0))
    t.y = t.x.roll(-1, dims=1)
    t.basis = basis_functions(t.x, t.y, V)
    t.words = list("abcdefgh")
    t.model = model.gaussian_start(AttentionOnlyTransformer(V, T, 2), 1.0, torch.Generator().manual_seed(1))
    t.weight = t.model.value[0].detach()
    t.moments = corrections.moments(t.x, t.y, V, 2)
    t.labels = torch.tensor([0, 0, 0, 1, 1])
    table = torch.full((V, V), 1 / V, dtype=torch.float64)
    t.task = BigramTask(table[0], table, length=T, n_triggers=2, vocabulary=t.words)
    t.batch = t.task.sample_sequences(5, torch.Generator().manual_seed(2))
    t.two = AssociativeTransformer(V, T, 8, generator=torch.Generator().manual_seed(3))
    t.one = OneLayerTransformer(V, T, 8, generator=torch.Generator().manual_seed(4))
    t.trigger = three_steps.OneTrigger(16, 8)
    t.examples = t.trigger.sample(20, torch.Generator().manual_seed(5))
    t.tables = three_steps.zero_tables(t.trigger)
    t.overlaps = three_steps.Overlaps.random(t.trigger, 8, torch.Generator().manual_seed(6))
    t.corpus = load_corpus("stories", vocab_size=9, length=4, unknown="map", max_texts=40)
    t.onehot = together.OneHotTransformer(V, T, 2, dtype=torch.float64)
    return t


@cache
def small_gpt() -> models.LanguageModel:
    settings = nano.NanoSettings(n_layers=2, dim=16, n_heads=2, vocab_size=20, length=8, batch_size=2, warm_up=2)
    return nano.nano_model(settings, torch.Generator().manual_seed(0))


def spoilt(original: torch.nn.Module, number: float = math.nan) -> Any:
    """The model with one number of its weights replaced."""
    changed = copy.deepcopy(original)
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] = number
    return changed


def use(result: object) -> None:
    """What a caller does with a result: goes through it, or enters it."""
    if isinstance(result, Iterator):
        list(result)
    elif hasattr(result, "__enter__"):
        with result:
            pass


def refused(make: Callable[[], object], *, words: str = "") -> str:
    """The one line with which `make` refuses its input."""
    with pytest.raises(InputError) as caught:
        use(make())
    message = str(caught.value)
    assert "\n" not in message
    assert 10 < len(message) < 600
    assert words in message, message
    return message


# What the promise names, in the library

PROMISED: list[tuple[Callable[[SimpleNamespace], object], str]] = [
    (lambda t: load_corpus("no such corpus"), "no corpus"),
    (lambda t: load_texts(""), "no corpus"),
    (lambda t: BigramTask.from_text("", length=8, n_triggers=1), "longer text"),
    (lambda t: token_statistics([], list, 3, 4), "longest of 0"),
    (lambda t: neighbours(t.basis, t.words, "zebra", "bigram"), "not among"),
    (lambda t: t.task.decode(torch.tensor([V])), "from 0 to 7"),
    (lambda t: widgets.association_explorer(t.basis, t.words, ["zebra"]), "not among"),
    (lambda t: widgets.removal_explorer(t.model, t.basis, t.x, t.y, t.words, "a zebra"), "not among"),
    (lambda t: load_corpus("stories", vocab_size=50, length=10_000, unknown="map"), "use length"),
    (lambda t: load_corpus("stories", vocab_size=50, length=1, unknown="map"), "length is 1"),
    (lambda t: BigramTask.from_text(STORY, length=1, n_triggers=1), "length is 1"),
    (lambda t: previous_token_attention(torch.ones(1, 1)), "T >= 2"),
    (lambda t: heads.previous_token_score(torch.ones(1, 1)), "T >= 2"),
    (lambda t: heads.head_scores(small_gpt(), torch.ones(2, 1, dtype=torch.int64)), "1 tokens"),
    (lambda t: compare_with_leading_terms(spoilt(t.model), t.basis), "not finite"),
    (lambda t: gradients(spoilt(t.model), t.x, t.y), "not finite"),
    (lambda t: products.mean_loss(spoilt(t.model), t.x, t.y), "not finite"),
    (lambda t: train(spoilt(t.model), t.x, t.y, 0.1, 1, show_progress=False), "not finite"),
    (lambda t: limits.descend(spoilt(t.model), t.x, t.y, 0.1, 1), "not finite"),
    (lambda t: ablation.ablate(spoilt(t.model), t.basis, t.x, t.y, torch.Generator()), "finite"),
    (lambda t: memory_tables(spoilt(t.two)), "not finite"),
    (lambda t: recalls(spoilt(t.two), t.task), "finite"),
    (lambda t: alignment.signal_to_noise(spoilt(t.two), t.task), "not finite"),
    (lambda t: alignment.gradient_alignment(spoilt(t.two), t.task, t.batch), "not finite"),
    (lambda t: train_induction(spoilt(t.two), t.task, steps=1, batch_size=2, learning_rate=0.1), "not finite"),
    (lambda t: together.head_recalls(spoilt(t.onehot), t.task), "not finite"),
    (lambda t: together.mark_gradient(spoilt(t.onehot.weights), t.x, t.y), "not finite"),
    (lambda t: as_language_model(t.two), "causal language model"),
    (lambda t: as_language_model(small_gpt().model.base_model), "predicts no tokens"),
]


@pytest.mark.parametrize("case", range(len(PROMISED)))
def test_the_promise_in_the_library(case: int) -> None:
    make, words = PROMISED[case]
    refused(lambda: make(made()), words=words)


@pytest.mark.parametrize(
    "config", [{"model_type": "bert", "architectures": ["BertForMaskedLM"]}, {"model_type": "t5"}, {}, [], "gpt2"]
)
def test_a_checkpoint_of_another_kind(config: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(lambda: load_model(tmp_path))


# Whole numbers: sizes, counts, seeds

NO_WHOLE_NUMBERS = (True, 1.5, -1, "3", 10**30, None, math.nan, torch.tensor([1, 2]))

Call = tuple[Callable[..., object], dict[str, Any]]

WHOLE: dict[str, tuple[Callable[[SimpleNamespace], Call], str]] = {
    "whole_number": (lambda t: (lambda value: whole_number("n", value, 0), {"value": 3}), "value"),
    "seeded": (lambda t: (seeded, {"seed": 3}), "seed"),
    "word": (lambda t: (t.corpus.word, {"index": 0}), "index"),
    "bpe": (lambda t: (bpe_tokenizer, {"texts": ["ab ab"], "vocab_size": 9}), "vocab_size"),
    "basis": (lambda t: (basis_functions, {"inputs": t.x, "targets": t.y, "vocab_size": V}), "vocab_size"),
    "second pass": (lambda t: (AttentionAndPosition, {"association": t.basis.context, "length": T}), "length"),
    "coefficients": (lambda t: (step_coefficients, {"steps": 3, "learning_rate": 0.1}), "steps"),
    "bounds": (
        lambda t: (error_bounds, {"steps": 3, "learning_rate": 0.1, "length": 9, "n_layers": 2}),
        "steps n_layers",
    ),
    "apply": (
        lambda t: (bounds_apply, {"steps": 3, "learning_rate": 0.1, "length": 9, "vocab_size": 9, "n_layers": 2}),
        "length vocab_size n_layers",
    ),
    "probability": (
        lambda t: (theory.gaussian_start_probability, {"vocab_size": 9, "n_layers": 2}),
        "vocab_size n_layers",
    ),
    "paper A's model": (
        lambda t: (AttentionOnlyTransformer, {"vocab_size": V, "length": T, "n_layers": 1}),
        "vocab_size length n_layers",
    ),
    "train": (
        lambda t: (
            train,
            {"model": t.model, "inputs": t.x, "targets": t.y, "learning_rate": 0.1, "steps": 1, "show_progress": False}
            | {"batch_size": 2, "record_every": 1, "checkpoint_every": 1, "generator": torch.Generator()},
        ),
        "batch_size record_every checkpoint_every",
    ),
    "clock": (lambda t: (conditions.clock, {"basis": t.basis, "n_layers": 2}), "n_layers"),
    "condition": (
        lambda t: (conditions.agreement_under, {"seed": 0, "steps": 4, "record_every": 4, "n_sequences": 8}),
        "steps record_every n_sequences",
    ),
    "moments": (
        lambda t: (corrections.moments, {"inputs": t.x, "targets": t.y, "vocab_size": V, "n_averages": 2}),
        "vocab_size",
    ),
    "feedback": (
        lambda t: (
            corrections.feedback_attention,
            {"inputs": t.x, "targets": t.y, "statistics": t.moments, "n_layers": 2, "learning_rate": 0.1, "steps": 2},
        ),
        "n_layers",
    ),
    "skip": (
        lambda t: (recovery.context_against_frequencies, {"inputs": t.x, "targets": t.y, "vocab_size": V, "skip": 1}),
        "skip",
    ),
    "topical": (
        lambda t: (
            recovery.topical_words,
            {"inputs": t.x, "labels": t.labels, "vocab_size": V, "minimum": 1, "per_theme": 1},
        ),
        "vocab_size minimum per_theme",
    ),
    "hold out": (
        lambda t: (recovery.hold_out, {"labels": t.labels, "per_label": 1, "generator": torch.Generator()}),
        "per_label",
    ),
    "shares": (lambda t: (recovery.word_shares, {"inputs": t.x, "vocab_size": V}), "vocab_size"),
    "paper B's model": (
        lambda t: (AssociativeTransformer, {"vocab_size": V, "length": T, "dim": 8}),
        "vocab_size length dim",
    ),
    "full transformer": (
        lambda t: (FullTransformer, {"vocab_size": V, "length": T, "dim": 8, "n_layers": 1, "n_heads": 1}),
        "n_layers n_heads",
    ),
    "small transformer": (
        lambda t: (SmallTransformer, {"vocab_size": V, "length": T, "dim": 8, "n_layers": 1, "n_heads": 1}),
        "dim n_layers n_heads",
    ),
    "sample": (lambda t: (t.task.sample, {"batch_size": 2}), "batch_size"),
    "capacity": (lambda t: (capacity, {"n_pairs": 2, "dim": 2, "n_repeats": 1}), "n_pairs dim n_repeats"),
    "expected recall": (lambda t: (cross_talk.expected_recall, {"n_pairs": 4, "dim": 2}), "n_pairs dim"),
    "counts of transitions": (
        lambda t: (
            statistics.transition_counts,
            {"inputs": t.x, "targets": t.y, "where": t.x >= 0, "vocab_size": V},
        ),
        "vocab_size",
    ),
    "rings": (lambda t: (statistics.is_caught, {"occurrence": t.batch.occurrence, "n_triggers": 2}), "n_triggers"),
    "watch": (lambda t: (alignment.watch_memories, {"model": t.two, "task": t.task, "every": 1}), "every"),
    "one trigger": (lambda t: (three_steps.OneTrigger, {"vocab_size": 16, "length": 8}), "vocab_size length"),
    "its sample": (lambda t: (t.trigger.sample, {"n_sequences": 2}), "n_sequences"),
    "overlaps": (lambda t: (three_steps.Overlaps.random, {"data": t.trigger, "dim": 4}), "dim"),
    "descent": (
        lambda t: (three_step_runs.descent_point, {"length": 6, "rate": 1.0, "n_steps": 1, "every": 1}),
        "n_steps every",
    ),
    "blocks": (lambda t: (heads.repeated_blocks, {"vocabulary": 9, "block_length": 3, "n_blocks": 2}), "block_length"),
    "random heads": (lambda t: (heads.random_heads, {"model": small_gpt(), "n_heads": 1}), "n_heads"),
    "layer": (lambda t: (small_gpt().heads, {"layer": 1}), "layer"),
    "head": (lambda t: (small_gpt().query_key, {"layer": 1, "head": 1}), "layer head"),
    "copying": (lambda t: (heads.copying, {"model": small_gpt(), "layer": 0, "tokens": torch.arange(3)}), "layer"),
    "positions": (
        lambda t: (nano.positions_compared, {"model": small_gpt(), "n_tokens": 3, "generator": torch.Generator()}),
        "n_tokens",
    ),
    "checkpoints": (lambda t: (nano.checkpoint_steps, {"last": 4}), "last"),
    "groups": (lambda t: (beyond.frequency_groups, {"counts": torch.arange(5), "size": 2}), "size"),
    "all tokens": (lambda t: (beyond.all_tokens, {"n": 4}), "n"),
    "tokens": (
        lambda t: (
            token_statistics,
            {"texts": [STORY] * 2, "encode": lambda s: [ord(c) for c in s], "n_tokens": 5, "length": 4},
        ),
        "n_tokens length",
    ),
    "capacity explorer": (
        lambda t: (widgets.memory_capacity, {"pairs": (2, 4), "dims": (2, 4), "n_repeats": 1}),
        "n_repeats",
    ),
    "removal explorer": (
        lambda t: (
            widgets.removal_explorer,
            {
                "model": t.model,
                "basis": t.basis,
                "inputs": t.x,
                "targets": t.y,
                "vocabulary": t.words,
                "sentence": "a b",
                "seed": 0,
            },
        ),
        "seed",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    make, arguments = WHOLE[name]
    function, good = make(made())
    for argument in arguments.split():
        assert argument in good
        for bad in NO_WHOLE_NUMBERS:
            if bad is None and argument == "batch_size":
                continue  # all sequences
            refused(lambda bad=bad, argument=argument: function(**good | {argument: bad}))


# Other numbers

NO_NUMBERS = (math.nan, math.inf, -math.inf, "x", True, None)

NUMBERS: dict[str, tuple[Callable[[SimpleNamespace], Call], str]] = {
    "finite_number": (lambda t: (lambda value: finite_number("n", value, 0), {"value": 3}), "value"),
    "split": (
        lambda t: (t.corpus.split, {"fraction": 0.5, "generator": torch.Generator()}),
        "fraction",
    ),
    "coefficients": (lambda t: (step_coefficients, {"steps": 3, "learning_rate": 0.1}), "learning_rate"),
    "terms": (lambda t: (leading_terms, {"basis": t.basis, "steps": 3, "learning_rate": 0.1}), "learning_rate"),
    "probability": (
        lambda t: (theory.gaussian_start_probability, {"vocab_size": 9, "n_layers": 2, "exponent": 0.0}),
        "exponent",
    ),
    "its conditions": (
        lambda t: (
            theory.gaussian_bounds_apply,
            {"steps": 3, "learning_rate": 0.1, "length": 9, "vocab_size": 9, "n_layers": 2, "scale": 0.1},
        ),
        "scale learning_rate",
    ),
    "start": (
        lambda t: (
            lambda **numbers: model.gaussian_start(
                AttentionOnlyTransformer(V, T, 1), generator=torch.Generator(), **numbers
            ),
            {"scale": 0.1, "exponent": 0.0},
        ),
        "scale exponent",
    ),
    "share": (lambda t: (remove_projection, {"weight": t.weight, "term": t.basis.value, "share": 1.0}), "share"),
    "theta": (lambda t: (conditions.removal_after_training, {"seed": 0, "theta_step": 0.1}), "theta_step"),
    "descend": (
        lambda t: (
            limits.descend,
            {"model": t.model, "inputs": t.x, "targets": t.y, "learning_rate": 0.1, "steps": 1},
        ),
        "learning_rate",
    ),
    "topical": (
        lambda t: (recovery.topical_words, {"inputs": t.x, "labels": t.labels, "vocab_size": V, "share": 0.5}),
        "share",
    ),
    "ideal": (lambda t: (ideal_memories, {"model": t.two, "task": t.task, "scale": 1.0}), "scale"),
    "install": (lambda t: (install_ideal_memories, {"model": spoilt(t.two, 1.0), "scale": 1.0}), "scale"),
    "first position": (
        lambda t: (cross_talk.exclude_first_position, {"model": spoilt(t.two, 1.0), "scale": 1.0}),
        "scale",
    ),
    "noise": (
        lambda t: (
            cross_talk.key_noise,
            {"model": t.two, "inputs": t.batch.inputs, "occurrence": t.batch.occurrence, "scale": 1.0},
        ),
        "scale",
    ),
    "filtered": (
        lambda t: (filtered_memory, {"unembedding": random(3, 4), "embedding": random(3, 5), "learning_rate": 1.0}),
        "learning_rate",
    ),
    "least count": (
        lambda t: (
            statistics.row_chi_square,
            {"counts": torch.full((2, 2), 9.0), "distributions": torch.full((2, 2), 0.5), "least": 5.0},
        ),
        "least",
    ),
    "rates": (
        lambda t: (
            lambda rate: three_steps.gradient_steps(t.trigger, dict.fromkeys(three_steps.ORDER, rate), t.examples),
            {"rate": 1.0},
        ),
        "rate",
    ),
    "head": (
        lambda t: (
            together.install_head,
            {"model": together.OneHotTransformer(V, T, 2), "task": t.task}
            | {"mark": 0.5, "sharpness": 4.0, "copying": 4.0},
        ),
        "mark sharpness copying",
    ),
    "bare copy": (lambda t: (together.bare_copy, {"model": t.two, "shrink": 0.1}), "shrink"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    make, arguments = NUMBERS[name]
    function, good = make(made())
    for argument in arguments.split():
        assert argument in good
        for bad in NO_NUMBERS:
            refused(lambda bad=bad, argument=argument: function(**good | {argument: bad}))


# Tensors

TENSORS: dict[str, tuple[Callable[[SimpleNamespace], Call], str]] = {
    "basis": (lambda t: (basis_functions, {"inputs": t.x, "targets": t.y, "vocab_size": V}), "inputs targets"),
    "context": (lambda t: (context, {"inputs": t.x, "targets": t.y, "vocab_size": V}), "inputs targets"),
    "accumulator": (lambda t: (BigramAndContext(V).add, {"inputs": t.x, "targets": t.y}), "targets"),
    "second pass": (
        lambda t: (attention_and_position, {"inputs": t.x, "targets": t.y, "association": t.basis.context}),
        "inputs targets association",
    ),
    "model": (lambda t: (AttentionOnlyTransformer(V, T, 1).forward, {"inputs": t.x[:0]}), ""),
    "loss": (lambda t: (mean_cross_entropy, {"model": t.model, "inputs": t.x, "targets": t.y}), "inputs targets"),
    "gradients": (lambda t: (gradients, {"model": t.model, "inputs": t.x, "targets": t.y}), "inputs targets"),
    "descent": (lambda t: (loss_and_gradients, {"model": t.model, "inputs": t.x, "targets": t.y}), "inputs targets"),
    "mean loss": (lambda t: (products.mean_loss, {"model": t.model, "inputs": t.x, "targets": t.y}), "inputs targets"),
    "moments": (
        lambda t: (corrections.moments, {"inputs": t.x, "targets": t.y, "vocab_size": V, "n_averages": 1}),
        "inputs targets",
    ),
    "topical": (
        lambda t: (recovery.topical_words, {"inputs": t.x, "labels": t.labels, "vocab_size": V}),
        "inputs labels",
    ),
    "hold out": (
        lambda t: (recovery.hold_out, {"labels": t.labels, "per_label": 1, "generator": torch.Generator()}),
        "labels",
    ),
    "shares": (lambda t: (recovery.word_shares, {"inputs": t.x, "vocab_size": V}), "inputs"),
    "evened": (
        lambda t: (recovery.evened, {"table": random(V, 3), "frequencies": random(V).abs()}),
        "table frequencies",
    ),
    "themes": (
        lambda t: (
            recovery.theme_ranks,
            {"training": random(5, 3), "training_labels": t.labels, "held_out": random(2, 3), "labels": t.labels[2:4]},
        ),
        "training training_labels held_out labels",
    ),
    "classes": (lambda t: (recovery.class_agreement, {"strengths": random(5, 5), "labels": t.labels}), "strengths"),
    "shuffled": (
        lambda t: (recovery.shuffle_words, {"inputs": t.x, "targets": t.y, "generator": torch.Generator()}),
        "inputs targets",
    ),
    "floor": (
        lambda t: (t.task.global_loss_floor, {"inputs": t.batch.inputs, "occurrence": t.batch.occurrence}),
        "inputs occurrence",
    ),
    "guesses": (lambda t: (t.task.bigram_predictions, {"inputs": t.batch.inputs}), "inputs"),
    "ideal guesses": (lambda t: (induction_predictions, {"inputs": t.batch.inputs}), "inputs"),
    "two layers": (lambda t: (t.two.forward, {"inputs": t.batch.inputs, "at": t.batch.occurrence > 1}), "inputs at"),
    "one layer": (lambda t: (t.one.forward, {"inputs": t.batch.inputs, "at": t.batch.occurrence > 1}), "inputs at"),
    "both papers": (lambda t: (t.onehot.forward, {"inputs": t.x, "at": t.x > 1}), "at"),
    "recall": (
        lambda t: (memory_recall, {"W": random(3, 4), "inputs": random(5, 4), "outputs": random(5, 3)}),
        "W inputs outputs",
    ),
    "outer products": (
        lambda t: (outer_product_memory, {"outputs": random(5, 3), "inputs": random(5, 4)}),
        "outputs inputs",
    ),
    "after triggers": (
        lambda t: (
            after_trigger_attention,
            {"attention": random(5, T, T), "inputs": t.batch.inputs, "occurrence": t.batch.occurrence},
        ),
        "inputs occurrence",
    ),
    "duals": (lambda t: (cross_talk.dual_vectors, {"vectors": random(3, 5)}), "vectors"),
    "noise": (
        lambda t: (
            cross_talk.key_noise,
            {"model": t.two, "inputs": t.batch.inputs, "occurrence": t.batch.occurrence, "scale": 1.0},
        ),
        "inputs occurrence",
    ),
    "signal": (lambda t: (alignment.signal_of, {"scores": random(4, 5), "columns": torch.arange(4)}), "scores columns"),
    "transitions": (
        lambda t: (
            statistics.transition_counts,
            {"inputs": t.x, "targets": t.y, "where": t.x >= 0, "vocab_size": V},
        ),
        "inputs targets where",
    ),
    "rings": (lambda t: (statistics.is_caught, {"occurrence": t.batch.occurrence, "n_triggers": 2}), "occurrence"),
    "lemma 1": (
        lambda t: (
            lemma1_gradient,
            {"W": random(3, 4), "unembedding": random(2, 3), "embedding": random(5, 4)}
            | {"joint": torch.full((5, 2), 0.1, dtype=torch.float64)},
        ),
        "W unembedding embedding joint",
    ),
    "lemma 2": (
        lambda t: (
            lemma2_gradient,
            {"W": random(3, 4), "unembedding": random(2, 3), "x": random(5, 4), "labels": t.labels},
        ),
        "W unembedding x labels",
    ),
    "noisy": (
        lambda t: (noisy_inputs, {"embedding": random(3, 4), "position_embedding": random(2, 4)}),
        "embedding position_embedding",
    ),
    "filtered": (
        lambda t: (filtered_memory, {"unembedding": random(3, 4), "embedding": random(3, 5)}),
        "unembedding embedding",
    ),
    "marked": (
        lambda t: (
            display.mark_sequence_text,
            {"task": t.task, "inputs": t.batch.inputs[0], "occurrence": t.batch.occurrence[0]},
        ),
        "occurrence",
    ),
    "three steps": (lambda t: (three_steps.read, {"tables": t.tables, "inputs": t.examples.inputs}), "inputs"),
    "their accuracy": (
        lambda t: (
            lambda inputs, targets: three_steps.accuracy(t.tables, three_steps.Examples(inputs, targets)),
            {"inputs": t.examples.inputs, "targets": t.examples.targets},
        ),
        "inputs targets",
    ),
    "chosen": (
        lambda t: (together.chosen_statistics, {"inputs": t.x, "targets": t.y, "where": t.x > 2, "vocab_size": V}),
        "inputs targets where",
    ),
    "context memory": (
        lambda t: (together.context_memory, {"model": t.two, "phi": random(V, V, dtype=torch.float32)}),
        "phi",
    ),
    "statistic": (
        lambda t: (together.attention_statistic, {"association": random(V, V), "inputs": t.x, "targets": t.y}),
        "association inputs targets",
    ),
    "first memories": (
        lambda t: (together.first_memories, {"model": t.two, "inputs": t.x, "targets": t.y}),
        "inputs targets",
    ),
    "next tokens": (
        lambda t: (heads.next_token_losses, {"logits": random(5, T, V), "tokens": t.x}),
        "logits tokens",
    ),
    "best heads": (lambda t: (heads.best_heads, {"scores": random(2, 2), "n_heads": 1}), "scores"),
    "by distance": (lambda t: (heads.attention_by_distance, {"scores": random(5)}), ""),
    "head scores": (lambda t: (heads.head_scores, {"model": small_gpt(), "tokens": t.x}), "tokens"),
    "losses": (lambda t: (heads.sequence_losses, {"model": small_gpt(), "tokens": t.x}), "tokens"),
    "composition": (
        lambda t: (heads.composition_recall, {"model": small_gpt(), "tokens": t.x, "head": (1, 0)}),
        "tokens",
    ),
    "means": (
        lambda t: (heads.ablated, {"model": small_gpt(), "heads": [(0, 0)], "means": random(2, 2, 8)}),
        "means",
    ),
    "copying": (
        lambda t: (
            heads.copying,
            {"model": small_gpt(), "layer": 1, "tokens": torch.arange(3)}
            | {"residuals": random(3, 16, dtype=torch.float32)},
        ),
        "tokens residuals",
    ),
    "alone": (lambda t: (small_gpt().single_token_residuals, {"tokens": torch.arange(3)}), "tokens"),
    "features": (lambda t: (beyond.residual_features, {"residuals": random(5, 3)}), "residuals"),
    "score features": (
        lambda t: (beyond.score_features, {"embeddings": random(5, 3), "query_key": random(3, 3)}),
        "embeddings query_key",
    ),
    "group means": (
        lambda t: (beyond.minus_group_means, {"features": random(5, 3), "groups": t.labels}),
        "features groups",
    ),
    "shared": (lambda t: (beyond.shared_cosine, {"features": random(5, 3)}), "features"),
    "yardstick": (lambda t: (beyond.yardstick(random(5, 5)).cosine, {"features": random(5, 3)}), "features"),
    "chance": (lambda t: (beyond.yardstick(random(5, 5)).chance, {"features": random(5, 3)}), "features"),
}


def spoils(good: Tensor) -> dict[str, object]:
    """The same tensor with one thing wrong."""
    bad: dict[str, object] = {"list": good.tolist(), "empty": good[:0], "dimension": good[None]}
    if good.is_floating_point():
        nan, inf = good.clone(), good.clone()
        nan.view(-1)[0], inf.view(-1)[-1] = math.nan, math.inf
        return bad | {"nan": nan, "inf": inf, "whole": good.long()}
    if good.dtype == torch.bool:
        return bad | {"float": good.double(), "short": good[:, :-1]}
    return bad | {"float": good.double(), "int32": good.int(), "bool": good > 0, "below 0": good - good.max() - 1}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str) -> None:
    make, arguments = TENSORS[name]
    function, good = make(made())
    for argument in arguments.split():
        for kind, bad in spoils(good[argument]).items():
            try:
                refused(lambda bad=bad, argument=argument: function(**good | {argument: bad}))
            except BaseException as error:
                error.add_note(f"{argument}: {kind}")
                raise


# Names, places and everything else

RUN = {"seed": 0, "probed": [0, 1], "accuracy": [0.1, 0.2]}
PANEL = widgets.Panel("share", {"accuracy": "accuracy"}, (0, 1), 0.5)
RECORD = {
    "time": 0.1,
    "steps": 3,
    "proved": 0,
    "kinds": {kind: dict.fromkeys(("error", "term", "bound"), 0.0) | {"cosine": 1.0} for kind in theory.KINDS},
}

OTHERS: dict[str, Callable[[SimpleNamespace], object]] = {
    "words that are none": lambda t: word_index(t.words, 5),
    "no vocabulary": lambda t: word_index([], "a"),
    "a text for texts": lambda t: bpe_tokenizer("a text", 9),
    "numbers for tokens": lambda t: BigramTask(
        t.task.unigram, t.task.bigram, length=T, n_triggers=1, vocabulary=list(range(V))
    ),
    "whole numbers as dtype": lambda t: basis_functions(t.x, t.y, V, torch.int64),
    "a model of whole numbers": lambda t: AttentionOnlyTransformer(V, T, 1, dtype=torch.int64),
    "endless layers": lambda t: AttentionOnlyTransformer(V, T, 1001),
    "association not square": lambda t: AttentionAndPosition(random(V, 3), T),
    "batches of lists": lambda t: basis_functions_of_batches([(t.x.tolist(), t.y.tolist())], V, T),
    "form of other layers": lambda t: products.mean_loss(t.model, t.x, t.y, (True,)),
    "no weight of that kind": lambda t: ablation.loss_without(t.model, t.x, t.y, {("key", 1): t.weight}),
    "no weight of that layer": lambda t: ablation.loss_without(t.model, t.x, t.y, {("value", 9): t.weight}),
    "weight of another shape": lambda t: ablation.loss_without(t.model, t.x, t.y, {("value", 1): t.weight[:2]}),
    "weight that is not finite": lambda t: ablation.loss_without(t.model, t.x, t.y, {("value", 1): t.weight / 0}),
    "no marks": lambda t: conditions.removal_after_training(0, marks=()),
    "marks that fall": lambda t: conditions.removal_after_training(0, marks=(5, 3)),
    "no record": lambda t: limits.bounds_point(30, 10, 8, 1, 0.5, [], 0),
    "type of numbers": lambda t: limits.reach_point(30, 10, 8, 1, 0.5, 4, 0, dtype="int8"),
    "too many stories": lambda t: limits.some_stories(30, 10, 10**6, 0),
    "times without values": lambda t: limits.time_past([0.0, 1.0], [1.0], 0.5),
    "shapes that differ": lambda t: limits.relative_error(t.weight, t.weight[:2]),
    "cosine of shapes that differ": lambda t: cosine(t.weight, t.weight[:2]),
    "no classes": lambda t: recovery.labelled_words(t.words, {}),
    "one layer for two": lambda t: cross_talk.exclude_first_position(t.one),
    "duals of one layer": lambda t: cross_talk.install_dual_key2(t.one),
    "watch of one layer": lambda t: alignment.watch_memories(t.one, t.task),
    "gradients of one layer": lambda t: alignment.gradient_alignment(t.one, t.task, t.batch),
    "pairs of another task": lambda t: cross_talk.stored_queries(AssociativeTransformer(3, T, 8), t.task),
    "nothing repeated": lambda t: alignment.gradient_alignment(
        t.two, t.task, t.task.sample(1)._replace(occurrence=t.x[:1] * 0)
    ),
    "noise of nothing": lambda t: cross_talk.key_noise(t.two, t.batch.inputs, 0 * t.batch.occurrence, scale=1.0),
    "a pair without direction": lambda t: outer_product_memory(torch.zeros(2, 3), torch.ones(2, 3)),
    "two candidates": lambda t: alignment.signal_of(random(2, 2), torch.arange(2)),
    "counts below 0": lambda t: statistics.row_chi_square(-torch.ones(2, 2), torch.full((2, 2), 0.5)),
    "rows that are none": lambda t: display.MarkedSequences(t.task, t.batch, ["a"]),
    "a table of another name": lambda t: three_steps.recall(t.tables, t.trigger, "key3"),
    "a gradient of another name": lambda t: three_steps.gradient(t.tables, "key3", t.examples),
    "overlaps of another name": lambda t: t.overlaps.spread("key3", t.tables["key1"]),
    "a block of another name": lambda t: three_steps.block_of(t.tables["key1"], t.trigger, ("word", "position")),
    "no examples": lambda t: three_steps.gradient_steps(
        t.trigger, dict.fromkeys(three_steps.ORDER, 1.0), three_steps.Examples(t.x[:0], t.x[:0, 0])
    ),
    "endless patterns": lambda t: three_steps.set_partitions(13),
    "blocks that are not kept": lambda t: three_step_runs.dimension_point(8, "some", [1.0] * 3, 9, 0),
    "blocks of a length": lambda t: three_step_runs.length_point(6, "some", [1.0] * 3),
    "a head in one position": lambda t: together.install_head(together.OneHotTransformer(V, 1, 2), t.task),
    "a head of another task": lambda t: together.head_recalls(together.OneHotTransformer(3, T, 2), t.task),
    "copy of one layer": lambda t: together.bare_copy(t.one),
    "memories of one layer": lambda t: together.first_memories(t.one, t.x, t.y),
    "nano without rate": lambda t: nano.train_nano(
        t.x, t.y, nano.NanoSettings(learning_rate=math.nan), 1, torch.Generator()
    ),
    "nano with steps too large": lambda t: nano.train_nano(
        t.x,
        t.y,
        nano.NanoSettings(1, 8, 1, V, T, batch_size=2, learning_rate=1e29, warm_up=1),
        4,
        torch.Generator(),
        show_progress=False,
    ),
    "endless nano": lambda t: nano.nano_model(nano.NanoSettings(n_layers=10**6), torch.Generator()),
    "a score of another name": lambda t: heads.head_scores(small_gpt(), t.x).best("losses", 1),
    "heads that are none": lambda t: heads.ablated(small_gpt(), ["ab"]),
    "a head of another form": lambda t: heads.ablated(small_gpt(), [0]),
    "half a head": lambda t: heads.ablated(small_gpt(), [(0.5, 0)]),
    "no heads": lambda t: heads.attention_of(small_gpt(), t.x, []),
    "half a block": lambda t: heads.composition_recall(small_gpt(), t.x[:, :5], (1, 0)),
    "losses of no blocks": lambda t: heads.copy_losses(random(2, 4)),
    "positions of rotary": lambda t: heads.position_scores(small_gpt()),
    "a memory of another name": lambda t: stored_pairs("key3", random(3, 3)),
    "no frequencies": lambda t: beyond.frequency_groups(random(2, 2)),
    "stories that are longer": lambda t: llm_removal.story_tokens(
        replace(small_gpt(), tokenizer=Tokenizer()), 10**5, 1, torch.Generator()
    ),
    "shuffle of one token": lambda t: beyond.yardstick(random(1, 1)).chance(random(1, 2)),
    "removal without text": lambda t: llm_removal.study_removal(small_gpt(), 0),
    "a set that was not removed": lambda t: llm_removal.losses_without([], "all", 1),
    "a model of no name": lambda t: load_model(""),
    "a model of an endless name": lambda t: load_model("a" * 5000),
    "terms of another corpus": lambda t: covariance.prepare_terms(random(3, 3), random(4, 4)),
    "an explorer without controls": lambda t: Explorer("title", "guide", [], lambda: ""),
    "checkpoints without end": lambda t: widgets.layer_by_checkpoint({"a": random(2, 1)}, ["0"], limits=(math.nan, 1)),
    "no checkpoints": lambda t: widgets.layer_by_checkpoint({"a": random(2, 0)}, []),
    "no pairs": lambda t: widgets.memory_capacity(pairs=()),
    "vocabulary of another model": lambda t: widgets.removal_explorer(t.model, t.basis, t.x, t.y, ["a"], "a"),
    "no records": lambda t: widgets.limits_explorer({"one": []}),
    "records of zeros": lambda t: widgets.limits_explorer({"one": [RECORD, RECORD | {"time": 0.2}]}),
    "a step not probed": lambda t: widgets.compare_runs(
        "a", "b", {"c": [RUN, RUN | {"seed": 1}]}, [PANEL], at={"c": 7}
    ),
    "half a curve": lambda t: widgets.compare_runs(
        "a", "b", {"c": [RUN | {"accuracy": [1.0]}, RUN | {"seed": 1}]}, [PANEL]
    ),
    "results that hold a set": lambda t: rounded({"a": {1}}),
    "claims that are none": lambda t: ledger.load_claims("a\0b"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else(name: str) -> None:
    refused(lambda: OTHERS[name](made()))


@pytest.mark.parametrize(
    "change",
    [{"low": math.nan}, {"high": math.inf}, {"low": True}, {"digits": "zz"}, {"says": ["us"]}, {"id": 5}, {"more": 1}],
)
def test_claims(change: dict[str, object], tmp_path: Path) -> None:
    claim = {"id": "A-x", "paper": "A", "place": "p", "text": "t", "says": "us", "verdict": "holds"}
    whole = claim | {"measured": "m", "low": 0, "high": 1}
    path = tmp_path / "claims.yml"
    path.write_text(json.dumps([whole]))  # JSON is YAML
    assert list(ledger.load_claims(path)) == ["A-x"]
    path.write_text(json.dumps([whole | change]).replace("NaN", ".nan").replace("Infinity", ".inf"))
    refused(lambda: ledger.load_claims(path))


@pytest.mark.parametrize("entries", [5, [], {"A-x": 5}, {"A-x": (math.nan, "holds")}, {"A-x": (0.5, ["holds"])}])
def test_entries_of_the_ledger(entries: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claim = {"id": "A-x", "paper": "A", "place": "p", "text": "t", "says": "us", "verdict": "holds"}
    Path("claims.yml").write_text(json.dumps([claim | {"measured": "m", "low": 0, "high": 1}]))
    refused(lambda: ledger.enter(entries))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b"[]", b'{"command": 5}', None])
def test_files_of_another_kind(content: bytes | None, tmp_path: Path) -> None:
    """Not UTF-8, other content, or a folder."""
    path = tmp_path / "file"
    path.mkdir() if content is None else path.write_bytes(content)
    for read in (load_results, ledger.load_claims, InductionHistory.load, load_model):
        refused(lambda read=read: read(path))
    if content is None:
        refused(lambda: load_texts(path), words="no .txt file")
    whole = {"command": "", "version": "1", "seed": [], "seconds": "long", "points": []}
    (tmp_path / "other.json").write_text(json.dumps(whole))
    refused(lambda: load_results(tmp_path / "other.json"), words="no number")


@pytest.mark.parametrize("content", [{"weights": {}}, {"state": {}}, {"identity": 5}, {"format": 0}])
def test_a_checkpoint_that_lacks_a_part(content: dict[str, object], tmp_path: Path) -> None:
    t, path = made(), tmp_path / "run.pt"
    own = AttentionOnlyTransformer(V, T, 1)
    train(own, t.x, t.y, 0.1, 1, checkpoint=path, show_progress=False)
    torch.save(torch.load(path) | content, path)
    before = path.read_bytes()
    refused(lambda: train(own, t.x, t.y, 0.1, 2, checkpoint=path, show_progress=False))
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["a\0b", "n" * 300, "file/x.json", "."])
def test_places_that_cannot_be_written_to(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("here")
    for write in (files.check_writable, lambda path: files.write_atomically(path, "content")):
        refused(lambda write=write: write(place), words="cannot write")
    assert os.listdir() == ["file"]


def test_a_text_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("a text")
    monkeypatch.setattr(Path, "read_text", forbid)
    refused(lambda: load_texts(tmp_path), words="Permission denied")


def test_a_long_name_is_no_trouble(tmp_path: Path) -> None:
    """The temporary file beside it has a short one."""
    assert files.write_atomically(tmp_path / ("n" * 250), "content").read_text() == "content"


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "many", "RANK": "0"}])
def test_processes_that_cannot_be_joined(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(distributed.processes, words="torchrun")


def test_a_place_for_fetched_models_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASSOC_CACHE", str(tmp_path / "file"))
    refused(fetch_smollm2, words="cannot write")
    refused(smollm2_path, words="llm fetch smollm2")


# The command line

SMALL = ["--vocab-size", "6", "--length", "5", "--unknown", "map"]
CORPUS = ["corpus", "text.txt", *SMALL]
BASIS = ["basis", "--corpus", "text.txt", *SMALL]
NEIGHBOURS = ["neighbours", "cat", "--corpus", "text.txt", *SMALL]
TRAIN = ["train", "--corpus", "text.txt", *SMALL, "--steps", "2"]
INDUCTION = ["induction", "--corpus", "text.txt", "--length", "8", "--dim", "8", "--n-triggers", "2", "--steps", "2"]
HEADS = ["llm", "heads", "--model", "model"]
TERMS = ["llm", "leading-terms", "--model", "model", "--corpus", "text.txt"]
HUGE = "9" * 30

COMMANDS: list[tuple[list[str], str]] = [
    # What the promise names
    (["corpus", "nowhere"], "no corpus"),
    (["corpus", ""], "no corpus"),
    (["corpus", "empty.txt"], "no text"),
    (["induction", "--corpus", "empty.txt"], "no text"),
    ([*TERMS, "--corpus", "empty.txt"], "no text"),
    (["corpus", "letter.txt", "--vocab-size", "2", "--length", "2"], "different token"),
    (["induction", "--corpus", "letter.txt"], "no two characters"),
    (["neighbours", "zebra", *NEIGHBOURS[2:]], "not among"),
    (["neighbours", "", *NEIGHBOURS[2:]], "not among"),
    ([*CORPUS, "--length", "500"], "use length"),
    ([*TRAIN, "--length", "500"], "use length"),
    ([*CORPUS, "--length", "1"], "length is 1"),
    ([*INDUCTION, "--length", "1"], "length is 1"),
    ([*HEADS, "--block-length", "1"], "block-length is 1"),
    ([*TERMS, "--length", "1"], "length is 1"),
    (["llm", "heads", "--model", "bert"], "not a causal language model"),
    (["llm", "leading-terms", "--model", "bert", "--corpus", "text.txt"], "not a causal language model"),
    (["llm", "heads", "--model", "garbage.gguf"], "garbage.gguf"),
    (["llm", "heads", "--model", "text.txt"], "neither a folder"),
    (["llm", "heads", "--model", "model"], "no config.json"),
    (["llm", "heads", "--model", ""], "no model has the name"),
    (["llm", "heads", "--model", "n" * 5000], "no model has the name"),
    # Files that are no text
    (["corpus", "latin.txt"], "not UTF-8"),
    (["corpus", "latin"], "not UTF-8"),
    (["corpus", "binary.txt"], "binary"),
    (["corpus", "model"], "no .txt file"),
    (["induction", "--corpus", "latin.txt"], "not UTF-8"),
    # Numbers
    ([*CORPUS, "--vocab-size", HUGE], "too large"),
    ([*CORPUS, "--max-texts", HUGE], "too large"),
    ([*CORPUS, "--max-sequences", "0"], "max_sequences"),
    ([*NEIGHBOURS, "--top", "-1"], "top"),
    ([*TRAIN, "--steps", HUGE], "too large"),
    ([*TRAIN, "--layers", HUGE], "n_layers"),
    ([*TRAIN, "--layers", "1000000"], "n_layers"),
    ([*TRAIN, "--batch-size", "-1"], "batch_size"),
    ([*TRAIN, "--record-every", "0"], "record_every"),
    ([*TRAIN, "--checkpoint-every", "0"], "checkpoint_every"),
    ([*TRAIN, "--learning-rate", "inf"], "learning_rate"),
    ([*TRAIN, "--learning-rate", "x"], "invalid float"),
    ([*TRAIN, "--dtype", "int64"], "invalid choice"),
    ([*TRAIN, "--seed", HUGE], "seed"),
    ([*INDUCTION, "--dim", HUGE], "dim"),
    ([*INDUCTION, "--length", HUGE], "length"),
    ([*INDUCTION, "--batch-size", HUGE], "batch_size"),
    ([*INDUCTION, "--dim", "1000000000000"], "not enough memory"),
    ([*INDUCTION, "--frozen-until", f"key1={'9' * 5000}"], "NAME=STEP"),
    ([*INDUCTION, "--frozen-until", "key1=²"], "NAME=STEP"),
    ([*INDUCTION, "--evaluate-every", "-1"], "evaluate_every"),
    ([*INDUCTION, "--model", "full", "--feed-forward"], "leave out"),
    ([*HEADS, "--blocks", "0"], "blocks"),
    ([*HEADS, "--seed", HUGE], "seed"),
    ([*HEADS, "--revisions", "a,a"], "different names"),
    ([*TERMS, "--tokens", "x"], "invalid int"),
    # Names
    (["llm", "fetch", "gpt5"], "cannot fetch"),
    (["reproduce", "9z-nothing"], "no sweep"),
    (["reproduce", "9z-nothing", "--plan"], "no sweep"),
    (["reproduce", "6a-smollm2", "--output", "out", "--kept", "kept"], "llm fetch smollm2"),
    ([], "required"),
    (["llm"], "required"),
    # Places
    ([*BASIS, "--output", ""], "must end in .npz"),
    ([*BASIS, "--output", "text.txt/x.npz"], "cannot write"),
    ([*TRAIN, "--output", ""], "cannot write"),
    ([*TRAIN, "--output", "model"], "cannot write"),
    ([*TRAIN, "--output", "n" * 300], "cannot write"),
    ([*TRAIN, "--checkpoint", "text.txt"], "not a checkpoint"),
    ([*TRAIN, "--checkpoint", "model"], "cannot write"),
    ([*CORPUS, "--json", "model"], "cannot write"),
    ([*INDUCTION, "--output", "text.txt/x.json"], "cannot write"),
    ([*HEADS, "--output", "text.txt/x.json"], "cannot write"),
    ([*TERMS, "--output", "model"], "cannot write"),
    (["reproduce", "5b-dimensions", "--output", "text.txt", "--kept", "kept"], "cannot write"),
    (["reproduce", "5b-dimensions", "--output", "out", "--kept", "text.txt"], "cannot write"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with texts, files that are none, and things that are no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSOC_CACHE", str(tmp_path / "cache"))
    for name, content in {
        "text.txt": "\n\n".join([STORY] * 6).encode(),
        "empty.txt": b" \n\n ",
        "letter.txt": b"a",
        "latin.txt": "caf\xe9".encode("latin-1"),
        "binary.txt": b"a\0b",
        "latin/a.txt": b"\xff\xfe",
        "garbage.gguf": b"GGUF" + b"\xff" * 40,
        "bert/config.json": b'{"model_type": "bert", "architectures": ["BertForMaskedLM"]}',
        "model/kept": b"",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    return tmp_path


def contents(place: Path) -> dict[str, bytes | None]:
    """Every file and folder below a place."""
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def run(arguments: list[str]) -> int:
    """Status of a command, whichever way it ends."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code)


@pytest.mark.parametrize(("arguments", "words"), COMMANDS)
def test_commands(arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert contents(folder) == before


class Tokenizer:
    """Letters as numbers."""

    all_special_ids = ()

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(letter) % 20 for letter in text]


def power(base: int) -> Mapping[str, int]:
    return {"square": base**2}


WRITING = {
    "corpus": [*CORPUS, "--json", "out.json"],
    "basis": [*BASIS, "--output", "out.npz"],
    "train": [*TRAIN, "--output", "out.json"],
    "checkpoint": [*TRAIN, "--output", "out.json", "--checkpoint", "run.pt"],
    "induction": [*INDUCTION, "--output", "out.json"],
    "heads": [*HEADS, "--block-length", "3", "--blocks", "1", "--top", "1", "--output", "out.json"],
    "leading-terms": [*TERMS, "--tokens", "5", "--length", "7", "--output", "out.json"],
    "reproduce": ["reproduce", "0-powers", "--output", ".", "--kept", "kept"],
}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small language model and a short sweep for the commands that take one."""
    monkeypatch.setattr("assoc.llm.cli.model_from_options", lambda *_: replace(small_gpt(), tokenizer=Tokenizer()))
    sweep = Sweep("0-powers", "powers", power, [{"base": 2}, {"base": 3}], 1)
    monkeypatch.setattr("assoc.sweeps.every_sweep", lambda: [sweep])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [(OSError(28, "No space left on device"), 2, "No space left"), (KeyboardInterrupt(), 130, "interrupted")],
    ids=["full disk", "Ctrl-C"],
)
def test_nothing_half_written(
    name: str,
    failure: BaseException,
    status: int,
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The disk is full after half of the content, or somebody stops the command there; then all is as it was."""
    Path("out.json").write_text("old")
    Path("out.npz").write_text("old")
    before = contents(folder)
    open_file = os.fdopen
    monkeypatch.setattr(files.os, "fdopen", lambda *arguments: FullDisk(open_file(*arguments), failure))
    assert run(WRITING[name]) == status
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    after = contents(folder)
    assert {path: after[path] for path in before} == before
    assert all(after[path] is None for path in after.keys() - before.keys())  # folders at most


class FullDisk:
    """A file that takes half of what is written to it, and fails."""

    def __init__(self, file: Any, failure: BaseException) -> None:
        self.file, self.failure = file, failure

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(bytes(data)[: len(data) // 2])
        raise self.failure


STEPS = {
    "corpus": "assoc.corpus.cli.load_corpus",
    "basis": "assoc.leading_terms.cli.basis_functions",
    "train": "assoc.leading_terms.training.loss_and_gradients",
    "checkpoint": "assoc.leading_terms.training.loss_and_gradients",
    "induction": "assoc.induction.task.BigramTask.sample",
    "heads": "assoc.llm.cli.sequence_losses",
    "leading-terms": "assoc.llm.cli.compare_layers",
}
"""What a command calls while it works."""


@pytest.mark.usefixtures("small_parts", "folder")
@pytest.mark.parametrize("name", STEPS)
def test_a_command_that_is_stopped_and_started_again(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C at the second of its steps (or the only one); the same command does its work afterwards."""
    calls, real = [], pkgutil.resolve_name(STEPS[name])
    last = 1 if name in ("corpus", "basis", "leading-terms") else 2

    def interrupted(*arguments: Any, **options: Any) -> object:
        calls.append(arguments)
        if len(calls) == last:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    out = Path("out.npz" if name == "basis" else "out.json")
    with monkeypatch.context() as stopped:
        stopped.setattr(STEPS[name], interrupted)
        assert run(WRITING[name]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not out.exists()
    assert run(WRITING[name]) == 0
    assert out.stat().st_size > 100
    assert sorted(path.name for path in Path().glob(".*")) == []
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("small_parts", "folder")
def test_reproduce_that_is_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def slow(base: int) -> Mapping[str, int]:
        calls.append(base)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return power(base)

    sweep = Sweep("0-powers", "powers", slow, [{"base": 2}, {"base": 3}], 1)
    monkeypatch.setattr("assoc.sweeps.every_sweep", lambda: [sweep])
    assert run(WRITING["reproduce"]) == 130
    assert not Path("0-powers.json").exists()
    assert run(WRITING["reproduce"]) == 0
    assert calls == [2, 3, 3]
    assert [point["square"] for point in load_results("0-powers.json").points] == [4, 9]


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (MemoryError(), 2, "error: there is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "error: there is not enough memory"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 0, None),
    ],
)
def test_other_ends_of_a_command(
    failure: BaseException, status: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    monkeypatch.setattr("assoc.corpus.cli.run", fail)
    assert run(["corpus"]) == status
    if words is None:
        assert said.closed  # nobody listens, and Python must not complain when it ends
    else:
        assert said.getvalue().startswith(words)
        assert said.getvalue().count("\n") == 1


def test_a_bug_is_not_taken_for_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("assoc.corpus.cli.run", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        main(["corpus"])


def test_ctrl_c_while_python_loads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("assoc.__main__.build_parser", fail)
    assert main(["corpus"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_full_disk_behind_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())
    monkeypatch.setattr("assoc.corpus.cli.run", lambda _: print("counts"))
    assert main(["corpus"]) == 2
    assert capsys.readouterr().err == "error: No space left on device: the output could not be written\n"
