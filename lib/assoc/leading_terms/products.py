"""Loss and gradients of the attention-only transformer through products of its weights: exact, and much cheaper.

The plain form multiplies a T x V residual stream by V x V matrices, sequence by sequence. But h_l is a sum over paths:
for every set of layers k_1 < .. < k_j up to l, one term C V_{k_1} .. V_{k_j} with C = A_{k_j} .. A_{k_1} X. So

    scores of layer l = sum over paths a, b of C_a (M_a W_l M_b') C_b',    F = sum over paths a of C_a (M_a W_O),

where M_a is the product of the path's value matrices. Products of V x V matrices are formed once a step, not once a
sequence; a sequence needs only their rows of its U distinct tokens, and C_a shrinks from T x V to T x U. Gradients are
collected on the products and sent back through them once a step. For scores there are two ways, chosen layer by layer:
form M_a W_l M_b' and look up the U x U entries of a sequence, or multiply U rows of M_a W_l by U rows of M_b for each
sequence. The number of paths is 2^L, so all this pays for few layers; `cheapest_form` counts operations and decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from assoc.errors import InputError
from assoc.leading_terms.basis import check_tokens, distinct_tokens, one_hot_slots, prefixes
from assoc.leading_terms.model import AttentionOnlyTransformer, causal_mask, mean_cross_entropy, position_scores

CHUNK_ELEMENTS = 4_000_000  # numbers in the largest array of a chunk of sequences: 16 MB in float32, within a cache
MAX_PRODUCT_BYTES = 4 << 30  # products of a vocabulary too large for a laptop's memory are not formed
LOOK_UP_OPERATIONS = 16  # an entry looked up and its gradient put back, far apart in memory, cost as many multiply-adds

Form = tuple[bool, ...]  # for each layer: whether the products M_a W_l M_b' are formed


@dataclass(frozen=True)
class Size:
    """Sizes that decide what a step costs: N sequences, T positions, V words, L layers, U distinct tokens each."""

    n_sequences: int
    length: int
    vocab_size: int
    n_layers: int
    n_distinct: int

    def plain_operations(self) -> float:
        """Multiply-adds of a plain forward pass: N (2 L + 1) products of T x V by V x V, 2 N L of T x T by T x V."""
        N, T, V, L = self.n_sequences, self.length, self.vocab_size, self.n_layers
        return N * ((2 * L + 1) * T * V**2 + 2 * L * T**2 * V)

    def product_operations(self, form: Form) -> float:
        """Multiply-adds of a forward pass through products: V^3 ones a step, T x U x V and smaller ones a sequence."""
        N, T, V, U = self.n_sequences, self.length, self.vocab_size, self.n_distinct
        paths = 2**self.n_layers
        # M_a W_O for every path but the empty one; M_a for those of two or more of the first L - 1 layers.
        per_step = paths - 1 + paths // 2 - self.n_layers
        per_sequence = paths * T * U * V
        for layer, pairs_formed in enumerate(form):
            p = 2**layer
            per_step += p - 1 + pairs_formed * p * (p - 1)
            pair = LOOK_UP_OPERATIONS * p * p * U**2 if pairs_formed else p * (p - 1) * U**2 * V
            per_sequence += pair + T * p * p * U**2 + T**2 * p * U
        return per_step * V**3 + N * per_sequence

    def product_bytes(self, form: Form, item_bytes: int) -> int:
        """Memory of what sequences read, twice for its gradients, and of products on their way into one table."""
        matrices = 2**self.n_layers + sum(4**layer if formed else 2**layer for layer, formed in enumerate(form))
        if not all(form):
            matrices += 2 ** (self.n_layers - 1) - 1
        return (2 * matrices + 2**self.n_layers) * self.vocab_size**2 * item_bytes


def cheapest_form(size: Size, item_bytes: int = 8) -> Form | None:
    """For which layers to form the products of scores, so that the operations are fewest; None: the plain form is best.

    Forms that need more than MAX_PRODUCT_BYTES are left out.
    """
    costs: dict[Form | None, float] = {None: size.plain_operations()}
    for n_looked_up in range(size.n_layers + 1):  # later layers have more pairs of paths, and larger products
        form = tuple(layer < n_looked_up for layer in range(size.n_layers))
        if size.product_bytes(form, item_bytes) <= MAX_PRODUCT_BYTES:
            costs[form] = size.product_operations(form)
    return min(costs, key=costs.__getitem__)


class Table:
    """A product of weights whose rows sequences read, and beside it the gradient that they put back."""

    def __init__(self, product: Tensor) -> None:
        """`product`: (rows, ..), within the graph of the weights."""
        self.product = product
        self.values = product.detach().flatten(1)
        self.gradient: Tensor | None = None
        self.read: list[tuple[Tensor, Tensor]] = []

    def rows(self, index: Tensor) -> Tensor:
        """The rows of these numbers, (*index.shape, ..): a leaf whose .grad `collect` adds to the gradient."""
        rows = self.values.index_select(0, index.flatten()).view(*index.shape, *self.product.shape[1:])
        if self.product.requires_grad and torch.is_grad_enabled():
            self.read.append((index, rows.requires_grad_()))
        return rows

    def collect(self) -> None:
        """Add the gradients of the rows read since the last call."""
        for index, rows in self.read:
            if rows.grad is not None:
                if self.gradient is None:
                    self.gradient = torch.zeros_like(self.values)
                self.gradient.index_add_(0, index.flatten(), rows.grad.reshape(-1, self.values.shape[1]))
        self.read.clear()


class WeightProducts:
    """What sequences read of a model's weights, formed once a step.

    Args:
        model: whose gradients `send_back` leaves in .grad.
        form: for each layer whether M_a W_l M_b' is formed.
    """

    def __init__(self, model: AttentionOnlyTransformer, form: Form) -> None:
        self.form, self.n_layers, self.vocab_size = form, model.n_layers, model.vocab_size
        paths: list[Tensor | None] = [None]  # M_a of the paths so far; None stands for the empty one, the identity
        scores = []
        for layer, (W, V) in enumerate(zip(model.attention, model.value, strict=True)):
            left = [W if M is None else M @ W for M in paths]
            if form[layer]:
                left = [MW if M is None else MW @ M.T for MW in left for M in paths]
                scores.append(torch.stack(left, dim=-1).flatten(0, 1))  # (V V, paths^2)
            else:
                scores.append(torch.stack(left, dim=1))  # (V, paths, V)
            if layer < model.n_layers - 1:
                paths += [V if M is None else M @ V for M in paths]
        # F = h_{L-1} W_O + A_L h_{L-1} V_L W_O: from right to left, fewer products than from left to right.
        ends = [model.output, model.value[-1] @ model.output]
        outputs = [end if M is None else M @ end for end in ends for M in paths]
        self.scores = [Table(product) for product in scores]
        self.values = Table(torch.stack(paths[1:], dim=1)) if len(paths) > 1 and not all(form) else None
        self.outputs = Table(torch.stack(outputs, dim=1))  # (V, 2^L, V)
        later = ~causal_mask(model.length, model.output.device)
        positions = [position_scores(P, model.length).masked_fill(later, -torch.inf) for P in model.position]
        self.positions = [Table(scores) for scores in positions]

    def _blocks(self, layer: int, tokens: Tensor, values: Tensor | None) -> Tensor:
        """Scores between the paths of the distinct tokens (n, U) at one layer, (n, U paths, U paths)."""
        n, U = tokens.shape
        p = 2**layer
        if self.form[layer]:
            pairs = tokens.unsqueeze(2) * self.vocab_size + tokens.unsqueeze(1)
            blocks = self.scores[layer].rows(pairs).view(n, U, U, p, p).transpose(2, 3)
        else:
            left = self.scores[layer].rows(tokens)  # (n, U, p, V)
            keys = tokens[:, None, None, :].expand(n, U, p, U)
            blocks = left.gather(3, keys).unsqueeze(4)  # the empty path as key
            if p > 1:
                right = values[:, :, : p - 1].flatten(1, 2).transpose(1, 2)
                blocks = torch.cat([blocks, (left.flatten(1, 2) @ right).view(n, U, p, U, p - 1)], dim=4)
        return blocks.reshape(n, U * p, U * p)

    def paths(self, tokens: Tensor, slots: Tensor) -> Tensor:
        """C_a of every path through all layers, (n, T, U, 2^L); tokens: (n, U), slots: (n, T)."""
        values = self.values.rows(tokens) if self.values else None
        paths = one_hot_slots(slots, tokens.shape[1], self.outputs.values.dtype).unsqueeze(3)
        positions = torch.arange(slots.shape[1], device=slots.device)
        for layer in range(self.n_layers):
            C = paths.flatten(2)
            scores = C @ self._blocks(layer, tokens, values) @ C.transpose(1, 2)
            A = (scores + self.positions[layer].rows(positions)[:, : len(positions)]).softmax(dim=-1)
            paths = torch.cat([paths, (A @ C).view_as(paths)], dim=3)
        return paths

    def add_sequences(self, tokens: Tensor, slots: Tensor, targets: Tensor, scale: float) -> Tensor:
        """`scale` times the summed cross-entropy of some sequences; their gradient is collected.

        Args:
            tokens: (n, U), as `distinct_tokens` orders them. slots, targets: (n, T).
        """
        paths, rows = self.paths(tokens, slots), self.outputs.rows(tokens)
        C, O = paths.detach().flatten(2), rows.detach().flatten(1, 2)
        gradient_C, gradient_O = torch.zeros_like(C), torch.zeros_like(O)
        total = torch.zeros((), dtype=O.dtype, device=O.device)
        for t, n_seen in prefixes(slots):
            seen = n_seen * paths.shape[3]
            loss, residual = loss_and_residual(C[:, t, :seen] @ O[:, :seen], targets[:, t])
            total += loss
            gradient_C[:, t, :seen] = residual @ O[:, :seen].transpose(1, 2)
            gradient_O[:, :seen] += (scale * C[:, t, :seen]).transpose(1, 2) @ residual
        if rows.requires_grad:
            rows.grad = gradient_O.view_as(rows)
        if paths.requires_grad:
            paths.backward(gradient_C.mul_(scale).view_as(paths))
        for table in self._tables():
            table.collect()
        return scale * total

    @torch.no_grad()
    def logits(self, tokens: Tensor, slots: Tensor) -> Tensor:
        """Logits F, (n, T, V), of sequences given by their distinct tokens (n, U) and slots (n, T)."""
        C = self.paths(tokens, slots).flatten(2)
        return C @ self.outputs.rows(tokens).flatten(1, 2)

    def send_back(self) -> None:
        """Turn the gradients collected on the products into those of the weights, in .grad."""
        tables = [table for table in self._tables() if table.gradient is not None]
        torch.autograd.backward(
            [table.product for table in tables], [table.gradient.view_as(table.product) for table in tables]
        )

    def _tables(self) -> Iterator[Table]:
        yield from (*self.scores, *self.positions, self.outputs)
        if self.values:
            yield self.values


def loss_and_residual(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy, and its gradient softmax(F) - Y with respect to the logits F, written into their memory.

    Args:
        logits: F, (n, T, V), overwritten. targets: (n, T).
    """
    chosen = targets.unsqueeze(2)
    largest = logits.amax(dim=2, keepdim=True)
    chosen_logits = logits.gather(2, chosen)
    probabilities = torch.softmax(logits, dim=2, out=logits)
    # The largest probability is 1 over the sum of exp(F - max F).
    log_normaliser = largest - probabilities.amax(dim=2, keepdim=True).log()
    loss = (log_normaliser - chosen_logits).sum()
    return loss, probabilities.scatter_add_(2, chosen, torch.full_like(largest, -1.0))


