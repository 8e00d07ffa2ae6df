"""Scores of heads against literal loops and attention with a known answer, and removal against zeros in W_O."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from assoc.__main__ import main
from assoc.errors import InputError
from assoc.induction import BigramTask, train_induction
from assoc.llm import LanguageModel, load_model
from assoc.llm.birth import (
    MEMORIES,
    SmallTransformer,
    memory_tables,
    stored_pairs,
    study_birth,
    study_nano,
    table_recall,
    table_signal,
    watch_heads,
)
from assoc.llm.heads import (
    TOP,
    ablated,
    attention_by_distance,
    attention_of,
    best_heads,
    composition_recall,
    copy_losses,
    copying,
    distance_scores,
    final_norm,
    head_means,
    head_scores,
    induction_score,
    position_scores,
    previous_token_score,
    random_heads,
    repeated_blocks,
    residuals_of,
    sequence_losses,
)
from assoc.llm.removal import ordinary_tokens, study_readings
from assoc.llm.smollm2 import smollm2_path
from assoc.llm.sweeps import INDUCTION_SWEEPS
from assoc.sweeps import load_results

D, V, H, L = 24, 40, 3, 5  # L: length of a block
FAMILIES = ("gpt_neox", "llama", "gpt2")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny(family: str) -> nn.Module:
    """Random weights of a size that makes everything matter, biases and norms included."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

    common = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        config = GPT2Config(n_embd=D, n_layer=2, n_head=H, n_positions=16, **common)
    else:
        sizes = {"hidden_size": D, "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 16}
        if family == "llama":  # the heads share one key and value, and are wider together than the residual
            shared = {"num_attention_heads": H, "num_key_value_heads": 1, "head_dim": 10, "pad_token_id": None}
            config = LlamaConfig(**sizes, **shared, **common)
        else:
            config = GPTNeoXConfig(num_attention_heads=H, **sizes, **common)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) / 2)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder: Path = tmp_path_factory.mktemp("models") / request.param
    tiny(request.param).save_pretrained(folder)
    return load_model(folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def blocks() -> Tensor:
    return repeated_blocks(V, L, 4, generator())


@pytest.fixture
def small() -> SmallTransformer:
    return SmallTransformer(12, 12, 16, positions="learned", generator=generator())


# Blocks and scores


def test_a_block_holds_different_tokens_and_comes_twice():
    tokens = repeated_blocks(torch.tensor([3, 5, 7, 11]), 3, 50, generator())
    assert tokens.shape == (50, 6)
    assert torch.equal(tokens[:, :3], tokens[:, 3:])
    assert all(len(set(row[:3])) == 3 and set(row) <= {3, 5, 7, 11} for row in tokens.tolist())


@pytest.mark.parametrize(("length", "n_blocks"), [(1, 1), (5, 1), (2, 0)])
def test_blocks_that_cannot_be_made(length, n_blocks):
    with pytest.raises(InputError):
        repeated_blocks(4, length, n_blocks)


def test_scores_of_attention_with_a_known_answer():
    """A head that looks where an induction head should scores 1; uniform attention scores means of 1/t."""
    perfect, back = torch.zeros(2 * L, 2 * L), torch.zeros(2 * L, 2 * L)
    for t in range(2 * L):
        perfect[t, t - L + 1 if t >= L else 0] = 1.0
        back[t, max(t - 1, 0)] = 1.0
    assert float(induction_score(perfect)) == 1.0
    assert float(previous_token_score(back)) == 1.0
    assert float(previous_token_score(perfect)) < 0.2
    uniform = torch.ones(2 * L, 2 * L).tril() / torch.arange(1.0, 2 * L + 1)[:, None]
    assert float(induction_score(uniform)) == pytest.approx(sum(1 / t for t in range(L + 1, 2 * L + 1)) / L)
    assert float(previous_token_score(uniform)) == pytest.approx(sum(1 / t for t in range(2, 2 * L + 1)) / (2 * L - 1))


def test_scores_and_losses_equal_literal_loops(model, blocks):
    scores = head_scores(model, blocks)
    assert scores.induction.shape == scores.previous_token.shape == (4, 2, H)
    result = model.model(blocks, output_attentions=True)
    for b in range(4):
        for layer in range(2):
            for head in range(H):
                a = result.attentions[layer][b, head]
                looked = sum(float(a[t, t - L + 1]) for t in range(L, 2 * L)) / L
                back = sum(float(a[t, t - 1]) for t in range(1, 2 * L)) / (2 * L - 1)
                assert float(scores.induction[b, layer, head]) == pytest.approx(looked, abs=1e-9)
                assert float(scores.previous_token[b, layer, head]) == pytest.approx(back, abs=1e-9)
        losses = [-float(result.logits[b, t].log_softmax(0)[blocks[b, t + 1]]) for t in range(2 * L - 1)]
        assert scores.losses[b].tolist() == pytest.approx(losses, abs=1e-9)
        first, second = copy_losses(scores.losses)
        assert float(first[b]) == pytest.approx(sum(losses[: L - 1]) / (L - 1))
        assert float(second[b]) == pytest.approx(sum(losses[L:]) / (L - 1))
    assert torch.allclose(copy_losses(scores.losses).gain, first - second)


def test_chunks_change_nothing(model, blocks, monkeypatch):
    whole, copied = head_scores(model, blocks), copying(model, 1, blocks[0, :L])
    means = head_means(model, blocks)
    monkeypatch.setattr("assoc.llm.heads.MAP_NUMBERS", 1)
    parts = head_scores(model, blocks)
    for name in ("induction", "previous_token", "losses"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name))
    assert torch.allclose(sequence_losses(model, blocks), whole.losses)
    assert torch.allclose(head_means(model, blocks), means)
    assert torch.allclose(copying(model, 1, blocks[0, :L]).rank, copied.rank)


