"""Induction heads as they form: small transformers of the library's families, trained on paper B's bigram task.

The same three memories as in the simplified model (paper B, Section 4.2) are read from each checkpoint, although now
everything is learned: embeddings, positions, all matrices, norms and feed-forward layers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from assoc.checks import MOST_LAYERS
from assoc.corpus import load_texts
from assoc.errors import InputError, whole_number
from assoc.induction.alignment import before_updates, previous_by_position, signal_of
from assoc.induction.model import TokenModel, Trace
from assoc.induction.task import BigramTask
from assoc.induction.training import train_induction
from assoc.llm import nano
from assoc.llm.heads import (
    ablated,
    composition_recall,
    copy_losses,
    distance_scores,
    final_norm,
    head_scores,
    position_scores,
    repeated_blocks,
    through_gain,
)
from assoc.llm.models import as_language_model
from assoc.seeds import seeded

MEMORIES = ("output2", "key2", "key1")
"""What is said, what is looked for, and the token before, in paper B's order of learning."""


class SmallTransformer(TokenModel):
    """A pre-norm transformer with everything that paper B's simplified model leaves out, and everything trained.

    Layer norms, factorised queries and keys, an MLP of width 4 d, biases. Its layers come from the transformers
    library, so that whatever reads a `LanguageModel` reads it too, while `train_induction` trains it.

    Args:
        vocab_size: N. length: T. dim: d. n_layers, n_heads: d must be a multiple of n_heads.
        positions: "learned", a vector for each position (GPT-2); "rotary", queries and keys that are rotated by their
            position (GPT-NeoX).
        generator: source of the random start: embeddings standard normal, matrices uniform in +-1/sqrt(inputs), biases
            zero. Default: torch's global one.

    Attributes:
        language_model: the model as a `LanguageModel`; it shows the weights of the moment.

    Raises:
        InputError: sizes that do not fit, or another kind of positions.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        dim: int,
        n_layers: int = 2,
        n_heads: int = 1,
        *,
        positions: Literal["learned", "rotary"] = "learned",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(vocab_size, length, dim)
        n_layers = whole_number("n_layers", n_layers, minimum=1, maximum=MOST_LAYERS)
        n_heads = whole_number("n_heads", n_heads, minimum=1)
        if self.dim % n_heads or (self.dim // n_heads) % 2:
            raise InputError(f"n_heads is {n_heads}: give a number that splits dim, {dim}, into even parts")
        if positions not in _FAMILIES:
            raise InputError(f"positions is {positions!r}: choose from {', '.join(_FAMILIES)}")
        self.positions = positions
        with torch.random.fork_rng(devices=[]):  # the library draws a start of its own, from the global generator
            network = _FAMILIES[positions](self.vocab_size, self.length, self.dim, n_layers, n_heads)
        _start(network, generator)
        self.network = network
        self.language_model = as_language_model(network, name=f"small transformer, {positions} positions")

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and the attention maps (B, heads, T, T) of every layer; arguments as for `forward`."""
        self.check_inputs(inputs, at)
        result = self.network(inputs, output_attentions=True, use_cache=False)
        return Trace(result.logits if at is None else result.logits[at], tuple(result.attentions))


