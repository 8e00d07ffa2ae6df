"""The attention-only transformer, its gradients and its training, against oracles that share no code with them."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import literal_leading_terms as literal
from assoc.errors import InputError
from assoc.leading_terms import (
    AttentionOnlyTransformer,
    basis_functions,
    compare_with_leading_terms,
    cosine,
    gradients,
    loss_and_gradients,
    mean_cross_entropy,
    remove_projection,
    softmax_jacobian_product,
    step_coefficients,
    train,
)
from assoc.leading_terms import basis as basis_module
from assoc.leading_terms import products as products_module
from assoc.leading_terms import training as training_module
from assoc.leading_terms.products import (
    Size,
    WeightProducts,
    cheapest_form,
    loss_and_gradients_plain,
    loss_and_gradients_through_products,
    loss_and_residual,
    mean_loss,
)
from conftest import relative_error


def random_case(
    n: int, length: int, vocab_size: int, n_layers: int, seed: int, scale: float = 0.5
) -> tuple[AttentionOnlyTransformer, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = AttentionOnlyTransformer(vocab_size, length, n_layers)
    with torch.no_grad():
        for weight in model.parameters():
            weight += scale * torch.randn(weight.shape, dtype=torch.float64, generator=generator)
    x, y = torch.randint(vocab_size, (2, n, length), generator=generator)
    return model, x, y


sizes = given(
    n=st.integers(1, 4),
    length=st.integers(1, 7),
    vocab_size=st.integers(2, 9),
    n_layers=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=40, deadline=None)
@sizes
def test_logits_agree_with_the_literal_transcription(**size: int) -> None:
    model, x, _ = random_case(**size)
    weights = {kind: [w.detach().numpy() for w in tensors] for kind, tensors in model.weights().items()}
    weights["output"] = weights["output"][0]
    expected = literal.logits(weights, x.numpy(), size["vocab_size"])
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@sizes
def test_written_out_gradients_agree_with_autograd(**size: int) -> None:
    model, x, y = random_case(**size)
    mean_cross_entropy(model, x, y).backward()
    ours = gradients(model, x, y)
    assert relative_error(ours.output, model.output.grad) < 1e-10
    for kind in ("value", "attention", "position"):
        for formula, weight in zip(getattr(ours, kind), getattr(model, kind), strict=True):
            # With one token there is nothing to attend to: the gradient is zero, up to rounding.
            torch.testing.assert_close(formula, weight.grad, rtol=1e-9, atol=1e-14)


def test_gradients_of_sequences_shorter_than_the_model() -> None:
    model, x, y = random_case(3, 6, 5, 2, seed=4)
    x, y = x[:, :4], y[:, :4]
    mean_cross_entropy(model, x, y).backward()
    for formula, weight in zip(gradients(model, x, y).position, model.position, strict=True):
        torch.testing.assert_close(formula, weight.grad, rtol=1e-10, atol=1e-15)


@settings(max_examples=60, deadline=None)
@sizes
def test_products_agree_with_the_plain_form(**size: int) -> None:
    """In every form: each layer's products of scores formed, or multiplied sequence by sequence."""
    model, x, y = random_case(**size)
    loss = loss_and_gradients_plain(model, x, y)
    plain = [weight.grad.clone() for weight in model.parameters()]
    form = tuple(bool(size["seed"] >> layer & 1) for layer in range(size["n_layers"]))
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products_module, "CHUNK_ELEMENTS", 1 + size["seed"] % 2000)
        patch.setattr(basis_module, "PREFIX_STEP", 1 + size["seed"] % 9)
        assert loss_and_gradients_through_products(model, x, y, form) == pytest.approx(loss, rel=1e-12)
        assert mean_loss(model, x, y, form) == pytest.approx(loss, rel=1e-12)
        patch.setattr(products_module, "best_form", lambda *_: None)  # the plain form
        assert mean_loss(model, x, y) == pytest.approx(loss, rel=1e-12)
    for weight, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=1e-10, atol=1e-13)