def test_best_heads_come_in_the_order_of_their_scores(model, blocks):
    assert best_heads(torch.tensor([[0.1, 0.9], [0.5, 0.2]]), 3) == [(0, 1), (1, 0), (1, 1)]
    scores = head_scores(model, blocks)
    mean = scores.induction.mean(0)
    assert scores.best("induction", 1) == [divmod(int(mean.argmax()), H)]
    with pytest.raises(InputError, match="4 heads"):
        best_heads(torch.zeros(2, 2), 5)


# Removal


def without_by_hand(model: LanguageModel, layer: int, heads: list[int]) -> LanguageModel:
    """A copy whose rows of W_O that belong to these heads are zero."""
    other = LanguageModel(model.name, copy.deepcopy(model.model), None, model.layout)
    projection, k = other.output_projection(layer), model.head_dim
    with torch.no_grad():
        for head in heads:
            rows = slice(head * k, (head + 1) * k)
            if isinstance(projection, nn.Linear):
                projection.weight[:, rows] = 0
            else:
                projection.weight[rows] = 0
    return other


def test_removal_is_zeros_in_the_output_matrix_and_ends_with_the_context(model, blocks):
    before = model.model(blocks).logits
    with ablated(model, [(1, 2), (0, 1), (0, 0)]):
        inside = model.model(blocks).logits
    by_hand = without_by_hand(without_by_hand(model, 0, [0, 1]), 1, [2])
    assert torch.allclose(inside, by_hand.model(blocks).logits, atol=1e-10)
    assert not torch.allclose(inside, before, atol=1e-3)
    assert torch.equal(model.model(blocks).logits, before)


def test_removal_ends_with_an_error_too(model, blocks):
    before = model.model(blocks).logits
    with pytest.raises(RuntimeError, match="stop"), ablated(model, [(0, 0)]):
        raise RuntimeError("stop")
    assert torch.equal(model.model(blocks).logits, before)


def test_means_are_what_the_output_projection_receives(model, blocks):
    received = []
    hook = model.output_projection(1).register_forward_pre_hook(lambda _, given: received.append(given[0]))
    model.model(blocks)
    hook.remove()
    means = head_means(model, blocks)
    by_head = received[0].view(4, 2 * L, H, model.head_dim)
    assert torch.allclose(means[1], by_head.mean((0, 1)))
    changed = []
    with ablated(model, [(1, 1)], means):
        hook = model.output_projection(1).register_forward_pre_hook(lambda _, given: changed.append(given[0]))
        model.model(blocks)
        hook.remove()
    changed = changed[0].view_as(by_head)
    assert torch.allclose(changed[..., 1, :], means[1, 1].expand(4, 2 * L, -1))
    assert torch.equal(changed[..., [0, 2], :], by_head[..., [0, 2], :])


