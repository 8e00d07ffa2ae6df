"""How alike are the covariances of a model's embeddings and of a leading term (paper A, Section 5.2)?

A leading term is an n x n matrix over tokens, a model has d-dimensional embeddings of them: they are compared through
their covariances over tokens, cov(M) = C C'/(d - 1), where C is M minus each row's mean and d its number of columns.

Nothing here forms an n x n product for a layer. With C (n x d) of the embeddings and D (n x n) of the leading term,
<C C', D D'> = |C'D|^2 and |C C'| = |C'C|, in Frobenius norms; only |D D'| = |D'D| takes n^3 operations, once for all
layers. Attention scores E A E' have rank d at most and become d x d matrices too, see `head_covariance_cosines`.

These covariances keep what all tokens share: the rows of a leading term are much alike, so that a model in which all
tokens look the same already agrees with it (`PreparedTerm.constant_cosine`). With `centre_tokens` the mean over tokens
is taken away on both sides, and what is compared is how tokens differ (the cosine is then linear CKA).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from assoc.errors import InputError
from assoc.llm.models import LanguageModel

ROUNDING = 64 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class PreparedTerm:
    """A leading term as `prepare_term` made it, which serves any number of comparisons.

    Attributes:
        centred: D, (n, n) float64: rows scaled to norm 1, then each row's mean taken away.
        norm: |D D'|, the Frobenius norm of its covariance but for the factor 1/(n - 1).
        centre_tokens: whether D, and with it whatever is compared, has the mean over tokens taken away too.
    """

    centred: Tensor
    norm: float
    centre_tokens: bool

    @property
    def constant_cosine(self) -> float:
        """The cosine that any model reaches in which all tokens have the same embedding: that of 1 1' and D D'."""
        return (
            float(self.centred.sum(dim=0).square().sum()) / (len(self.centred) * self.norm) if self.norm else math.nan
        )


def centre_rows(matrix: Tensor) -> Tensor:
    """The matrix minus each row's mean, in float64."""
    return _centre(matrix.detach().double(), dim=1)


def _centre(matrix: Tensor, dim: int) -> Tensor:
    """The matrix minus its mean over rows (dim 0) or columns (1); where all are alike, exactly zero, not rounding."""
    centred = matrix - matrix.mean(dim=dim, keepdim=True)
    return centred.masked_fill_(centred.abs() <= ROUNDING * matrix.abs().max(), 0)


def prepare_term(leading_term: Tensor, *, centre_tokens: bool = False) -> PreparedTerm:
    """What comparisons with a leading term have in common; takes 2 n^3 operations.

    Rows are scaled to norm 1 first; rows of zeros stay zero.

    Args:
        leading_term: (n, n). centre_tokens: compare without the mean over tokens; the paper compares with it.

    Raises:
        InputError: not a square matrix of finite numbers.
    """
    _check_matrix("leading_term", leading_term)
    if leading_term.shape[0] != leading_term.shape[1]:
        raise InputError(f"leading_term must be (n, n), tokens by tokens; got {tuple(leading_term.shape)}")
    rows = leading_term.detach().double()
    rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)  # no underflow
    norms = rows.norm(dim=1, keepdim=True)
    centred = centre_rows(rows / norms.masked_fill(norms == 0, 1))
    if centre_tokens:
        centred = _centre(centred, dim=0)
    return PreparedTerm(centred, float((centred.T @ centred).norm()), centre_tokens)


def covariance_cosine(embeddings: Tensor, leading_term: Tensor | PreparedTerm) -> float:
    """Frobenius cosine of cov(embeddings) and cov(leading term) (paper A, Section 5.2), in float64.

    Rows of the leading term are scaled to norm 1 first. Takes 2 d n^2 operations with a prepared term.

    Args:
        embeddings: one row a token, (n, d).
        leading_term: over the same tokens, (n, n), or what `prepare_term` made of it.

    Returns:
        A number from 0 to 1; nan if either covariance is zero.

    Raises:
        InputError: shapes do not fit, or a number is not finite.
    """
    term = _prepared(leading_term, embeddings)
    C = _unit_scale(centre_rows(embeddings))
    C = _centre(C, dim=0) if term.centre_tokens else C
    norm = float((C.T @ C).norm()) * term.norm
    return float((C.T @ term.centred).square().sum()) / norm if norm else math.nan