def test_products_of_sequences_shorter_than_the_model() -> None:
    model, x, y = random_case(3, 6, 5, 2, seed=4)
    x, y = x[:, :4], y[:, :4]
    loss_and_gradients_plain(model, x, y)
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    loss_and_gradients_through_products(model, x, y, (True, False))
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("frozen", ["output", "value", "attention", "position", "all but output"])
@pytest.mark.parametrize("form", [(True, True), (False, False)])
def test_products_leave_frozen_weights_without_gradient(frozen: str, form: tuple[bool, bool]) -> None:
    model, x, y = random_case(3, 5, 6, 2, seed=2)
    loss_and_gradients_plain(model, x, y)
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name == "output" if frozen == "all but output" else not name.startswith(frozen))
    loss_and_gradients_through_products(model, x, y, form)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-10, atol=1e-14)
        else:
            assert weight.grad is None


def test_tensors_follow_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's meta device, which computes nothing but refuses to mix with tensors of the CPU, as a GPU does."""
    parts = [(slice(0, 3), 2), (slice(3, 7), 5)]  # meta tensors hold no numbers from which to find these
    for module in (basis_module, products_module):
        monkeypatch.setattr(module, "prefixes", lambda slots: iter(parts))
    monkeypatch.setattr(AttentionOnlyTransformer, "check_inputs", lambda *_: None)
    model = AttentionOnlyTransformer(9, 7, 3).to("meta")
    x, tokens = (torch.zeros(4, n, dtype=torch.int64, device="meta") for n in (7, 5))
    for form in ((True, True, True), (False, False, False)):
        model.zero_grad(set_to_none=True)
        products = WeightProducts(model, form)
        products.add_sequences(tokens, x, x, 0.1)
        products.send_back()
        assert all(weight.grad.is_meta for weight in model.parameters())
    model(x).sum().backward()
    monkeypatch.setattr(basis_module, "distinct_tokens", lambda _: (tokens, x))
    monkeypatch.setattr(basis_module, "check_tokens", lambda *_: None)
    monkeypatch.setattr(basis_module, "check_numbers", lambda *_: None)
    first = basis_module.BigramAndContext(9, device="meta").add(x, x)
    second = basis_module.AttentionAndPosition(first.context(), 7).add(x, x)
    assert all(tensor.is_meta for tensor in (first.bigram(), *second.statistics()))
    with pytest.raises(RuntimeError):
        x + torch.arange(7)


def test_loss_and_residual_survive_large_logits() -> None:
    logits = 1000 * torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(7, (2, 3), generator=torch.Generator().manual_seed(1))
    logits.requires_grad_()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    expected.backward()
    loss, residual = loss_and_residual(logits.detach().clone(), targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(residual, logits.grad, rtol=1e-12, atol=1e-15)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 7), elements=st.integers(1, 200))
def test_chunks_of_the_plain_form_change_nothing(n: int, elements: int) -> None:
    model, x, y = random_case(n, 5, 6, 2, seed=8)
    mean_cross_entropy(model, x, y).backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    loss = mean_cross_entropy(model, x, y).item()
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products_module, "CHUNK_ELEMENTS", elements)
        assert loss_and_gradients_plain(model, x, y) == pytest.approx(loss, rel=1e-12)
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("form", [(True, True, True), (False, False, False)])
def test_products_in_float32(form: tuple[bool, ...]) -> None:
    model, x, y = random_case(6, 12, 20, 3, seed=1, scale=0.1)
    loss_and_gradients_plain(model, x, y)
    expected = [weight.grad.clone() for weight in model.parameters()]
    single = AttentionOnlyTransformer(20, 12, 3, dtype=torch.float32)
    single.load_state_dict(model.state_dict())
    loss_and_gradients_through_products(single, x, y, form)
    for weight, gradient in zip(single.parameters(), expected, strict=True):
        assert relative_error(weight.grad, gradient) < 2e-6