def test_random_heads_are_others_and_of_the_layers_asked_for(model):
    best = [(0, 1), (1, 0)]
    drawn = random_heads(model, 4, generator(), without=best)
    assert len(set(drawn)) == 4
    assert not set(drawn) & set(best)
    assert drawn == random_heads(model, 4, generator(), without=best)
    for seed in range(5):
        like = random_heads(model, 2, generator(seed), without=best, like=best)
        assert [layer for layer, _ in like] == [0, 1]
    full = random_heads(model, 3, generator(), without=[(0, 0)], like=[(0, 0), (0, 0), (0, 0)])
    assert [layer for layer, _ in full] == [0, 0, 1]  # the layer has two left
    with pytest.raises(InputError, match="4 other heads"):
        random_heads(model, 5, without=best)


@pytest.mark.parametrize("head", [(2, 0), (0, H), (-1, 0)])
def test_heads_that_are_not_there(model, blocks, head):
    for use in (lambda: attention_of(model, blocks, [head]), lambda: composition_recall(model, blocks, head)):
        with pytest.raises(InputError, match="has no head"):
            use()
    with pytest.raises(InputError, match="has no head"), ablated(model, [head]):
        pass


def test_bad_tokens(model, blocks):
    for tokens, reason in (
        (blocks.float(), "int64"),
        (blocks[0], "int64"),
        (blocks + V, "knows 0 to 39"),
        (blocks[:, :1], "from 2 to 16"),
        (blocks.repeat(1, 2), "from 2 to 16"),
    ):
        with pytest.raises(InputError, match=reason):
            sequence_losses(model, tokens)
    with pytest.raises(InputError, match="repeated once"):
        head_scores(model, blocks[:, :-1])
    with pytest.raises(InputError, match="2L"):
        induction_score(torch.zeros(5, 5))


# Readings


def gain(rows: Tensor, norm: nn.Module) -> Tensor:
    centred = rows - rows.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else rows
    return centred * norm.weight


def test_copying_equals_the_whole_map(model):
    """Against all logits of W_U W_OV W_E, formed as a V x V matrix."""
    tokens = torch.tensor([3, 17, 29, 4])
    found = copying(model, 1, tokens)
    for head in range(H):
        entering = gain(model.embedding, model.attention_norm(1))
        logits = gain(entering @ model.output_value(1, head), final_norm(model)) @ model.unembedding.T
        ranks = [float((logits[v] < logits[v, v]).double().mean()) for v in tokens]
        tops = [int((logits[v] > logits[v, v]).sum()) < TOP for v in tokens]
        assert float(found.rank[head]) == pytest.approx(sum(ranks) / 4)
        assert float(found.top[head]) == pytest.approx(sum(tops) / 4)


def test_copying_in_place_reads_residuals(model, blocks):
    entering = residuals_of(model, blocks)
    assert len(entering) == 2
    place = entering[1][0, 1:4]
    found = copying(model, 1, blocks[0, 1:4], place)
    values = model.attention_norm(1)(place) @ model.output_value(1, 0)
    logits = gain(values, final_norm(model)) @ model.unembedding.T
    own = logits.gather(1, blocks[0, 1:4, None])
    assert float(found.rank[0]) == pytest.approx(float((logits < own).double().mean()))
    with pytest.raises(InputError, match="residuals must be"):
        copying(model, 1, blocks[0], place)


def test_composition_recall_equals_loops(model, blocks):
    entering = residuals_of(model, blocks)
    hits = 0
    for b in range(4):
        for t in range(L + 1, 2 * L):
            query = model.attention_norm(1)(entering[1][b, t])
            scores = []
            for s in range(1, L):
                written = model.attention_norm(0)(entering[0][b, s]) @ model.output_value(0, 1)
                scores.append(float(query @ model.query_key(1, 2) @ gain(written, model.attention_norm(1))))
            hits += max(range(L - 1), key=scores.__getitem__) == t - L - 1
    found = composition_recall(model, blocks, (1, 2))
    assert found.shape == (1, H)
    assert float(found[0, 1]) == pytest.approx(hits / (4 * (L - 1)))
    with pytest.raises(InputError, match="none below"):
        composition_recall(model, blocks, (0, 0))


def test_distance_alone_is_the_attention_of_a_model_whose_tokens_are_alike(model, blocks):
    """With equal embeddings all queries and keys are the mean ones, so attention is a function of distance."""
    if model.model.config.model_type == "gpt2":
        with pytest.raises(InputError, match="no rotary"):
            distance_scores(model, blocks)
        return
    alike = LanguageModel(model.name, copy.deepcopy(model.model), None, model.layout)
    with torch.no_grad():
        alike.embedding.copy_(alike.embedding[:1].expand(V, -1))
    maps = torch.stack(alike.model(blocks, output_attentions=True).attentions, 1)[0]
    assert torch.allclose(attention_by_distance(distance_scores(alike, blocks)), maps, atol=1e-9)


