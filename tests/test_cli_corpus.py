"""`python -m assoc corpus`."""

import argparse
import json
import subprocess
import sys

import pytest
import torch

from assoc.__main__ import main
from assoc.corpus import load_corpus
from assoc.corpus.cli import add_corpus_arguments, corpus_from_options


def counts_of(output):
    """The printed table as a dictionary; labels and values are set apart by two spaces."""
    rows = (line.rsplit("  ", 1) for line in output.strip().splitlines())
    return {label.strip(): value.strip() for label, value in rows}


def test_counts_of_the_stories(capsys):
    assert main(["corpus"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    corpus = load_corpus("stories", vocab_size=3000, length=200)
    counts = counts_of(output.out)
    assert counts["texts"] == "2,048"
    assert counts["tokens"] == "610,825"
    assert counts["types"] == "3,499"
    assert counts["tokens in the vocabulary (V = 3,000)"] == f"{corpus.statistics.vocabulary_coverage:.2%}"
    assert counts["texts of at least T + 1 = 201 tokens"] == "2,048"
    assert counts["texts wholly in the vocabulary"] == f"{corpus.statistics.n_in_vocabulary:,}"
    assert counts["sequences kept"] == "1,636"
    assert counts["topics"] == "64"


def test_json_on_the_screen_and_in_a_file(capsys, tmp_path):
    (tmp_path / "tiny.txt").write_text("a b a b\n\na c a")
    arguments = ["corpus", str(tmp_path / "tiny.txt"), "--vocab-size", "2", "--length", "2", "--unknown", "map"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "corpus": str(tmp_path / "tiny.txt"),
        "vocab_size": 2,
        "length": 2,
        "unknown": "map",
        "n_texts": 2,
        "n_tokens": 7,
        "n_types": 3,
        "longest_text": 4,
        "vocabulary_coverage": 4 / 7,
        "n_long_enough": 2,
        "n_in_vocabulary": 0,
        "n_sequences": 2,
        "n_topics": 0,
    }
    assert main([*arguments, "--json", str(tmp_path / "new" / "counts.json")]) == 0
    assert json.loads((tmp_path / "new" / "counts.json").read_text()) == printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["--vocab-size", "1"],
        ["--vocab-size", "50"],
        ["--vocab-size", "9999"],
        ["--length", "0"],
        ["--length", "400"],
        ["--max-sequences", "-1"],
        ["--unknown", "keep"],
        ["--json", "/dev/null/counts.json"],
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, capsys):
    assert main(["corpus", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1


def test_an_error_of_the_real_command_has_no_traceback(tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    command = [sys.executable, "-m", "assoc", "corpus", str(tmp_path / "blank.txt")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("error: ")
    assert finished.stderr.count("\n") == 1
    assert "holds no text" in finished.stderr


def test_other_commands_choose_their_corpus_with_the_same_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("word")
    add_corpus_arguments(parser)
    parser.set_defaults(vocab_size=600, length=64)
    options = parser.parse_args(["fish", "--unknown", "map", "--max-sequences", "8"])
    corpus = corpus_from_options(options)
    expected = load_corpus("stories", vocab_size=600, length=64, unknown="map", max_sequences=8)
    assert torch.equal(corpus.inputs, expected.inputs)
    assert corpus.inputs.shape == (8, 64)
