"""The models of paper B against the authors' program and against a literal transcription of the formulas."""

import math
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from assoc.errors import InputError
from assoc.induction import AssociativeTransformer, FullTransformer, OneLayerTransformer
from assoc.seeds import seeded
from conftest import SHARED

REFERENCE_NAMES = {
    "position_embedding": "birth_pe",
    "token_embedding": "birth_tok_embeddings_weight",
    "key1": "birth_layers_0_attention_wk_weight",
    "value1": "birth_layers_0_attention_wv_weight",
    "output1": "birth_layers_0_attention_wo_weight",
    "key2": "birth_layers_1_attention_wk_weight",
    "value2": "birth_layers_1_attention_wv_weight",
    "output2": "birth_layers_1_attention_wo_weight",
    "feed_forward": "birth_layers_1_ff_weight",
    "unembedding": "birth_output_weight",
}


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def attend(
    x: list[np.ndarray], key: np.ndarray, output_value: np.ndarray
) -> tuple[list[np.ndarray], list[list[float]]]:
    """x_t + W_O W_V sum_{s <= t} a_ts x_s, one position at a time."""
    result, maps = [], []
    for t in range(len(x)):
        attention = softmax([float(x[t] @ key @ x[s]) / math.sqrt(len(x[t])) for s in range(t + 1)])
        gathered = sum(a * x[s] for s, a in enumerate(attention))
        result.append(x[t] + output_value @ gathered)
        maps.append(attention + [0.0] * (len(x) - t - 1))
    return result, maps


def by_formula(model: AssociativeTransformer | OneLayerTransformer, inputs: torch.Tensor) -> tuple[np.ndarray, list]:
    """Section 4.2 of paper B, sequence by sequence and position by position, on numpy vectors."""
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    logits, all_maps = [], []
    for sequence in inputs.tolist():
        x = [weights["token_embedding"][z] + weights["position_embedding"][t] for t, z in enumerate(sequence)]
        maps = []
        for layer in ("1", "2") if "key2" in weights else ("1",):
            x, attention = attend(x, weights["key" + layer], weights["output" + layer] @ weights["value" + layer])
            maps.append(attention)
        if "feed_forward" in weights:
            x = [vector + weights["feed_forward"] @ vector for vector in x]
        logits.append([weights["unembedding"] @ vector for vector in x])
        all_maps.append(maps)
    return np.array(logits), all_maps


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer])
@pytest.mark.parametrize("feed_forward", [False, True])
def test_agrees_with_the_formulas(model_class: type, feed_forward: bool) -> None:
    model = model_class(7, 9, 6, feed_forward, generator=seeded(0)).double()
    inputs = torch.randint(7, (4, 8), generator=seeded(1))
    logits, maps = by_formula(model, inputs)
    trace = model.trace(inputs)
    assert np.abs(trace.logits.detach().numpy() - logits).max() < 1e-12
    assert len(trace.attentions) == len(maps[0])
    for layer, attention in enumerate(trace.attentions):
        assert np.abs(attention.detach().numpy() - np.array([m[layer] for m in maps])).max() < 1e-12
    assert torch.equal(model(inputs), trace.logits)


def load_reference(reference: dict) -> tuple[AssociativeTransformer, torch.Tensor, torch.Tensor]:
    vocab_size, dim = reference["birth_tok_embeddings_weight"].shape
    model = AssociativeTransformer(vocab_size, len(reference["birth_pe"]), dim, feed_forward=True).double()
    model.load_state_dict({name: torch.from_numpy(reference[key]) for name, key in REFERENCE_NAMES.items()})
    return model, torch.from_numpy(reference["tokens"]), torch.from_numpy(reference["logits"])


def test_reproduces_the_logits_of_the_authors_program(reference: dict) -> None:
    """The stored logits are float32 and up to 4.2 in size: they tell apart half a unit in the last place, 2.4e-7."""
    model, tokens, expected = load_reference(reference)
    assert expected.dtype == torch.float32
    logits = model(tokens)
    assert logits.dtype == torch.float64
    half_a_unit = float(np.spacing(expected.abs().max().numpy())) / 2
    assert (logits - expected).abs().max() < 1.5e-7 < half_a_unit


BIT_BY_BIT = """
import sys
import numpy as np, torch
import test_induction_model as this
from assoc.induction import model as module

module.causal_attention = lambda queries, keys: (
    (queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5)
    .masked_fill(torch.ones(queries.shape[-2], queries.shape[-2]).triu(1).bool(), -torch.inf)
    .float().softmax(-1).double()
)
with np.load(sys.argv[1]) as file:
    model, tokens, expected = this.load_reference(dict(file))
print(float((model(tokens).float() == expected).double().mean()))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the program ran on an x86 processor")
def test_what_is_left_is_single_precision_in_the_authors_program(reference: dict) -> None:
    """With the softmax alone in float32, by AVX2 arithmetic, and logits rounded to float32, every bit agrees."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this processor has no AVX2")
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", BIT_BY_BIT, str(SHARED / "reference/small.npz")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) == 1.0