def test_the_cheapest_form_is_chosen() -> None:
    """The chapter's size goes through products; many layers or one sequence do not pay."""
    assert cheapest_form(Size(512, 64, 500, 3, 49)) == (True, True, True)
    assert cheapest_form(Size(512, 64, 500, 8, 49)) is None
    assert cheapest_form(Size(1, 64, 500, 3, 49)) is None
    assert cheapest_form(Size(256, 200, 3000, 3, 111), item_bytes=4) == (False, False, False)
    assert cheapest_form(Size(2048, 200, 3000, 3, 111), item_bytes=4) == (True, True, True)
    # In float64 the 16 products a word pair of the last layer would not fit into a laptop's memory.
    assert cheapest_form(Size(2048, 200, 3000, 3, 111), item_bytes=8) == (True, True, False)


def test_operations_are_counted_by_hand() -> None:
    no_sequence = Size(0, 64, 500, 3, 49)
    # M_a W_O for 7 paths, M of layers 1 and 2 together, M_a W_l for 1 and 3 paths.
    assert no_sequence.product_operations((False, False, False)) == (7 + 1 + 1 + 3) * 500**3
    assert no_sequence.product_operations((True, True, True)) == (7 + 1 + 1 + 3 + 2 + 12) * 500**3
    assert Size(2, 3, 5, 1, 3).plain_operations() == 2 * (3 * 3 * 25 + 2 * 9 * 5)
    one_sequence = Size(1, 3, 5, 1, 2)
    assert one_sequence.product_operations((False,)) == 125 + 2 * 3 * 2 * 5 + 0 + 3 * 2**2 + 3**2 * 2


def test_softmax_jacobian_at_uniform_attention_takes_the_mean_away() -> None:
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(6, 6, dtype=torch.float64, generator=generator)
    A0 = torch.tensor(literal.uniform_attention(6))
    expected = np.einsum("tmk,tk->tm", literal.softmax_jacobian(A0.numpy()), upstream.numpy())
    np.testing.assert_allclose(softmax_jacobian_product(A0, upstream), expected, atol=1e-15)
    row = 3
    by_hand = (upstream[row, : row + 1] - upstream[row, : row + 1].mean()) / (row + 1)
    torch.testing.assert_close(softmax_jacobian_product(A0, upstream)[row, : row + 1], by_hand)


def test_training_reproduces_the_reference(reference: dict) -> None:
    """Full-batch descent from zero by the paper's own program: losses and every weight after the last step."""
    x, y = torch.tensor(reference["x"]), torch.tensor(reference["y"])
    layers, steps = int(reference["train_layers"]), int(reference["train_steps"])
    model = AttentionOnlyTransformer(int(reference["vocab_size"]), x.shape[1], layers)
    history = train(model, x, y, float(reference["train_lr"]), steps, show_progress=False)
    theirs = [float(reference[f"train_loss_{step}"]) for step in range(1, steps + 1)]
    np.testing.assert_allclose(history.loss[:-1], theirs, rtol=1e-9)
    assert relative_error(model.output, reference["train_W_O"]) < 1e-9
    for kind, letter in (("attention", "W"), ("position", "P"), ("value", "V")):
        for layer in range(layers):
            weight = model.weights()[kind][layer]
            assert relative_error(weight, reference[f"train_{letter}_{layer}"]) < 1e-9, (kind, layer)


def small_run(learning_rate: float, steps: int, **options: object) -> tuple:
    x = torch.randint(12, (8, 11), generator=torch.Generator().manual_seed(3))
    inputs, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous()
    model = AttentionOnlyTransformer(12, 10, 2)
    basis = basis_functions(inputs, targets, 12)
    history = train(model, inputs, targets, learning_rate, steps, basis=basis, show_progress=False, **options)
    return model, history, basis


def test_weights_move_one_kind_at_a_time() -> None:
    _, history, _ = small_run(0.1, 3)
    moved = [{a.kind for a in record if a.coefficient != 0} for record in history.agreements]
    assert moved == [set(), {"output"}, {"output", "value"}, {"output", "value", "attention", "position"}]
    assert math.isnan(history.cosines("attention", 1)[2])
    assert history.cosines("attention", 1)[3] > 0.99


