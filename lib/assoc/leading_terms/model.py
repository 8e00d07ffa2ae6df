"""The attention-only transformer of paper A (Definition 3.1), in its plain form."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from assoc.checks import MOST_LAYERS
from assoc.errors import InputError, finite_number, whole_number
from assoc.leading_terms.basis import check_tokens
from assoc.leading_terms.theory import LARGEST_EXPONENT


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """(T, T) booleans, true where query t may look at key m: m <= t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def position_scores(position: Tensor, length: int) -> Tensor:
    """DM(P): (T, T) with P[t - m] at [t, m] for m <= t; entries above the diagonal are meaningless and masked later."""
    places = torch.arange(length, device=position.device)
    steps_back = places[:, None] - places
    return position[steps_back.clamp(min=0)]


def causal_softmax(scores: Tensor) -> Tensor:
    """Row-wise softmax over the keys m <= t of (..., T, T) scores; zero above the diagonal."""
    return scores.masked_fill(~causal_mask(scores.shape[-1], scores.device), -torch.inf).softmax(dim=-1)


class AttentionOnlyTransformer(nn.Module):
    """h_0 = X;  h_l = h_{l-1} + softmax(mask(h_{l-1} W_l h_{l-1}' + DM(P_l))) h_{l-1} V_l;  F = h_L W_O.

    Paper A, Definition 3.1. The residual stream lives in token space (T x V), so every weight is a table over words:
    no embedding, no MLP, no norm, one head, no 1/sqrt(d). A row of the scores is a query, a column a key. All weights
    start at zero.

    Args:
        vocab_size: V. length: T, the longest sequence. n_layers: L.
        dtype: of the weights; float64 by default, because attention weights are as small as eta^4.

    Attributes:
        attention, value: L matrices W_l, V_l (V, V). position: L vectors P_l (T,). output: W_O (V, V).

    Raises:
        InputError: a size below 1, more than 1,000 layers, or whole numbers as dtype.
    """

    def __init__(self, vocab_size: int, length: int, n_layers: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("length", length)):
            whole_number(name, size, minimum=1)
        whole_number("n_layers", n_layers, minimum=1, maximum=MOST_LAYERS)
        if not dtype.is_floating_point:
            raise InputError(f"dtype is {dtype}: give torch.float64 or torch.float32")
        self.vocab_size, self.length, self.n_layers = vocab_size, length, n_layers

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape, dtype=dtype))

        self.attention = nn.ParameterList(zeros(vocab_size, vocab_size) for _ in range(n_layers))
        self.value = nn.ParameterList(zeros(vocab_size, vocab_size) for _ in range(n_layers))
        self.position = nn.ParameterList(zeros(length) for _ in range(n_layers))
        self.output = zeros(vocab_size, vocab_size)

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise InputError unless inputs are (N, T) token numbers that this model can read."""
        if not isinstance(inputs, Tensor):
            raise InputError(f"inputs must be a tensor; got a {type(inputs).__name__}: convert with torch.as_tensor")
        if inputs.dtype != torch.int64:
            raise InputError(f"inputs must be int64 token numbers; got {inputs.dtype}: convert with .long()")
        if inputs.ndim != 2 or not 1 <= inputs.shape[1] <= self.length:
            raise InputError(f"inputs must be (N, T) with 1 <= T <= {self.length}; got {tuple(inputs.shape)}")
        if inputs.numel() and not 0 <= int(inputs.min()) <= int(inputs.max()) < self.vocab_size:
            raise InputError(f"inputs must hold tokens from 0 to {self.vocab_size - 1}")

    def check_finite(self) -> None:
        """Raise InputError if a weight is NaN or infinite."""
        for name, weight in self.named_parameters():
            if not weight.isfinite().all():
                raise InputError(f"the model's weights are not finite ({name}): train with a smaller learning rate")

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits F, (N, T, V), of inputs (N, T)."""
        return self.trace(inputs)[0][-1] @ self.output

    def attention_maps(self, inputs: Tensor) -> list[Tensor]:
        """A_1 .. A_L, each (N, T, T): row t is the attention of position t over the positions up to t."""
        return self.trace(inputs)[1]

    def trace(self, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The residual stream h_0 .. h_L, each (N, T, V), and the attention maps A_1 .. A_L, each (N, T, T)."""
        self.check_inputs(inputs)
        residuals = [functional.one_hot(inputs, self.vocab_size).to(self.output.dtype)]
        maps = []
        for W, P, V in zip(self.attention, self.position, self.value, strict=True):
            h = residuals[-1]
            maps.append(causal_softmax(h @ W @ h.transpose(1, 2) + position_scores(P, inputs.shape[1])))
            residuals.append(h + maps[-1] @ h @ V)
        return residuals, maps

    def weights(self) -> dict[str, list[Tensor]]:
        """Kind of weight -> its tensors, layer by layer; "output" has one."""
        return {
            "output": [self.output],
            "value": list(self.value),
            "attention": list(self.attention),
            "position": list(self.position),
        }


def mean_cross_entropy(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> Tensor:
    """L = mean over all N T positions of -log softmax(F)[t, y_t]; inputs and targets are int64 (N, T)."""
    check_tokens(inputs, targets, model.vocab_size)
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def gaussian_start(
    model: AttentionOnlyTransformer, scale: float, generator: torch.Generator, exponent: float = 0.0
) -> AttentionOnlyTransformer:
    """Draw every entry of every weight from N(0, v^2/V^(2 + 2 xi)) (paper A, Theorem D.13), in place; return the model.

    So the V x V weights have a Frobenius norm of about v/V^xi, and the position vectors one of sqrt(T) v/V^(1 + xi).

    Args:
        scale: v; the theorem asks for v <= eta^2/T^2. exponent: xi.

    Raises:
        InputError: v or xi is not a finite number >= 0, or xi is above 5.
    """
    scale = finite_number("scale", scale, minimum=0)
    exponent = finite_number("exponent", exponent, minimum=0, maximum=LARGEST_EXPONENT)
    deviation = scale / model.vocab_size ** (1 + exponent)
    for weight in model.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * deviation)
    return model
