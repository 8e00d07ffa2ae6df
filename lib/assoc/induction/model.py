"""The transformers of paper B: the two-layer one read as associative memories, a one-layer control, a full one.

All three share one interface: `model(inputs)` gives logits, `model.trace(inputs)` logits and attention maps, and the
parameters with `requires_grad` are the ones that train. Weights act on column vectors, W x, so code on rows writes
`x @ W.T`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from assoc.checks import MOST_LAYERS, check_chosen
from assoc.errors import InputError, whole_number


class Trace(NamedTuple):
    """Logits (B, T, N) and the attention maps, bottom layer first: (B, T, T), or (B, heads, T, T) with several heads.

    Row t of a map is the attention that position t pays to the positions up to t.
    """

    logits: Tensor
    attentions: tuple[Tensor, ...]


def causal_attention(queries: Tensor, keys: Tensor) -> Tensor:
    """softmax over s <= t of q_t' k_s / sqrt(d): attention (..., T, T) of queries and keys (..., T, d)."""
    length, dim = queries.shape[-2:]
    scores = queries @ keys.transpose(-2, -1) / math.sqrt(dim)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


class TokenModel(nn.Module):
    """What the models of this module have in common: sizes, input checks, and `forward` by way of `trace`."""

    def __init__(self, vocab_size: int, length: int, dim: int) -> None:
        super().__init__()
        self.vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
        self.length = whole_number("length", length, minimum=1)
        self.dim = whole_number("dim", dim, minimum=1)

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and attention maps of inputs (B, T); arguments as for `forward`."""
        raise NotImplementedError

    def forward(self, inputs: Tensor, at: Tensor | None = None) -> Tensor:
        """Logits (B, T, N) of tokens (B, T).

        Args:
            inputs: int64 (B, T).
            at: booleans (B, T): compute logits only there, (n, N), which saves a third of a training step.

        Raises:
            InputError: inputs that are not int64 tokens from 0 to N - 1, or longer than `length`; `at` of another
                shape.
        """
        return self.trace(inputs, at).logits

    def attention_maps(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The attention maps of every layer, bottom first, without gradients."""
        with torch.no_grad():
            return self.trace(inputs).attentions

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by name; all others are frozen."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def check_finite(self) -> None:
        """Raise InputError if a weight is NaN or infinite."""
        for name, parameter in self.named_parameters():
            if not torch.isfinite(parameter).all():
                raise InputError(f"the model's weights are not finite ({name}): make a new model")

    def check_inputs(self, inputs: Tensor, at: Tensor | None = None) -> None:
        """Raise InputError unless inputs are tokens that this model can read, and `at` chooses positions of them."""
        if not isinstance(inputs, Tensor):
            raise InputError(f"inputs must be a tensor; got a {type(inputs).__name__}: convert with torch.as_tensor")
        if inputs.dtype != torch.int64:
            raise InputError(f"inputs must be int64 token numbers; got {inputs.dtype}: convert with .long()")
        if inputs.ndim != 2 or inputs.numel() == 0 or inputs.shape[1] > self.length:
            raise InputError(f"inputs must be (B, T) with B >= 1, 1 <= T <= {self.length}; got {tuple(inputs.shape)}")
        low, high = int(inputs.min()), int(inputs.max())
        if low < 0 or high >= self.vocab_size:
            raise InputError(f"inputs hold tokens from {low} to {high}; this model knows 0 to {self.vocab_size - 1}")
        if at is not None:
            check_chosen("at", at, inputs.shape)


class _MemoryModel(TokenModel):
    """Random embeddings and the square matrices MATRICES, of which only those in TRAINED train."""

    MATRICES: tuple[str, ...]
    TRAINED: tuple[str, ...]

    def __init__(
        self,
        vocab_size: int,
        length: int,
        dim: int,
        feed_forward: bool = False,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(vocab_size, length, dim)
        bound = 1 / math.sqrt(dim)

        def normal(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, dim, generator=generator))

        def uniform(rows: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(rows, dim, generator=generator) - 1) * bound)

        self.token_embedding, self.position_embedding = normal(vocab_size), normal(length)
        for name in self.MATRICES:
            self.register_parameter(name, uniform(dim))
        self.register_parameter("feed_forward", uniform(dim) if feed_forward else None)
        self.unembedding = uniform(vocab_size)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in self.TRAINED)

    def embed(self, inputs: Tensor, at: Tensor | None = None) -> Tensor:
        """x_t = w_E(z_t) + p_t, (B, T, d); `at` is only looked at, see `check_inputs`."""
        self.check_inputs(inputs, at)
        return self.token_embedding[inputs] + self.position_embedding[: inputs.shape[1]]

    def read_out(self, x: Tensor, attended: Tensor, output_value: Tensor, at: Tensor | None) -> Tensor:
        """Logits W_U (1 + W_F)(x + W_O W_V attended) of the top layer, everywhere or at the chosen positions."""
        if at is not None:
            x, attended = x[at], attended[at]
        x = x + attended @ output_value.T
        if self.feed_forward is not None:
            x = x + x @ self.feed_forward.T
        return x @ self.unembedding.T