def test_parameters_have_the_promised_names_shapes_and_starts() -> None:
    N, T, d = 50, 40, 64
    model = AssociativeTransformer(N, T, d, feed_forward=True, generator=seeded(0))
    square = ["key1", "value1", "output1", "key2", "value2", "output2", "feed_forward"]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    expected = {"token_embedding": (N, d), "position_embedding": (T, d), "unembedding": (N, d)}
    assert shapes == expected | dict.fromkeys(square, (d, d))
    for name, parameter in model.state_dict().items():
        if name.endswith("_embedding"):
            assert parameter.std() == pytest.approx(1, abs=0.05)
        else:
            assert parameter.abs().max() <= 1 / math.sqrt(d)
            assert parameter.std() == pytest.approx(1 / math.sqrt(3 * d), rel=0.05)
    assert set(model.trained_parameters()) == {"key1", "key2", "output2", "feed_forward"}
    assert AssociativeTransformer(N, T, d).feed_forward is None
    assert "feed_forward" not in AssociativeTransformer(N, T, d).trained_parameters()
    assert set(OneLayerTransformer(N, T, d, True).trained_parameters()) == {"key1", "output1", "feed_forward"}
    full = FullTransformer(N, T, d)
    assert len(full.trained_parameters()) == len(list(full.parameters()))


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer, FullTransformer])
def test_what_all_models_promise(model_class: type) -> None:
    model, again = (model_class(7, 9, 6, generator=seeded(0)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    inputs = torch.randint(7, (4, 9), generator=seeded(1))
    logits = model(inputs)
    assert logits.shape == (4, 9, 7)
    for attention in model.attention_maps(inputs):
        assert attention.shape[-2:] == (9, 9)
        assert not attention.requires_grad
        assert torch.allclose(attention.sum(-1), torch.ones(attention.shape[:-1]))
        assert (attention.triu(1) == 0).all()
    # Causal: the future changes nothing; a prefix is enough.
    changed = inputs.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    assert torch.allclose(model(changed)[:, :6], logits[:, :6], atol=1e-6)
    assert not torch.allclose(model(changed)[:, 6:], logits[:, 6:], atol=1e-3)
    assert torch.allclose(model(inputs[:, :5]), logits[:, :5], atol=1e-6)
    # Logits at chosen positions are those of all.
    at = torch.rand(4, 9, generator=seeded(2)) < 0.4
    assert torch.allclose(model(inputs, at), logits[at], atol=1e-6)


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer, FullTransformer])
def test_a_generator_is_the_only_source_of_the_start(model_class: type) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model_class(7, 9, 6, generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), before)
    model_class(7, 9, 6)
    assert not torch.equal(torch.get_rng_state(), before), "without generator, the global one"


def test_full_transformer_starts_as_promised() -> None:
    """Embeddings normal, then matrix by matrix uniform in +-1/sqrt(inputs), biases 0, norms the identity."""
    model, generator = FullTransformer(7, 9, 6, n_layers=2, generator=seeded(0)), seeded(0)
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            expected = torch.ones(6)
        elif name.endswith("bias"):
            expected = torch.zeros(parameter.shape)
        elif name.endswith("_embedding"):
            expected = torch.empty(parameter.shape).normal_(generator=generator)
        else:
            bound = 1 / math.sqrt(parameter.shape[1])
            expected = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        assert torch.equal(parameter, expected), name


def test_full_transformer_has_the_heads_and_layers_asked_for() -> None:
    model = FullTransformer(7, 9, 12, n_layers=3, n_heads=4, generator=seeded(0))
    maps = model.attention_maps(torch.zeros(2, 5, dtype=torch.int64))
    assert [tuple(attention.shape) for attention in maps] == [(2, 4, 5, 5)] * 3


def test_full_transformer_block_by_hand() -> None:
    model = FullTransformer(7, 5, 8, n_layers=1, n_heads=2, generator=seeded(0)).double()
    inputs = torch.randint(7, (1, 5), generator=seeded(1))
    block = model.blocks[0]
    norm = lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()  # noqa: E731
    x = model.token_embedding[inputs[0]] + model.position_embedding
    queries, keys, values = (norm(x) @ W.T for W in block.query_key_value.weight.chunk(3))
    gathered = torch.zeros_like(x)
    for head in (slice(0, 4), slice(4, 8)):
        for t in range(5):
            scores = torch.stack([queries[t, head] @ keys[s, head] / 2 for s in range(t + 1)])
            gathered[t, head] = scores.softmax(0) @ values[: t + 1, head]
    x = x + gathered @ block.output.weight.T
    first, _, second = block.mlp
    x = x + torch.nn.functional.gelu(norm(x) @ first.weight.T) @ second.weight.T
    assert torch.allclose(model(inputs)[0], norm(x) @ model.unembedding.T, atol=1e-12)


@pytest.mark.parametrize("model_class", [AssociativeTransformer, OneLayerTransformer, FullTransformer])
def test_bad_input(model_class: type) -> None:
    for sizes in ((0, 4, 4), (4, 0, 4), (4, 4, 0), (4, 4, 2.0), (True, 4, 4)):
        with pytest.raises(InputError, match="at least 1"):
            model_class(*sizes)
    assert type(model_class(np.int64(5), np.int32(6), np.int64(4)).length) is int
    model = model_class(5, 6, 4)
    model.check_finite()
    good = torch.zeros(2, 6, dtype=torch.int64)
    for inputs, message in (
        (good.float(), "int64"),
        (good[0], r"\(B, T\)"),
        (good[:0], r"\(B, T\)"),
        (torch.zeros(2, 7, dtype=torch.int64), "T <= 6"),
        (good - 1, "from -1 to -1"),
        (good + 5, "knows 0 to 4"),
    ):
        with pytest.raises(InputError, match=message):
            model(inputs)
    with torch.no_grad():
        model.position_embedding[5, 3] = torch.inf
    with pytest.raises(InputError, match=r"weights are not finite \(position_embedding\): make a new model"):
        model.check_finite()


def test_full_transformer_rejects_heads_that_do_not_fit() -> None:
    for n_layers, n_heads, name in ((0, 1, "n_layers"), (1, 0, "n_heads"), (1, 3, "n_heads"), (1, 2.0, "n_heads")):
        with pytest.raises(InputError, match=f"{name} is"):
            FullTransformer(5, 6, 4, n_layers, n_heads)
