"""Tiny random models of every family, saved by the test: heads, residuals, and what is not a model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from assoc.errors import InputError
from assoc.llm import LanguageModel, as_language_model, load_model

D, V = 24, 50
FINAL_NORM = {"gpt_neox": "gpt_neox.final_layer_norm", "gpt2": "transformer.ln_f"}  # of the others: model.norm


def tiny_config(family: str, **more: object) -> object:
    from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig

    common = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        return GPT2Config(n_embd=D, n_layer=3, n_head=4, n_positions=16, **common, **more)
    sizes = {"hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
    sizes |= {"max_position_embeddings": 16} | common
    if family in ("llama", "mistral"):  # heads share keys and values in pairs, and together are wider than the residual
        config = LlamaConfig if family == "llama" else MistralConfig
        return config(num_key_value_heads=2, head_dim=8, pad_token_id=None, **sizes, **more)
    return GPTNeoXConfig(use_parallel_residual=family == "gpt_neox", **sizes, **more)


def tiny_model(family: str) -> object:
    """Random weights of a size that makes every part matter, biases of attention (left out of the analysis) at zero."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
            if name.endswith("bias") and any(part in name for part in ("attn", "attention.")):
                parameter.zero_()
    return model


@pytest.fixture(scope="module", params=["gpt_neox", "gpt_neox in series", "llama", "mistral", "gpt2"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param.replace(" ", "-")
    tiny_model(request.param).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(saved: Path) -> LanguageModel:
    return load_model(saved, dtype=torch.float64)


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(folder)
    return folder


def test_sizes(model: LanguageModel) -> None:
    shared = model.model.config.model_type in ("llama", "mistral")
    assert (model.n_layers, model.n_heads, model.dim, model.vocab_size) == (3, 4, D, V)
    assert (model.n_key_value_heads, model.head_dim) == ((2, 8) if shared else (4, 6))
    assert model.embedding.shape == model.unembedding.shape == (V, D)
    assert model.tokenizer is None
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float64}  # as it was asked for
    assert not model.model.training
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    assert "3 layers, 4 heads" in repr(model)


def normed_inputs(model: LanguageModel, tokens: Tensor, positions: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """What enters each layer's attention, (B, T, d), and the attention maps that the library computes from it."""
    output = model.model(
        tokens,
        attention_mask=torch.ones_like(tokens),
        position_ids=positions.expand_as(tokens),
        output_hidden_states=True,
        output_attentions=True,
    )
    entering = [model.attention_norm(i)(output.hidden_states[i]) for i in range(model.n_layers)]
    return entering, output.attentions


def test_query_key_gives_the_library_s_attention_scores(model: LanguageModel) -> None:
    """At equal positions rotations cancel: log-attention is the score but for a constant in each row."""
    tokens = torch.arange(20).view(2, 10)
    entering, maps = normed_inputs(model, tokens, torch.full((10,), 3))
    causal = torch.ones(10, 10, dtype=torch.bool).tril()
    for layer, (x, attention) in enumerate(zip(entering, maps, strict=True)):
        assert attention[:, :, ~causal].abs().max() == 0
        for head in range(model.n_heads):
            scores = x @ model.query_key(layer, head) @ x.transpose(1, 2) / model.head_dim**0.5
            ours = (scores - scores[..., :1])[:, causal]
            theirs = (attention[:, head].log() - attention[:, head, :, :1].log())[:, causal]
            assert float((ours - theirs).abs().max()) < 1e-5 * float(ours.abs().max())


def test_heads_and_their_mean_are_one_thing(model: LanguageModel) -> None:
    for layer in range(model.n_layers):
        matrices = torch.stack([model.query_key(layer, head) for head in range(model.n_heads)])
        torch.testing.assert_close(model.mean_query_key(layer), matrices.mean(dim=0))


def test_output_value_gives_the_library_s_attention_output(model: LanguageModel) -> None:
    """Heads mix what they attend to: sum over heads of A_h x W_V W_O is what the attention adds."""
    tokens = torch.arange(20).view(2, 10)
    added: list[Tensor] = []
    hooks = [
        model.attention_module(i).register_forward_hook(lambda _, __, output: added.append(output[0]))
        for i in range(model.n_layers)
    ]
    entering, maps = normed_inputs(model, tokens, torch.arange(10))
    for hook in hooks:
        hook.remove()
    for layer, (x, attention) in enumerate(zip(entering, maps, strict=True)):
        values = torch.stack([x @ model.output_value(layer, head) for head in range(model.n_heads)], dim=1)
        torch.testing.assert_close((attention @ values).sum(dim=1), added[layer])


def test_residuals_of_single_tokens(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assoc.llm.models.TOKENS_AT_ONCE", 16)  # several chunks, the last one smaller
    tokens = torch.arange(V).flip(0)
    output = model.model(tokens[:, None], output_hidden_states=True)
    states = [state[:, 0] for state in output.hidden_states]
    found = list(model.single_token_residuals(tokens))
    assert [residuals.layer for residuals in found] == [0, 1, 2]
    for layer, before, after_attention, after in found:
        torch.testing.assert_close(before, states[layer])
        mixed = sum(model.output_value(layer, head) for head in range(model.n_heads))
        torch.testing.assert_close(after_attention, before + model.attention_norm(layer)(before) @ mixed)
        if layer + 1 < model.n_layers:
            torch.testing.assert_close(after, states[layer + 1])
    norm = FINAL_NORM.get(model.model.config.model_type, "model.norm")
    last = model.model.get_submodule(norm)(found[-1].after)
    torch.testing.assert_close(last @ model.unembedding.T, output.logits[:, 0])


def test_residuals_need_tokens_of_the_model(model: LanguageModel) -> None:
    for tokens in (
        torch.tensor([0, V]),
        torch.tensor([-1]),
        torch.tensor([[0]]),
        torch.tensor([0.0]),
        torch.tensor([]),
    ):
        with pytest.raises(InputError, match="tokens"):
            next(model.single_token_residuals(tokens))


def test_layers_and_heads_that_are_not_there(model: LanguageModel) -> None:
    for ask in (lambda: model.heads(3), lambda: model.query_key(0, 4), lambda: model.output_value(-1, 0)):
        with pytest.raises(InputError):
            ask()
    with pytest.raises(InputError, match="without a tokenizer"):
        model.encode("a text")


def test_a_model_at_hand_is_seen_as_it_changes() -> None:
    library_model = tiny_model("gpt2")
    model = as_language_model(library_model, name="mine")
    before = model.query_key(0, 0)
    assert not before.requires_grad
    with torch.no_grad():
        model.attention_module(0).c_attn.weight.mul_(2)
    torch.testing.assert_close(model.query_key(0, 0), 4 * before)


def test_what_is_at_hand_must_be_a_causal_model() -> None:
    from transformers import AutoModel

    with pytest.raises(InputError, match="is a Linear"):
        as_language_model(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="is a LlamaModel, which predicts no tokens"):
        as_language_model(AutoModel.from_config(tiny_config("llama")))


def test_folders_hold_checkpoints(llama_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(llama_folder, tmp_path / "step3")
    model = load_model(tmp_path, revision="step3")
    assert model.name == f"{tmp_path} at step3"
    with pytest.raises(InputError, match="no checkpoint 'step4'"):
        load_model(tmp_path, revision="step4")


def test_a_tokenizer_that_was_saved_comes_along(llama_folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "cat": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    shutil.copytree(llama_folder, tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.encode("the cat sat") == [1, 2, 0]
    assert model.words(torch.tensor([2, 1])) == ["cat", "the"]


def test_gguf_files(llama_folder: Path, tmp_path: Path) -> None:
    """A file written in the format's own convention: in each head, rotated pairs of rows stand side by side."""
    gguf = pytest.importorskip("gguf")
    source = load_model(llama_folder)
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_context_length(16)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(40)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(V)

    def add(name: str, weight: Tensor, n_heads: int | None = None) -> None:
        if n_heads is not None:
            weight = weight.view(n_heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(name, weight.contiguous().numpy())

    add("token_embd.weight", source.embedding)
    add("output.weight", source.unembedding)
    add("output_norm.weight", source.model.model.norm.weight)
    for i, layer in enumerate(source.model.model.layers):
        attention, mlp, block = layer.self_attn, layer.mlp, f"blk.{i}"
        add(f"{block}.attn_q.weight", attention.q_proj.weight, 4)
        add(f"{block}.attn_k.weight", attention.k_proj.weight, 2)
        add(f"{block}.attn_v.weight", attention.v_proj.weight)
        add(f"{block}.attn_output.weight", attention.o_proj.weight)
        add(f"{block}.attn_norm.weight", layer.input_layernorm.weight)
        add(f"{block}.ffn_norm.weight", layer.post_attention_layernorm.weight)
        add(f"{block}.ffn_gate.weight", mlp.gate_proj.weight)
        add(f"{block}.ffn_up.weight", mlp.up_proj.weight)
        add(f"{block}.ffn_down.weight", mlp.down_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = load_model(path)
    assert model.tokenizer is None
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(model.model(tokens).logits, source.model(tokens).logits)
    torch.testing.assert_close(model.query_key(2, 1), source.query_key(2, 1))
    with pytest.raises(InputError, match="leave out the revision"):
        load_model(path, revision="step3")


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: object) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "JSON|configuration"),
        (lambda f: (f / "config.json").write_text("{}"), "configuration"),
        (lambda f: (f / "config.json").write_text("null"), "configuration"),
        (lambda f: change_config(f, num_attention_heads=0), "configuration"),
        (lambda f: change_config(f, num_attention_heads=5), "configuration"),
        (lambda f: change_config(f, hidden_size="wide"), "configuration"),
        (lambda f: change_config(f, model_type="no such family"), "configuration"),
        (lambda f: change_config(f, num_hidden_layers=0), "0 layers"),
        (lambda f: change_config(f, num_hidden_layers=2), "has 2 layers, its weights have more"),
        (lambda f: change_config(f, architectures=[5]), "not a causal language model"),
        (lambda f: (f / "model.safetensors").unlink(), "weights"),
        (lambda f: (f / "model.safetensors").write_text("none"), "weights"),
        (lambda f: change_config(f, architectures=["LlamaForSequenceClassification"]), "not a causal language model"),
        (lambda f: change_config(f, model_type="bloom", architectures=["BloomForCausalLM"]), "family bloom"),
        (lambda f: change_config(f, hidden_size=32), "do not fit"),
        (lambda f: change_weights(f, lambda w: w.pop(NAME)), f"1 weights are missing, such as {NAME}"),
        (lambda f: change_weights(f, lambda w: w[NAME].fill_(torch.nan)), f"{NAME} is not finite"),
    ],
)
def test_what_is_no_model_says_so_in_one_line(spoil: object, message: str, llama_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llama_folder, folder)
    spoil(folder)
    with pytest.raises(InputError, match=message) as found:
        load_model(folder)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 250 + 2 * len(str(folder))


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("none")
    (tmp_path / "short.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "model.txt").write_text("none")
    for name, message in [
        ("model.gguf", "not a GGUF file"),
        ("short.gguf", "GGUF|configuration"),
        ("other.gguf", "cannot read"),
        ("model.txt", "neither a folder nor"),
        ("nowhere", "no folder"),
    ]:
        with pytest.raises(InputError, match=message):
            load_model(tmp_path / name)


@pytest.mark.parametrize("name", ["nobody/no-model", "nobody/no/model", "no model"])
def test_a_hub_that_cannot_be_reached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="hub gave no") as found:
        load_model(name, revision="step3")
    assert "check name, revision and network" in str(found.value)


def test_what_the_hub_gave_before_is_read_offline(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache laid out as the hub's own client does it, with two revisions."""
    folder = tmp_path / "models--nobody--tiny"
    for revision, commit in (("step0", "a" * 40), ("step1", "b" * 40)):
        shutil.copytree(llama_folder, folder / "snapshots" / commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
    change_weights(folder / "snapshots" / ("b" * 40), lambda weights: weights[NAME].zero_())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    # The client reads its settings when it is imported.
    code = (
        "from assoc.llm import load_model\n"
        "sizes = [float(load_model('nobody/tiny', revision=r).heads(1).key.norm()) for r in ('step0', 'step1')]\n"
        "assert sizes[0] > 1 and sizes[1] == 0, sizes"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Loading weights" not in run.stderr


def test_importing_does_not_import_the_library() -> None:
    code = "import sys, assoc.llm, assoc.llm.cli; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