class AssociativeTransformer(_MemoryModel):
    """The two-layer transformer whose trained matrices are associative memories (paper B, Section 4.2).

        x_t  = w_E(z_t) + p_t
        x1_t = x_t  + W_O1 W_V1 sum_{s <= t} a_ts x_s,     a_t.  = softmax_s(x_t' W_K1 x_s / sqrt(d))
        x2_t = x1_t + W_O2 W_V2 sum_{s <= t} a'_ts x1_s,   a'_t. = softmax_s(x1_t' W_K2 x1_s / sqrt(d))
        x2_t = x2_t + W_F x2_t                             with feed_forward
        logits = W_U x2_t

    One head, W_Q1 = W_Q2 = 1. Trained: W_K1, W_K2, W_O2 and W_F. Everything else keeps its random start. Embeddings
    start standard normal, all matrices uniform in +-1/sqrt(d), the unembedding among them.

    Args:
        vocab_size: N. length: T, the longest sequence. dim: d.
        feed_forward: add the linear W_F, which can store the global bigrams.
        generator: source of the random start. Default: torch's global one.

    Attributes:
        token_embedding w_E (N, d), position_embedding p (T, d), key1, value1, output1, key2, value2, output2,
        feed_forward (W_K1, W_V1, W_O1, ..; (d, d); feed_forward is None without), unembedding w_U (N, d).

    Raises:
        InputError: a size below 1.
    """

    MATRICES = ("key1", "value1", "output1", "key2", "value2", "output2")
    TRAINED = ("key1", "key2", "output2", "feed_forward")

    def remapped_tokens(self) -> Tensor:
        """w_1(k) = W_O1 W_V1 w_E(k), (N, d): how layer 2 sees "the previous token was k"."""
        return self.token_embedding @ (self.output1 @ self.value1).T

    def value_tokens(self) -> Tensor:
        """W_V2 w_E(v), (N, d): what W_O2 receives from an attended token v."""
        return self.token_embedding @ self.value2.T

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and the attention maps a (layer 1) and a' (layer 2); arguments as for `forward`."""
        x = self.embed(inputs, at)
        attention1 = causal_attention(x, x @ self.key1.T)
        x = x + attention1 @ (x @ (self.output1 @ self.value1).T)
        attention2 = causal_attention(x, x @ self.key2.T)
        logits = self.read_out(x, attention2 @ x, self.output2 @ self.value2, at)
        return Trace(logits, (attention1, attention2))


class OneLayerTransformer(_MemoryModel):
    """The control with one layer: x_t = w_E(z_t) + p_t + W_O1 W_V1 sum_{s <= t} a_ts x_s, then W_F, then W_U.

    Its attention compares tokens and positions, and cannot ask "what came before this place?". Trained: W_K1, W_O1 and
    W_F. Arguments, starts and errors as for `AssociativeTransformer`.
    """

    MATRICES = ("key1", "value1", "output1")
    TRAINED = ("key1", "output1", "feed_forward")

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and the one attention map; arguments as for `forward`."""
        x = self.embed(inputs, at)
        attention = causal_attention(x, x @ self.key1.T)
        return Trace(self.read_out(x, attention @ x, self.output1 @ self.value1, at), (attention,))


class _Block(nn.Module):
    """x + W_O [heads of causal attention](norm x), then x + MLP(norm x); starts without values."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

        def linear(n_in: int, n_out: int, bias: bool) -> nn.Linear:
            return skip_init(
                nn.Linear, n_in, n_out, bias=bias
            )  # its own start would draw from torch's global generator

        self.query_key_value = linear(dim, 3 * dim, bias=False)
        self.output = linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(linear(dim, 4 * dim, bias=True), nn.GELU(), linear(4 * dim, dim, bias=True))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.n_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # each (B, heads, T, d / heads)
        attention = causal_attention(queries, keys)
        x = x + self.output((attention @ values).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x)), attention


class FullTransformer(TokenModel):
    """An ordinary pre-norm transformer (paper B, appendix): everything that the simplified model leaves out.

    Learned token and position embeddings, n_layers of multi-head attention with factorised queries and keys and an MLP
    of width 4 d, layer norms, a learned unembedding. All of it trains.

    Args:
        vocab_size: N. length: T. dim: d. n_layers, n_heads: d must be a multiple of n_heads.
        generator: source of the random start. Default: torch's global one.

    Raises:
        InputError: a size below 1, more than 1,000 layers, or d no multiple of n_heads.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        dim: int,
        n_layers: int = 2,
        n_heads: int = 1,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(vocab_size, length, dim)
        n_layers = whole_number("n_layers", n_layers, minimum=1, maximum=MOST_LAYERS)
        n_heads = whole_number("n_heads", n_heads, minimum=1)
        if self.dim % n_heads:
            raise InputError(f"n_heads is {n_heads}: give a divisor of dim, {dim}")
        self.token_embedding = nn.Parameter(torch.empty(self.vocab_size, self.dim))
        self.position_embedding = nn.Parameter(torch.empty(self.length, self.dim))
        self.blocks = nn.ModuleList(_Block(self.dim, n_heads) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(self.dim)
        self.unembedding = nn.Parameter(torch.empty(self.vocab_size, self.dim))
        self._initialise(generator)

    def _initialise(self, generator: torch.Generator | None) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("_embedding"):
                nn.init.normal_(parameter, generator=generator)
            elif parameter.ndim == 2:
                bound = 1 / math.sqrt(parameter.shape[1])
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and the attention maps (B, heads, T, T) of every layer; arguments as for `forward`."""
        self.check_inputs(inputs, at)
        x = self.token_embedding[inputs] + self.position_embedding[: inputs.shape[1]]
        attentions = []
        for block in self.blocks:
            x, attention = block(x)
            attentions.append(attention)
        x = x if at is None else x[at]
        return Trace(self.final_norm(x) @ self.unembedding.T, tuple(attentions))