def test_position_scores_are_the_attention_of_a_model_that_sees_positions_alone(model, blocks):
    if model.model.config.model_type != "gpt2":
        with pytest.raises(InputError, match="no learned"):
            position_scores(model)
        return
    heads, norm = model.heads(0), model.attention_norm(0)
    positions = gain(model.model.transformer.wpe.weight, norm)
    scores = position_scores(model)
    for t, s in ((3, 2), (7, 0), (5, 5)):
        score = positions[t] @ heads.query[1] @ heads.key[1].T @ positions[s] / math.sqrt(model.head_dim)
        assert float(scores[1, t, s]) == pytest.approx(float(score))


# Small transformers


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_small_transformer_trains_and_is_watched_without_a_change(positions):
    task = BigramTask(torch.full((12,), 1 / 12), torch.full((12, 12), 1 / 12), length=12, n_triggers=3)

    def trained(watched: bool) -> tuple[SmallTransformer, object]:
        source = generator(3)
        model = SmallTransformer(12, 12, 16, positions=positions, generator=source)
        blocks, inputs = repeated_blocks(12, 4, 3, generator(1)), task.sample(4, generator(2)).inputs
        settings = {"steps": 5, "batch_size": 8, "learning_rate": 0.1, "loss_on": "all", "evaluation_size": 16}
        if not watched:
            train_induction(model, task, generator=source, **settings)
            return model, None
        with watch_heads(model, blocks, inputs, every=2) as watch:
            train_induction(model, task, generator=source, **settings)
        return model, watch

    (plain, _), (seen, watch) = trained(False), trained(True)
    for ours, theirs in zip(plain.parameters(), seen.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert watch.steps == [0, 2, 4]
    for series in (watch.induction, watch.gain, watch.early, watch.composition, *watch.signal.values()):
        assert len(series) == 3
    start = SmallTransformer(12, 12, 16, positions=positions, generator=generator(3))
    assert all(
        not torch.equal(ours, theirs)
        for ours, theirs in zip(seen.parameters(), start.parameters(), strict=True)
        if ours.ndim == 2
    )


def test_a_small_transformer_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    SmallTransformer(12, 12, 16, generator=generator())
    assert torch.equal(torch.rand(1), expected)


def test_a_model_with_ideal_memories_has_them(small):
    """With one-hot embeddings and matrices that store the pairs, each table shows its pairs and nothing else."""
    model = SmallTransformer(4, 4, 16, positions="learned", generator=generator())
    language_model = model.language_model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_() if parameter.ndim == 2 else parameter.fill_(1.0)
        eye = torch.eye(16)
        language_model.embedding.copy_(eye[:4])
        language_model.unembedding.copy_(eye[:4])
        model.network.transformer.wpe.weight.copy_(eye[4:8])
        first, second = (language_model.attention_module(layer) for layer in (0, 1))
        query, key, value = first.c_attn.weight.chunk(3, dim=1)
        query.copy_(sum(torch.outer(eye[4 + t], eye[4 + t - 1]) for t in range(1, 4)))
        key.copy_(eye)
        value.copy_(eye)
        first.c_proj.weight.copy_(sum(torch.outer(eye[v], eye[8 + v]) for v in range(4)))
        query, key, value = second.c_attn.weight.chunk(3, dim=1)
        query.copy_(eye)
        key.copy_(sum(torch.outer(eye[8 + v], eye[v]) for v in range(4)))
        value.copy_(eye)
        second.c_proj.weight.copy_(eye)
    tables = memory_tables(model, torch.tensor([[0, 1, 2, 3]]))
    for name in MEMORIES:
        assert table_recall(name, tables[name]) == 1.0
        assert table_signal(name, tables[name]) > 10
        rows, columns = stored_pairs(name, tables[name])
        wrong = tables[name].clone()
        wrong[rows, columns] = -9.0
        assert table_recall(name, wrong) == 0.0
        assert table_signal(name, wrong) < 0


def test_small_transformers_that_cannot_be_made(small):
    for options, reason in (({"positions": "none"}, "choose from"), ({"n_heads": 3}, "even parts")):
        with pytest.raises(InputError, match=reason):
            SmallTransformer(12, 12, 16, **options)
    several = SmallTransformer(12, 12, 16, n_heads=2, generator=generator())
    with pytest.raises(InputError, match="one head"):
        memory_tables(several, torch.zeros(1, 4, dtype=torch.int64))


def test_readings_are_tables_of_all_heads():
    model = SmallTransformer(30, 20, 16, n_heads=2, positions="rotary", generator=generator()).language_model
    found = study_readings(model, 0, block_length=8, n_blocks=2, n_heads=4, shown_length=5)
    for name in ("induction", "previous_token", "by_distance", "copying", "copying_in_place", "single"):
        assert torch.tensor(found[name]).shape == (2, 2)
    assert {tuple(entry["head"]) for entry in found["composition"]} == {(1, 0), (1, 1)}
    assert torch.tensor(found["shown"]["attention"]).shape == (2, 10, 10)


# The command line


def test_the_command_prints_heads_and_writes_them(tmp_path, capsys):
    tiny("llama").save_pretrained(tmp_path / "model")
    output = tmp_path / "heads.json"
    command = ["llm", "heads", "--model", str(tmp_path / "model"), "--block-length", "6", "--top", "2"]
    assert main([*command, "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    (checkpoint,) = written["checkpoints"]
    model = load_model(tmp_path / "model")
    scores = head_scores(model, repeated_blocks(V, 6, 4, generator()))
    assert torch.allclose(torch.tensor(checkpoint["induction"]), scores.induction.mean(0))
    assert checkpoint["removed"]["induction"] == [list(head) for head in scores.best("induction", 2)]
    second = float(copy_losses(scores.losses).second.mean())
    assert checkpoint["losses"]["none"]["second"] == pytest.approx(second, abs=1e-3)
    printed = capsys.readouterr().out
    assert "induction heads:" in printed
    assert f"wrote {output}" in printed


def test_bad_options_are_one_line(tmp_path, capsys):
    tiny("gpt2").save_pretrained(tmp_path / "model")
    command = ["llm", "heads", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "heads.json")]
    for options in (["--block-length", "1"], ["--blocks", "0"], ["--top", "7"], ["--seed", "-1"]):
        assert main([*command, "--block-length", "6", *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1


# What is shipped

RESULTS = Path(__file__).resolve().parent.parent / "book" / "results"


@pytest.mark.parametrize("sweep", INDUCTION_SWEEPS, ids=lambda sweep: sweep.name)
def test_the_shipped_points_are_those_of_the_registry(sweep):
    shipped = load_results(RESULTS / f"{sweep.name}.json")
    names = list(sweep.points[0])
    assert [{name: point[name] for name in names} for point in shipped.points] == list(sweep.points)
    assert (RESULTS / f"{sweep.name}.json").stat().st_size < 150_000


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_short_run_is_the_start_of_the_shipped_one(positions):
    (shipped,) = load_results(RESULTS / "6b-checkpoints.json").where(positions=positions, seed=1)
    found = study_birth(positions, 1, steps=20)
    assert found["steps"] == shipped["steps"][:2]
    for name in ("accuracy", "excess", "induction", "gain", "early"):
        assert found[name] == pytest.approx(shipped[name][:2], abs=0.02)
    for memory in MEMORIES:
        assert found["signal"][memory] == pytest.approx(shipped["signal"][memory][:2], abs=0.1)


def test_nano_starts_as_shipped():
    (shipped,) = load_results(RESULTS / "6b-nano.json").where(seed=1)
    found = study_nano(1, steps=4)
    for name in ("loss", "first", "second", "induction", "previous_token"):
        assert found[name] == pytest.approx(shipped[name][: len(found[name])], abs=0.01)


def test_the_shipped_scores_are_those_of_smollm2():
    try:
        path = smollm2_path()
    except InputError as error:
        pytest.skip(str(error))
    model = load_model(path)
    (shipped,) = load_results(RESULTS / "6b-smollm2.json").where(seed=0)
    blocks = repeated_blocks(ordinary_tokens(model), 40, 3, generator())
    scores = head_scores(model, blocks)
    assert torch.allclose(scores.induction.mean(0), torch.tensor(shipped["induction"]), atol=0.02)
    assert [list(head) for head in scores.best("induction", 3)] == shipped["induction_heads"][:3]
    (reading,) = load_results(RESULTS / "6b-smollm2-readings.json").points
    blocks = repeated_blocks(ordinary_tokens(model), 40, 2, generator(reading["seed"]))
    entry = reading["composition"][0]
    recall = composition_recall(model, blocks, tuple(entry["head"]))
    assert float(recall[16, 0]) == pytest.approx(entry["recall"][16][0], abs=0.03)