def test_error_after_three_steps_shrinks_in_proportion_to_the_learning_rate() -> None:
    errors = {}
    for eta in (0.02, 0.01, 0.005):
        model, _, basis = small_run(eta, 3)
        coefficients = step_coefficients(3, eta)
        errors[eta] = {
            kind: relative_error(model.weights()[kind][-1], getattr(coefficients, kind) * basis.leading_term(kind))
            for kind in ("output", "value", "attention", "position")
        }
    for kind in errors[0.02]:
        assert errors[0.02][kind] / errors[0.01][kind] == pytest.approx(2, rel=0.1)
        assert errors[0.01][kind] / errors[0.005][kind] == pytest.approx(2, rel=0.05)


def test_history_records_what_was_asked() -> None:
    model, history, basis = small_run(0.5, 7, record_every=3)
    assert history.steps == [0, 3, 6, 7]
    assert history.training_time == [0, 1.5, 3, 3.5]
    assert history.loss[0] == pytest.approx(math.log(12))
    assert history.loss == sorted(history.loss, reverse=True)
    assert history.agreements[-1] == compare_with_leading_terms(model, basis)
    assert history.smallest_cosine("value") == min(history.cosines("value", 1)[1:] + history.cosines("value", 2)[1:])
    assert history.smallest_cosine("value", 1.5) >= history.smallest_cosine("value")
    assert history.coefficients("output")[1] == pytest.approx(1.5, rel=0.2)
    content = json.loads(json.dumps(history.as_dict(), allow_nan=False))
    assert content["agreements"][0][0] == {"kind": "output", "layer": 0, "cosine": None, "coefficient": 0.0}
    with pytest.raises(InputError, match="no value weight of layer 9"):
        history.cosines("value", 9)
    with pytest.raises(InputError, match="no attention weight moved"):
        history.smallest_cosine("attention", 0.5)


def test_mini_batches_visit_every_sequence_once_an_epoch_and_are_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for _ in range(2):
        seen: list[torch.Tensor] = []

        def watched(model: AttentionOnlyTransformer, x: torch.Tensor, y: torch.Tensor) -> float:
            seen.append(x)  # noqa: B023 - used within this round of the loop only
            return loss_and_gradients(model, x, y)

        monkeypatch.setattr(training_module, "loss_and_gradients", watched)
        generator = torch.Generator().manual_seed(5)
        _, history, _ = small_run(0.2, 8, batch_size=2, generator=generator)
        runs.append((history.loss, seen))
    assert runs[0][0] == runs[1][0]
    first_epoch, second_epoch = torch.cat(runs[0][1][:4]), torch.cat(runs[0][1][4:8])
    assert sorted(first_epoch.tolist()) == sorted(second_epoch.tolist())
    assert not torch.equal(first_epoch, second_epoch)


def test_a_short_rest_of_an_epoch_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(model: AttentionOnlyTransformer, x: torch.Tensor, y: torch.Tensor) -> float:
        sizes.append(len(x))
        return loss_and_gradients(model, x, y)

    monkeypatch.setattr(training_module, "loss_and_gradients", watched)
    small_run(0.2, 5, batch_size=3)  # of 8 sequences
    assert sizes == [3] * 6


def test_frozen_weights_stay() -> None:
    model, x, y = random_case(3, 4, 5, 1, seed=0)
    model.value[0].requires_grad_(False)
    before = model.value[0].clone()
    train(model, x, y, 0.1, 2, show_progress=False)
    assert torch.equal(model.value[0], before)


def test_a_history_without_basis_says_how_to_get_cosines() -> None:
    model, x, y = random_case(3, 4, 5, 1, seed=0)
    history = train(model, x, y, 0.1, 1, show_progress=False)
    for call in (lambda: history.cosines("output"), lambda: history.smallest_cosine("output")):
        with pytest.raises(InputError, match="pass basis="):
            call()