def _gpt2(vocab_size: int, length: int, dim: int, n_layers: int, n_heads: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=length,
        n_embd=dim,
        n_layer=n_layers,
        n_head=n_heads,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


def _gpt_neox(vocab_size: int, length: int, dim: int, n_layers: int, n_heads: int) -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=vocab_size,
        max_position_embeddings=length,
        hidden_size=dim,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=4 * dim,
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return GPTNeoXForCausalLM(config)


_FAMILIES: dict[str, Callable[[int, int, int, int, int], nn.Module]] = {"learned": _gpt2, "rotary": _gpt_neox}


def _start(network: nn.Module, generator: torch.Generator | None) -> None:
    """The random start of `FullTransformer`: the library's own would draw from torch's global generator."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                nn.init.normal_(parameter, generator=generator)
            elif parameter.ndim == 2:
                n_inputs = parameter.shape[1] if isinstance(module, nn.Linear) else parameter.shape[0]
                bound = 1 / math.sqrt(n_inputs)
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
            elif name == "bias":
                nn.init.zeros_(parameter)
            else:
                nn.init.ones_(parameter)


def memory_tables(model: SmallTransformer, inputs: Tensor) -> dict[str, Tensor]:
    """The matrices of a two-layer model with one head, in the basis of the pairs that paper B's memories store.

    - "output2" (N, N): w_E(v) W_V2 W_O2 W_U', row v the token attended to, column j a logit; ideal: the diagonal;
    - "key2" (N, N): query w_E(k) W_Q2, key w_E(j) W_V1 W_O1 W_K2, over sqrt(d); ideal: the diagonal;
    - "key1", learned positions (T, T): `position_scores`; ideal: one below the diagonal;
    - "key1", rotary positions (1, T): `distance_scores` over the inputs; ideal: distance 1.

    Embeddings and what layer 1 adds go through the fixed part of the norms; other biases and the MLPs are left out.

    Raises:
        InputError: not two layers with one head.
    """
    language_model = model.language_model
    if (language_model.n_layers, language_model.n_heads) != (2, 1):
        raise InputError("memories are read from two layers with one head: make the model with n_layers=2, n_heads=1")
    with torch.no_grad():
        first, second = language_model.heads(0), language_model.heads(1)
        norm1, norm2 = language_model.attention_norm(0), language_model.attention_norm(1)
        tokens = language_model.embedding
        written = through_gain(through_gain(tokens, norm1) @ first.value[0] @ first.output[0], norm2)
        seen = through_gain(tokens, norm2)
        copied = through_gain(seen @ second.value[0] @ second.output[0], final_norm(language_model))
        is_rotary = model.positions == "rotary"
        key1 = distance_scores(language_model, inputs)[0] if is_rotary else position_scores(language_model)[0]
        return {
            "output2": copied @ language_model.unembedding.T,
            "key2": (seen @ second.query[0]) @ (written @ second.key[0]).T / language_model.head_dim**0.5,
            "key1": key1,
        }


def stored_pairs(name: str, table: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a memory's table that store a pair, and the column of each pair, int64 (n,) each.

    "output2", "key2": (v, v) for all tokens. "key1": (t, t - 1) for t = 2 .. T, or distance 1 of the only row.

    Raises:
        InputError: no such memory.
    """
    if name not in MEMORIES:
        raise InputError(f"there is no memory {name!r}: choose from {', '.join(MEMORIES)}")
    n_rows = len(table)
    if name != "key1":
        return torch.arange(n_rows), torch.arange(n_rows)
    if n_rows == 1:
        return torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    return torch.arange(1, n_rows), torch.arange(n_rows - 1)


def table_recall(name: str, table: Tensor) -> float:
    """Memory recall (paper B, Section 4.2): the share of stored pairs whose column is the largest of its row."""
    rows, columns = stored_pairs(name, table)
    return float((table[rows].argmax(dim=1) == columns).double().mean())


def table_signal(name: str, table: Tensor) -> float:
    """Signal over noise of a memory's table, as `assoc.induction.alignment.signal_to_noise` has it."""
    rows, columns = stored_pairs(name, table)
    return signal_of(table[rows].double(), columns)


@dataclass
class HeadWatch:
    """What `watch_heads` saw; entry i of every series belongs to `steps[i]` updates.

    Attributes:
        steps: number of updates made.
        induction, previous_token: the highest score of any head of the last and of the first layer, on the blocks.
        gain: loss on the first copy of the blocks less that on the second, nats.
        composition: `composition_recall` of layer 2 from layer 1, on the blocks.
        early, late: mean attention of layer 1 to the position before, in the first and the last quarter of the inputs.
        recall, signal: memory -> `table_recall`, `table_signal`.
    """

    steps: list[int] = field(default_factory=list)
    induction: list[float] = field(default_factory=list)
    previous_token: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    composition: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    recall: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEMORIES})
    signal: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEMORIES})