def attention_covariance_cosine(embeddings: Tensor, query_key: Tensor, leading_term: Tensor | PreparedTerm) -> float:
    """Frobenius cosine of cov(E A E') and cov(leading term) (paper A, Section 5.2), in float64.

    Rows of the leading term are scaled to norm 1 first. E A E' has queries as rows, like Q of `basis_functions`; the
    authors' program compares it with the transpose of Q.

    Args:
        embeddings: E, one row a token, (n, d).
        query_key: A = W_Q W_K' of a head, or the mean over heads, (d, d).
        leading_term: over the same tokens, (n, n), or what `prepare_term` made of it.

    Returns:
        A number from 0 to 1; nan if either covariance is zero.

    Raises:
        InputError: shapes do not fit, or a number is not finite.
    """
    term = _prepared(leading_term, embeddings)
    identity = torch.eye(embeddings.shape[1], dtype=torch.float64)
    if not isinstance(query_key, Tensor) or query_key.shape != identity.shape:
        raise InputError(f"query_key must be {tuple(identity.shape)} for embeddings of this width")
    return head_covariance_cosines(embeddings, query_key[None], identity[None], term)[0]


def head_covariance_cosines(
    embeddings: Tensor, query: Tensor, key: Tensor, leading_term: Tensor | PreparedTerm
) -> list[float]:
    """`attention_covariance_cosine` of every head, for A = W_Q W_K'; what n takes part in is computed once.

    The scores without their rows' means are C = E W_Q W_K' Ec', where Ec is E minus the mean over tokens. With the
    k x k matrices a = W_K'(Ec'Ec)W_K, b = W_Q'(E'E)W_Q and c = W_Q'(E'D D'E)W_Q of a head,
    <C C', D D'> = tr(c a) and |C C'|^2 = tr(a b a b).

    Args:
        embeddings: E, (n, d). query, key: W_Q and W_K of every head, (H, d, k). leading_term: see there.

    Raises:
        InputError: shapes do not fit, or a number is not finite.
    """
    grams = _score_grams(embeddings, _prepared(leading_term, embeddings))
    if not all(isinstance(matrix, Tensor) and matrix.ndim == 3 for matrix in (query, key)) or (
        query.shape != key.shape or query.shape[1] != embeddings.shape[1]
    ):
        raise InputError(f"query and key must both be (H, {embeddings.shape[1]}, k) for embeddings of this width")
    if not (query.isfinite().all() and key.isfinite().all()):
        raise InputError("the query-key weights hold a number that is not finite: look for the NaN or infinity first")
    return [_head_cosine(W_Q, W_K, grams) for W_Q, W_K in zip(query, key, strict=True)]


class _ScoreGrams(NamedTuple):
    """What the covariances of scores E W_Q W_K' E' need of E and of a leading term, whatever the head: d x d."""

    keys: Tensor  # Ec'Ec
    queries: Tensor  # E'E, of Ec if the term has the mean over tokens taken away
    with_term: Tensor  # E'D D'E, likewise
    term_norm: float


def _score_grams(embeddings: Tensor, term: PreparedTerm) -> _ScoreGrams:
    E = _unit_scale(embeddings)
    centred = _centre(E, dim=0)
    queries = centred if term.centre_tokens else E
    projected = queries.T @ term.centred  # all that takes n^2 d operations
    return _ScoreGrams(centred.T @ centred, queries.T @ queries, projected @ projected.T, term.norm)


def _head_cosine(W_Q: Tensor, W_K: Tensor, grams: _ScoreGrams) -> float:
    """tr(c a)/(sqrt(tr(a b a b)) |D D'|), see `head_covariance_cosines`."""
    W_Q, W_K = _unit_scale(W_Q), _unit_scale(W_K)
    a, b, c = (W.T @ gram @ W for W, gram in ((W_K, grams.keys), (W_Q, grams.queries), (W_Q, grams.with_term)))
    ab = a @ b
    norm = math.sqrt(max(float((ab * ab.T).sum()), 0.0)) * grams.term_norm
    return float((c * a).sum()) / norm if norm else math.nan


