"""Loss and gradients of the attention-only transformer through products of its weights: exact, and much cheaper.

The plain form multiplies a T x V residual stream by V x V matrices, sequence by sequence. But h_l is a sum over paths:
for every set of layers k_1 < .. < k_j up to l, one term C V_{k_1} .. V_{k_j} with C = A_{k_j} .. A_{k_1} X. So

    scores of layer l = sum over paths a, b of C_a (M_a W_l M_b') C_b',    F = sum over paths a of C_a (M_a W_O),

where M_a is the product of the path's value matrices. The V x V products in brackets are formed once a step, not once
a sequence; a sequence needs only the rows (and columns) of its U distinct tokens, and C_a shrinks from T x V to T x U.
Gradients are collected on the products and sent back through them once. The number of paths is 2^L, so this pays for
few layers; `products_pay` counts operations and decides.
"""

import torch
from torch import Tensor
from torch.nn import functional

from assoc.leading_terms.basis import check_tokens, distinct_tokens, one_hot_slots
from assoc.leading_terms.model import AttentionOnlyTransformer, causal_softmax, mean_cross_entropy, position_scores

CHUNK_ELEMENTS = 8_000_000  # numbers in the largest temporary array of a chunk of sequences
MAX_PRODUCT_BYTES = 4 << 30  # products of a vocabulary too large for a laptop's memory are not formed


def plain_operations(n_sequences: int, length: int, vocab_size: int, n_layers: int) -> float:
    """Multiply-adds of a plain forward pass: N (2 L + 1) products of T x V by V x V, and N 2 L of T x T by T x V."""
    return n_sequences * ((2 * n_layers + 1) * length * vocab_size**2 + 2 * n_layers * length**2 * vocab_size)


def product_operations(n_sequences: int, length: int, vocab_size: int, n_layers: int, n_distinct: int) -> float:
    """Multiply-adds of a forward pass through products: V^3 once a step, T x U x V and T x U x U ones a sequence."""
    paths = 2**n_layers
    # A layer with p = 2^l paths before it: p - 1 products M W, p (p - 1) products M W M', p - 1 products M V.
    per_step = sum((2**layer - 1) * (2**layer + 2) for layer in range(n_layers)) + paths - 1
    per_sequence = paths * length * n_distinct * vocab_size + sum(
        length * 4**layer * n_distinct**2 + length**2 * 2**layer * n_distinct for layer in range(n_layers)
    )
    return per_step * vocab_size**3 + n_sequences * per_sequence


def product_bytes(vocab_size: int, n_layers: int, item_bytes: int) -> int:
    """Memory of the products, their gradients and what autograd keeps: about 3.5 times 4^l a layer and 2^L matrices."""
    return int(3.5 * (sum(4**layer for layer in range(n_layers)) + 2**n_layers) * vocab_size**2 * item_bytes)


def products_pay(
    n_sequences: int, length: int, vocab_size: int, n_layers: int, n_distinct: int, item_bytes: int = 8
) -> bool:
    """Whether the form through products needs fewer operations than the plain one, and fits into MAX_PRODUCT_BYTES."""
    sizes = (n_sequences, length, vocab_size, n_layers)
    fits = product_bytes(vocab_size, n_layers, item_bytes) <= MAX_PRODUCT_BYTES
    return fits and product_operations(*sizes, n_distinct) < plain_operations(*sizes)


def weight_products(model: AttentionOnlyTransformer) -> list[Tensor]:
    """What sequences read rows of: for each layer M_a W_l M_b' as (V, V, paths^2); last, M_a W_O as (V, 2^L, V)."""
    paths: list[Tensor | None] = [None]  # None stands for the empty path, whose product is the identity
    products = []
    for W, V in zip(model.attention, model.value, strict=True):
        left = [W if M is None else M @ W for M in paths]
        products.append(torch.stack([MW if M is None else MW @ M.T for MW in left for M in paths], dim=-1))
        paths += [V if M is None else M @ V for M in paths]
    products.append(torch.stack([model.output if M is None else M @ model.output for M in paths], dim=1))
    return products


def logits_from_products(products: list[Tensor], positions: list[Tensor], tokens: Tensor, slots: Tensor) -> Tensor:
    """Logits F, (n, T, V), of sequences given by their distinct tokens (n, U) and slots (n, T).

    Args:
        products: what `weight_products` returns. positions: P_1 .. P_L.
    """
    *score_products, output_products = products
    n_sequences, n_slots = tokens.shape
    length, vocab_size = slots.shape[1], output_products.shape[-1]
    pairs = tokens.unsqueeze(2) * vocab_size + tokens.unsqueeze(1)
    paths = one_hot_slots(slots, n_slots, output_products.dtype).unsqueeze(3)  # C_a for each path, (n, T, U, paths)
    for product, position in zip(score_products, positions, strict=True):
        p = paths.shape[3]
        blocks = functional.embedding(pairs, product.reshape(-1, p * p)).view(n_sequences, n_slots, n_slots, p, p)
        blocks = blocks.transpose(2, 3).reshape(n_sequences, n_slots * p, n_slots * p)
        C = paths.flatten(2)
        A = causal_softmax(C @ blocks @ C.transpose(1, 2) + position_scores(position, length))
        paths = torch.cat([paths, (A @ C).view_as(paths)], dim=3)
    rows = functional.embedding(tokens, output_products.flatten(1)).view(n_sequences, -1, vocab_size)
    return paths.flatten(2) @ rows


def loss_and_gradients_through_products(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy; the gradient of every weight is left in its .grad, as after `loss.backward()`."""
    products = weight_products(model)
    leaves = [product.detach().requires_grad_() for product in products]
    tokens, slots = distinct_tokens(inputs)
    n_paths = 2**model.n_layers
    n_slots = tokens.shape[1]
    size = max(1, CHUNK_ELEMENTS // max(n_slots * n_paths * model.vocab_size, (n_slots * n_paths // 2) ** 2))
    total = 0.0
    # Sequences with equally many distinct tokens share a chunk, which then needs little padding.
    for rows in slots.amax(dim=1).argsort(stable=True).split(size):
        some_slots, some_targets = slots[rows], targets[rows]
        some_tokens = tokens[rows, : int(some_slots.max()) + 1]
        logits = logits_from_products(leaves, list(model.position), some_tokens, some_slots)
        loss = functional.cross_entropy(logits.flatten(0, 1), some_targets.flatten(), reduction="sum") / targets.numel()
        loss.backward()
        total += loss.item()
    torch.autograd.backward(products, [leaf.grad for leaf in leaves])
    return total


def loss_and_gradients_plain(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """The same by the plain form, in chunks of sequences so that memory stays bounded."""
    size = max(1, CHUNK_ELEMENTS // (inputs.shape[1] * model.vocab_size))
    total = 0.0
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        loss = mean_cross_entropy(model, x, y) * (len(x) / len(inputs))
        loss.backward()
        total += loss.item()
    return total


def loss_and_gradients(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy by the cheaper form; the gradients are left in .grad (previous ones are cleared)."""
    check_tokens(inputs, targets, model.vocab_size)
    model.check_inputs(inputs)
    model.zero_grad(set_to_none=True)
    n_distinct = distinct_tokens(inputs)[0].shape[1]
    item_bytes = model.output.element_size()
    if products_pay(*inputs.shape, model.vocab_size, model.n_layers, n_distinct, item_bytes):
        return loss_and_gradients_through_products(model, inputs, targets)
    return loss_and_gradients_plain(model, inputs, targets)