@contextmanager
def watch_heads(model: SmallTransformer, blocks: Tensor, inputs: Tensor, every: int = 10) -> Iterator[HeadWatch]:
    """Look at the heads before each update while a model trains inside this context, and change nothing.

        with watch_heads(model, blocks, inputs) as watch:
            train_induction(model, task, ...)

    An update is told by its call of the model, so call it for nothing else inside.

    Args:
        blocks: `repeated_blocks`, (B, 2L). inputs: sequences of the task, for `memory_tables`.
        every: look every so many updates.
    """
    watch = HeadWatch()

    def look(n_updates: int) -> None:
        watch.steps.append(n_updates)
        scores = head_scores(model.language_model, blocks)
        watch.induction.append(float(scores.induction.mean(0)[-1].max()))
        watch.previous_token.append(float(scores.previous_token.mean(0)[0].max()))
        watch.gain.append(float(copy_losses(scores.losses).gain.mean()))
        watch.composition.append(float(composition_recall(model.language_model, blocks, (1, 0))[0, 0]))
        back = previous_by_position(model.attention_maps(inputs)[0][:, 0])
        watch.early.append(float(back[: len(back) // 4].mean()))
        watch.late.append(float(back[-(len(back) // 4) :].mean()))
        for name, table in memory_tables(model, inputs).items():
            watch.recall[name].append(table_recall(name, table))
            watch.signal[name].append(table_signal(name, table))

    with before_updates(model, every, look):
        yield watch


LENGTH, DIM, N_TRIGGERS = 64, 64, 5
BLOCK_LENGTH, N_COMMON = 16, 24  # blocks are made of the most common characters, which training has seen often


def birth_task(triggers: Literal["fixed", "random"] = "random") -> BigramTask:
    """The bigram task of chapter 6B, over the characters of the stories."""
    return BigramTask.from_text(load_texts("stories").texts, length=LENGTH, n_triggers=N_TRIGGERS, triggers=triggers)


def common_blocks(task: BigramTask, n_blocks: int, generator: torch.Generator) -> Tensor:
    """`repeated_blocks` of the N_COMMON most frequent tokens of a task, BLOCK_LENGTH each."""
    common = task.unigram.sort(descending=True, stable=True).indices[:N_COMMON]
    return repeated_blocks(common, BLOCK_LENGTH, n_blocks, generator)


def study_birth(
    positions: Literal["learned", "rotary"],
    seed: int,
    *,
    steps: int = 400,
    every: int = 20,
    batch_size: int = 32,
    learning_rate: float = 0.2,
) -> dict[str, Any]:
    """Train a small transformer on the bigram task, all tokens in the loss, and watch its heads.

    Returns:
        "steps"; series over them: "accuracy" and "loss" at repeated outputs, "excess" (loss without trigger above its
        floor), and those of `HeadWatch`; and "without": the accuracy at the end without the head of layer 1, and of
        layer 2.
    """
    task, generator = birth_task(), seeded(seed)
    model = SmallTransformer(task.vocab_size, LENGTH, DIM, positions=positions, generator=generator)
    blocks = common_blocks(task, 32, seeded(1000))
    probe, test = task.sample(64, seeded(1001)), task.sample(256, seeded(1002))
    # One step more, for a look after the last that counts.
    with watch_heads(model, blocks, probe.inputs, every) as watch:
        history = train_induction(
            model,
            task,
            steps=steps + 1,
            batch_size=batch_size,
            learning_rate=learning_rate,
            loss_on="all",
            generator=generator,
            evaluate_every=every,
        )
    n_looks = len(watch.steps)
    repeated = test.occurrence >= 2

    def accuracy() -> float:
        with torch.no_grad():
            right = model(test.inputs).argmax(-1) == test.targets
        return float(right[repeated].double().mean())

    without = {"none": accuracy()}
    for layer in (0, 1):
        with ablated(model.language_model, [(layer, 0)]):
            without[f"layer {layer + 1}"] = accuracy()
    return {
        "steps": watch.steps,
        "accuracy": history.in_context_accuracy[:n_looks],
        "loss": history.in_context_loss[:n_looks],
        "excess": [loss - history.global_loss_floor for loss in history.global_loss[:n_looks]],
        "induction": watch.induction,
        "previous_token": watch.previous_token,
        "gain": watch.gain,
        "composition": watch.composition,
        "early": watch.early,
        "late": watch.late,
        "recall": watch.recall,
        "signal": watch.signal,
        "without": without,
    }


def study_nano(seed: int, *, steps: int = 512, block_length: int = 24, n_blocks: int = 16) -> dict[str, Any]:
    """Train the small nano of chapter 6A on the stories, and score the heads of each checkpoint.

    Returns:
        "steps"; over them "loss" (mean since the checkpoint before), "first", "second" (losses on the copies of
        repeated blocks), and "induction", "previous_token", the highest score of any head.
    """
    corpus, _ = nano.stories_for(nano.LIVE)
    run = nano.train_nano(corpus.inputs, corpus.targets, nano.LIVE, steps, seeded(seed), show_progress=False)
    blocks = repeated_blocks(nano.LIVE.vocab_size, block_length, n_blocks, seeded(1000))
    found: dict[str, Any] = {"steps": list(run.checkpoints), "loss": nano.mean_losses(run)}
    for name in ("first", "second", "induction", "previous_token"):
        found[name] = []
    for model in run.checkpoints.values():
        scores = head_scores(model, blocks)
        for name, losses in copy_losses(scores.losses)._asdict().items():
            found[name].append(float(losses.mean()))
        for name in ("induction", "previous_token"):
            found[name].append(float(getattr(scores, name).mean(0).max()))
    return found