@dataclass(frozen=True, eq=False)
class PreparedTerms:
    """The leading terms that layers are compared with.

    Attributes:
        value: Phi'B'. attention: Q, row = query, as the scores E A E' have it. attention_transposed: Q', row = key,
            which the authors' program compares the same scores with.
    """

    value: PreparedTerm
    attention: PreparedTerm
    attention_transposed: PreparedTerm


def prepare_terms(value: Tensor, attention: Tensor, *, centre_tokens: bool = False) -> PreparedTerms:
    """The value and attention terms of `basis_functions` for `compare_layers`; takes 6 n^3 operations.

    Raises InputError if they are not two (n, n) matrices of finite numbers.
    """
    if value.shape != attention.shape:
        raise InputError(f"terms of {tuple(value.shape)} and {tuple(attention.shape)}: give both over the same tokens")
    terms = (prepare_term(term, centre_tokens=centre_tokens) for term in (value, attention, attention.T))
    return PreparedTerms(*terms)


@dataclass(frozen=True)
class LayerAgreement:
    """How one layer agrees with the leading terms: cosines of covariances (paper A, Figures 6 and 7).

    Attributes:
        layer: counted from 1, as in the paper.
        embedding: E_post with the value term. without_mlp: E_attn with the value term.
        attention, attention_transposed: the scores of the mean head over E_pre, with Q and with Q'.
        heads, heads_transposed: the same head by head.
    """

    layer: int
    embedding: float
    without_mlp: float
    attention: float
    attention_transposed: float
    heads: list[float]
    heads_transposed: list[float]

    @property
    def head_spread(self) -> float:
        """Standard deviation of the heads' cosines with Q; nan if one of them is."""
        return float(np.std(self.heads))


def compare_layers(model: LanguageModel, tokens: Tensor, terms: PreparedTerms) -> Iterator[LayerAgreement]:
    """Compare every layer of a model with the leading terms (paper A, Section 5.2), from the first layer to the last.

    Args:
        model: a causal language model.
        tokens: the numbers in the model's vocabulary of the rows and columns of the leading terms, int64 (n,).
        terms: what `prepare_terms` made of the terms.

    Raises:
        InputError: tokens and terms do not fit, or are not of this model.
    """
    if len(tokens) != len(terms.value.centred):
        raise InputError(f"{len(tokens)} tokens but leading terms over {len(terms.value.centred)}: give the same ones")
    for layer, before, after_attention, after in model.single_token_residuals(tokens):
        heads = model.heads(layer)
        mean_head = [weights.transpose(0, 1).reshape(model.dim, -1) for weights in (heads.query, heads.key)]
        cosines, by_head = [], []
        for term in (terms.attention, terms.attention_transposed):
            grams = _score_grams(before, term)
            cosines.append(_head_cosine(*mean_head, grams))
            by_head.append([_head_cosine(W_Q, W_K, grams) for W_Q, W_K in zip(heads.query, heads.key, strict=True)])
        yield LayerAgreement(
            layer=layer + 1,
            embedding=covariance_cosine(after, terms.value),
            without_mlp=covariance_cosine(after_attention, terms.value),
            attention=cosines[0],
            attention_transposed=cosines[1],
            heads=by_head[0],
            heads_transposed=by_head[1],
        )


def _unit_scale(matrix: Tensor) -> Tensor:
    """In float64, divided by its largest entry: fourth powers of small weights would underflow."""
    matrix = matrix.detach().double()
    return matrix / matrix.abs().max() if matrix.any() else matrix


def _check_matrix(name: str, matrix: Tensor) -> None:
    if not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.numel() == 0 or matrix.is_complex():
        raise InputError(f"{name} must be a real matrix with at least one entry, as a torch tensor")
    if not matrix.isfinite().all():
        raise InputError(f"{name} holds a number that is not finite: look for the NaN or infinity first")


def _prepared(leading_term: Tensor | PreparedTerm, embeddings: Tensor) -> PreparedTerm:
    _check_matrix("embeddings", embeddings)
    term = leading_term if isinstance(leading_term, PreparedTerm) else prepare_term(leading_term)
    if len(term.centred) != len(embeddings):
        raise InputError(
            f"embeddings have {len(embeddings)} rows and the leading term {len(term.centred)}: give both over the same "
            "tokens"
        )
    return term
