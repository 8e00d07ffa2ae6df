"""Paper A's model on paper B's task, and paper B's first gradients through paper A's statistics."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from assoc.errors import InputError
from assoc.induction import AssociativeTransformer, BigramTask, previous_token_attention, train_induction
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, leading_terms, mean_cross_entropy
from assoc.together import (
    OneHotTransformer,
    attention_statistic,
    bare_copy,
    chosen_statistics,
    first_memories,
    head_recalls,
    install_head,
    key_association,
    mark_gradient,
)

N, T = 12, 16


def make_task(**options):
    generator = torch.Generator().manual_seed(3)
    unigram = torch.rand(N, generator=generator, dtype=torch.float64) + 0.05
    bigram = torch.rand(N, N, generator=generator, dtype=torch.float64) ** 4
    unigram, bigram = unigram / unigram.sum(), bigram / bigram.sum(dim=1, keepdim=True)
    return BigramTask(unigram, bigram, **{"length": T, "n_triggers": 3} | options)


def random_model(n_layers=2, size=0.3):
    generator = torch.Generator().manual_seed(5)
    model = OneHotTransformer(N, T, n_layers, dtype=torch.float64)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(size * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture(scope="module")
def batch():
    return make_task().sample(40, torch.Generator().manual_seed(1))


def test_the_one_hot_transformer_is_that_of_paper_a(batch):
    model = random_model()
    logits = model.weights(batch.inputs)
    assert torch.allclose(model(batch.inputs), logits)
    at = batch.occurrence >= 2
    assert torch.allclose(model(batch.inputs, at), logits[at])
    assert all(map(torch.equal, model.attention_maps(batch.inputs), model.weights.attention_maps(batch.inputs)))


def test_statistics_of_all_positions_are_the_basis_functions(batch):
    everywhere = torch.ones_like(batch.inputs, dtype=torch.bool)
    found = chosen_statistics(batch.inputs, batch.targets, everywhere, N)
    for name, expected in basis_functions(batch.inputs, batch.targets, N).items():
        assert torch.allclose(getattr(found, name), expected, rtol=1e-9, atol=1e-15), name


def test_weights_follow_the_statistics_of_the_positions_in_the_loss(batch):
    """Autograd as the oracle: three small steps from zero on chosen positions."""
    where, eta = batch.occurrence >= 2, 1e-4
    basis = chosen_statistics(batch.inputs, batch.targets, where, N)
    model = OneHotTransformer(N, T, 2, dtype=torch.float64)
    for _ in range(3):
        model.zero_grad()
        cross_entropy(model(batch.inputs, where), batch.targets[where]).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= eta * weight.grad
    for kind, weights in model.weights.weights().items():
        expected = leading_terms(basis, 3, eta)[kind]
        for weight in weights:
            assert (weight - expected).norm() < 1e-3 * expected.norm(), kind


@pytest.mark.parametrize("where", [torch.ones(40, T), torch.ones(40, T - 1, dtype=torch.bool)])
def test_positions_must_be_chosen(batch, where):
    with pytest.raises(InputError, match="boolean for each position"):
        chosen_statistics(batch.inputs, batch.targets, where, N)
    with pytest.raises(InputError, match="at least one"):
        chosen_statistics(batch.inputs, batch.targets, torch.zeros(40, T, dtype=torch.bool), N)


def test_a_head_by_hand_predicts_repeated_outputs():
    task = make_task(length=40)
    model = install_head(OneHotTransformer(N, 40), task)
    batch = task.sample(200, torch.Generator().manual_seed(2))
    repeated = batch.occurrence >= 2
    with torch.no_grad():
        right = model(batch.inputs, repeated).argmax(dim=1) == batch.targets[repeated]
    # A mark on a rare token r is invisible where r itself is the output: here one draw in N for each trigger.
    assert right.double().mean() > 0.85
    assert previous_token_attention(model.attention_maps(batch.inputs)[0]) > 0.99
    assert head_recalls(model, task) == {"output2": 1.0, "key2": 1.0, "key1": 1.0}


def test_a_head_needs_room_for_its_marks():
    with pytest.raises(InputError, match="fixed triggers"):
        install_head(OneHotTransformer(N, T), make_task(triggers="random"))
    with pytest.raises(InputError, match="as many other tokens"):
        install_head(OneHotTransformer(N, T), make_task(n_triggers=7))
    with pytest.raises(InputError, match="two layers"):
        install_head(OneHotTransformer(N, T, n_layers=1), make_task())
    with pytest.raises(InputError, match="two layers"):
        head_recalls(OneHotTransformer(N, T, n_layers=1), make_task())


def test_recalls_read_single_entries():
    model, task = random_model(), make_task()
    W, O = model.weights.attention[1].detach(), model.weights.output.detach()
    V = [value.detach() for value in model.weights.value]
    copies = sum(int((V[1][v] @ O).argmax()) == v for v in range(N)) / N
    finds = sum(max(range(N), key=lambda j: float(W[q] @ V[0][j])) == q for q in task.fixed_triggers.tolist()) / 3
    assert head_recalls(model, task) == pytest.approx(
        {"output2": copies, "key2": finds, "key1": float(int(model.weights.position[0].argmax()) == 1)}
    )


def test_train_induction_takes_paper_a_s_model():
    task, generator = make_task(), torch.Generator().manual_seed(0)
    model = OneHotTransformer(N, T)
    history = train_induction(model, task, steps=30, batch_size=32, learning_rate=0.3, generator=generator)
    assert history.in_context_loss[-1] < history.in_context_loss[0]
    assert all(weight.any() for weight in model.parameters())


def test_the_share_through_keys_is_what_a_change_of_the_keys_alone_does(batch):
    """Central differences of the loss, with P_1 moved only where layer 2 makes its keys."""
    model = random_model().weights
    inputs, targets = batch.inputs[:4], batch.targets[:4]
    found = mark_gradient(model, inputs, targets)

    def loss(k, change):
        h0 = one_hot(inputs, N).double()
        h1, A1 = model.trace(inputs)[0][1], model.attention_maps(inputs)[0]
        P = model.position[0].detach().clone()
        P[k] += change
        moved = A1.clone()
        for i in range(len(inputs)):
            for t in range(T):
                row = torch.stack([h0[i, t] @ model.attention[0] @ h0[i, m] + P[t - m] for m in range(t + 1)])
                moved[i, t, : t + 1] = row.softmax(dim=0)
        keys = h0 + moved @ h0 @ model.value[0]
        places = torch.arange(T)
        scores = h1 @ model.attention[1] @ keys.transpose(1, 2)
        scores = scores + model.position[1][(places[:, None] - places).clamp(min=0)]
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        A2 = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return cross_entropy(((h1 + A2 @ h1 @ model.value[1]) @ model.output).flatten(0, 1), targets.flatten())

    with torch.no_grad():
        for k in (0, 1, 5):
            difference = float(loss(k, 1e-5) - loss(k, -1e-5)) / 2e-5
            assert float(found[k]) == pytest.approx(difference, rel=1e-4, abs=1e-9)
    with pytest.raises(InputError, match="3 layers"):
        mark_gradient(AttentionOnlyTransformer(N, T, 3), inputs, targets)


def test_statistic_of_s_phi_is_paper_a_s_attention_term(batch):
    basis = basis_functions(batch.inputs, batch.targets, N)
    found = attention_statistic(basis.interchangeability @ basis.context, batch.inputs, batch.targets)
    assert torch.allclose(found, basis.attention, rtol=1e-9, atol=1e-15)


def test_first_gradients_of_a_bare_copy_are_paper_a_s_statistics(batch):
    generator = torch.Generator().manual_seed(7)
    model = AssociativeTransformer(N, T, 24, generator=generator)
    shrink = 1e-6
    bare = bare_copy(model, shrink)
    logits = bare(batch.inputs)
    assert logits.abs().max() < 1e-4  # predictions are uniform
    loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    expected = torch.autograd.grad(loss, [bare.output2, bare.key2])
    found = first_memories(bare, batch.inputs, batch.targets)
    for name, gradient in zip(("output2", "key2"), expected, strict=True):
        assert gradient.norm() > 0
        assert (found[name] + gradient).norm() < 1e-4 * gradient.norm(), name


def test_the_association_of_keys_is_a_logit(batch):
    """G[k, j] is what attending to token j alone adds to logit k, written out for one pair."""
    model = AssociativeTransformer(N, T, 24, generator=torch.Generator().manual_seed(7))
    k, j = 3, 5
    with torch.no_grad():
        value = model.output2 @ (model.value2 @ model.token_embedding[j])
        found, expected = key_association(model)[k, j], model.unembedding[k] @ value
    assert float(found) == pytest.approx(float(expected), rel=1e-3)


def test_paper_a_s_loss_is_what_the_one_hot_model_has(batch):
    model = random_model()
    everywhere = cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
    expected = mean_cross_entropy(model.weights, batch.inputs, batch.targets)
    assert everywhere.item() == pytest.approx(expected.item())