def test_cosine() -> None:
    a = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert cosine(a, a) == pytest.approx(1)
    assert cosine(a, -2 * a) == pytest.approx(-1)
    assert cosine(a, torch.tensor([[1.0, 5.0], [7.0, 0.0]])) == pytest.approx(3 / (5 * 75**0.5))
    assert cosine(a * 1e-30, a * 1e30) == pytest.approx(1)  # squares would under- and overflow in float32
    assert cosine(a.double() * 1e-200, a.double()) == pytest.approx(1)
    assert math.isnan(cosine(torch.zeros(2, 2), a))
    with pytest.raises(InputError, match="one shape"):
        cosine(a, a[0])


@given(st.integers(0, 2**32))
def test_what_is_left_after_removal_is_orthogonal(seed: int) -> None:
    weight, term = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left = remove_projection(weight, term)
    assert abs(float((left * term).sum())) < 1e-12
    removed = weight - left
    assert relative_error(removed / removed.norm(), (removed * term).sum().sign() * term / term.norm()) < 1e-9
    assert remove_projection(weight.float(), term).dtype == torch.float32
    torch.testing.assert_close(remove_projection(weight, term * 1e-200), left)


def test_bad_input() -> None:
    model, x, y = random_case(3, 4, 5, 1, seed=0)
    basis = basis_functions(x, y, 5)
    cases = [
        (lambda: AttentionOnlyTransformer(0, 4, 1), "vocab_size"),
        (lambda: AttentionOnlyTransformer(5, 4, 0), "n_layers"),
        (lambda: model(torch.zeros(2, 9, dtype=torch.int64)), "1 <= T <= 4"),
        (lambda: model(torch.full((2, 3), 7)), "0 to 4"),
        (lambda: train(model, x, y, 0.0, 1), "learning_rate"),
        (lambda: train(model, x, y, 0.1, 0), "steps"),
        (lambda: train(model, x, y, 0.1, 1, batch_size=9), "batch_size"),
        (lambda: train(model, x, y, 0.1, 1, record_every=0), "record_every"),
        (lambda: train(model, x, y + 5, 0.1, 1), "targets hold tokens"),
        (lambda: compare_with_leading_terms(AttentionOnlyTransformer(6, 4, 1), basis), "vocabulary size"),
        (lambda: model(x.int()), "int64"),
        (lambda: train(model, x, y, "1", 1), "learning_rate"),
        (lambda: train(model, x, y, 0.1, 1, batch_size=2.0), "batch_size"),
        (lambda: mean_cross_entropy(model, x, y + 5), "targets hold tokens"),
        (lambda: gradients(model, x, y - 5), "targets hold tokens"),
        (lambda: loss_and_gradients(model, x, y[:2]), "one shape"),
        (lambda: basis.leading_term("items"), "no kind of weight"),
        (lambda: basis_functions(x.numpy(), y.numpy(), 5), "torch tensors"),
        (lambda: basis_functions(x, y, 5.0), "vocab_size"),
        (lambda: cosine(torch.tensor([1.0, math.nan]), torch.ones(2)), "finite"),
        (lambda: remove_projection(torch.tensor([1.0, math.nan]), torch.ones(2)), "finite"),
        (lambda: remove_projection(torch.ones(2), torch.zeros(2)), "zero"),
        (lambda: remove_projection(torch.ones(2), torch.zeros(3)), "one shape"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_stop_the_run() -> None:
    model, x, y = random_case(3, 4, 5, 1, seed=0)
    basis = basis_functions(x, y, 5)
    with torch.no_grad():
        model.value[0][0, 0] = math.nan
    with pytest.raises(InputError, match="not finite after 0 steps"):
        train(model, x, y, 0.1, 2, show_progress=False)
    with pytest.raises(InputError, match="value weight of layer 1 is not finite"):
        compare_with_leading_terms(model, basis)