def chunks_of_similar_sequences(
    inputs: Tensor, targets: Tensor, vocab_size: int, n_layers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Chunks of sequences as distinct tokens (n, U), slots (n, T) and targets (n, T).

    Sequences with about equally many distinct tokens share a chunk, which then needs little padding.
    """
    tokens, slots = distinct_tokens(inputs)
    n_slots, n_paths = tokens.shape[1], 2**n_layers
    size = max(1, CHUNK_ELEMENTS // max(n_slots * n_paths * vocab_size, (n_slots * n_paths // 2) ** 2))
    for rows in slots.amax(dim=1).argsort(stable=True).split(size):
        some_slots = slots[rows]
        yield tokens[rows, : int(some_slots.max()) + 1], some_slots, targets[rows]


def loss_and_gradients_through_products(
    model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor, form: Form
) -> float:
    """Mean cross-entropy; the gradient of every weight is left in its .grad, as after `loss.backward()`.

    Args:
        inputs, targets: int64 (N, T). form: for each layer whether products of scores are formed.
    """
    products = WeightProducts(model, form)
    total = torch.zeros((), dtype=torch.float64, device=inputs.device)
    for tokens, slots, y in chunks_of_similar_sequences(inputs, targets, model.vocab_size, model.n_layers):
        total += products.add_sequences(tokens, slots, y, 1 / targets.numel())
    products.send_back()
    return total.item()


def loss_and_gradients_plain(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """The same by the plain form, in chunks of sequences so that memory stays bounded."""
    size = max(1, CHUNK_ELEMENTS // (inputs.shape[1] * model.vocab_size))
    total = 0.0
    for x, y in zip(inputs.split(size), targets.split(size), strict=True):
        loss = mean_cross_entropy(model, x, y) * (len(x) / len(inputs))
        loss.backward()
        total += loss.item()
    return total


def best_form(model: AttentionOnlyTransformer, inputs: Tensor) -> Form | None:
    """`cheapest_form` for a model and its inputs."""
    size = Size(*inputs.shape, model.vocab_size, model.n_layers, distinct_tokens(inputs)[0].shape[1])
    return cheapest_form(size, model.output.element_size())


def loss_and_gradients(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy by the cheapest form; the gradients are left in .grad (previous ones are cleared).

    Where weights are not finite neither is the loss, which the loops that call this look at. Raises InputError for
    tokens that do not fit.
    """
    check_tokens(inputs, targets, model.vocab_size)
    model.check_inputs(inputs)
    model.zero_grad(set_to_none=True)
    form = best_form(model, inputs)
    if form is None:
        return loss_and_gradients_plain(model, inputs, targets)
    return loss_and_gradients_through_products(model, inputs, targets, form)


@torch.no_grad()
def mean_loss(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor, form: Form | None = None) -> float:
    """Mean cross-entropy in nats over all N T positions, without gradients.

    Args:
        form: how to compute it; default: the cheapest form.

    Raises:
        InputError: tokens that do not fit, weights that are not finite, or a form for another number of layers.
    """
    check_tokens(inputs, targets, model.vocab_size)
    model.check_inputs(inputs)
    model.check_finite()
    form = form or best_form(model, inputs)
    if form is not None and len(form) != model.n_layers:
        raise InputError(f"form has {len(form)} entries: give one for each of {model.n_layers} layers")
    total = torch.zeros((), dtype=torch.float64, device=inputs.device)
    if form is None:
        size = max(1, CHUNK_ELEMENTS // (inputs.shape[1] * model.vocab_size))
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            total += loss_and_residual(model(x), y)[0]
    else:
        products = WeightProducts(model, form)
        for tokens, slots, y in chunks_of_similar_sequences(inputs, targets, model.vocab_size, model.n_layers):
            total += loss_and_residual(products.logits(tokens, slots), y)[0]
    return total.item() / targets.numel()
