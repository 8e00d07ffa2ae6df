"""The corpus: its texts, its tokens, and the sequences cut from them."""

import string
import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assoc.corpus import CORPUS_NAMES, END_OF_TEXT, UNKNOWN, CorpusStatistics, load_corpus, load_texts, texts, tokenize
from assoc.errors import InputError
from conftest import shared_file


@pytest.fixture(scope="module")
def stories():
    return load_corpus("stories", vocab_size=3000, length=200)


def write(path, *parts, separator=f"\n{END_OF_TEXT}\n"):
    path.write_text(separator.join(parts), encoding="utf-8")
    return path


@contextmanager
def expect_error(*needles):
    """An InputError on one line that says what is wrong and what to do."""
    with pytest.raises(InputError) as raised:
        yield
    message = str(raised.value)
    assert "\n" not in message
    for needle in needles:
        assert needle in message


# Tokens


def tokenize_by_character(text):
    """Walk through the characters, growing a word as long as letters follow."""
    tokens, word = [], ""
    for character in text.lower():
        if character.isalpha():
            word += character
            continue
        if word:
            tokens.append(word)
            word = ""
        if not character.isspace():
            tokens.append(character)
    return [*tokens, word] if word else tokens


@given(st.one_of(st.text(), st.text(alphabet=string.printable), st.text(alphabet="aZé²½Ⅳ٣_'\u0301\u200b\xa0 \n字ſİ")))
def test_tokens_are_runs_of_letters_and_single_other_characters(text):
    assert tokenize(text) == tokenize_by_character(text)


def test_tokens_by_hand():
    assert " ".join(tokenize("Don't go, Zoë!\n\n42 x_y “Été”")) == "don ' t go , zoë ! 4 2 x _ y “ été ”"
    assert tokenize(" \n\t") == []


# The embedded stories


def test_stories_have_the_counts_of_the_book(stories):
    assert stories.statistics.n_texts == stories.n_texts == 2048
    assert stories.statistics.n_tokens == 610_825
    assert stories.statistics.n_types == 3499
    assert stories.inputs.shape == stories.targets.shape == (1636, 200)
    assert len(stories) == 1636
    assert stories.inputs.dtype == stories.targets.dtype == torch.int64


def test_statistics_agree_with_a_plain_count(stories):
    tokens = [tokenize_by_character(text) for text in load_texts("stories").texts]
    counts = Counter(token for text in tokens for token in text)
    vocabulary = {token for token, _ in counts.most_common(3000)}
    statistics = stories.statistics
    assert set(stories.vocabulary) == vocabulary
    assert statistics.longest_text == max(map(len, tokens))
    assert statistics.n_long_enough == sum(len(text) >= 201 for text in tokens)
    assert statistics.n_in_vocabulary == sum(vocabulary.issuperset(text) for text in tokens)
    inside = sum(counts[word] for word in vocabulary)
    assert statistics.vocabulary_coverage == pytest.approx(inside / counts.total(), abs=1e-15)
    assert stories.counts.tolist() == [counts[word] for word in stories.vocabulary]
    kept = [text for text in tokens if len(text) >= 201 and vocabulary.issuperset(text)]
    for row in (0, 700, 1635):
        assert stories.decode(stories.inputs[row]).split() == kept[row][:200]
        assert stories.word(stories.targets[row, -1].item()) == kept[row][200]


def test_every_theme_has_32_stories():
    stories = load_texts("stories")
    per_topic = Counter(stories.topics)
    assert len(stories) == 2048
    assert len(per_topic) == 64
    assert set(per_topic.values()) == {32}
    assert list(per_topic)[:2] == ["pond", "birds"]
    assert not any(END_OF_TEXT in text or text != text.strip() or not text for text in stories.texts)


def test_topics_stay_with_their_stories(stories):
    texts_by_topic = {}
    for text, topic in zip(*vars(load_texts("stories")).values(), strict=True):
        texts_by_topic.setdefault(topic, []).append(" ".join(tokenize(text)))
    assert len(stories.topics) == len(stories)
    for row in range(0, len(stories), 150):
        start = stories.decode(stories.inputs[row])
        assert any(text.startswith(start) for text in texts_by_topic[stories.topics[row]])


def test_vocabulary_falls_in_frequency_and_ties_go_by_first_occurrence(stories):
    assert (stories.counts.diff() <= 0).all()
    assert len(set(stories.vocabulary)) == stories.vocab_size == 3000
    first = {}
    for text in load_texts("stories").texts:
        for token in tokenize(text):
            first.setdefault(token, len(first))
    keys = [(-n, first[word]) for word, n in zip(stories.vocabulary, stories.counts.tolist(), strict=True)]
    assert keys == sorted(keys)


def test_same_arguments_give_the_same_sequences(stories):
    again = load_corpus("stories", vocab_size=3000, length=200)
    assert again.vocabulary == stories.vocabulary
    assert again.topics == stories.topics
    assert torch.equal(again.inputs, stories.inputs)
    assert torch.equal(again.targets, stories.targets)


@pytest.mark.parametrize("unknown", ["drop", "map"])
def test_targets_are_the_next_tokens(unknown):
    corpus = load_corpus("stories", vocab_size=2500, length=50, unknown=unknown)
    assert torch.equal(corpus.targets[:, :-1], corpus.inputs[:, 1:])
    assert corpus.inputs.min() >= 0
    assert max(corpus.inputs.max(), corpus.targets.max()) < 2500
    assert corpus.inputs.is_contiguous()


def test_max_sequences_keeps_every_theme_in_proportion():
    every = load_corpus("stories", vocab_size=600, length=64, unknown="map")
    some = load_corpus("stories", vocab_size=600, length=64, unknown="map", max_sequences=512)
    assert len(every) == 2048
    assert set(Counter(some.topics).values()) == {8}
    assert torch.equal(some.inputs, every.inputs[::4])
    assert some.vocabulary == every.vocabulary
    seven = load_corpus("stories", vocab_size=600, length=64, unknown="map", max_sequences=7)
    assert torch.equal(seven.inputs, every.inputs[[j * 2048 // 7 for j in range(7)]])
    assert len(load_corpus("stories", vocab_size=600, length=64, unknown="map", max_sequences=9999)) == 2048


# Small texts by hand


TINY = ("a b a b a c", "A b. a", "b a", "d a b a", "c a a b a")


def test_drop_keeps_texts_inside_the_vocabulary(tmp_path):
    # counts: a 11, b 6, c 2, "." 1, d 1; "b a" is too short
    file = write(tmp_path / "tiny.txt", *TINY)
    corpus = load_corpus(file, vocab_size=3, length=3)
    assert corpus.vocabulary == ["a", "b", "c"]
    assert corpus.counts.tolist() == [11, 6, 2]
    assert corpus.inputs.tolist() == [[0, 1, 0], [2, 0, 0]]
    assert corpus.targets.tolist() == [[1, 0, 1], [0, 0, 1]]
    assert corpus.topics is None
    assert corpus.statistics == CorpusStatistics(
        n_texts=5,
        n_tokens=21,
        n_types=5,
        longest_text=6,
        vocabulary_coverage=19 / 21,
        n_long_enough=4,
        n_in_vocabulary=3,
    )


def test_drop_looks_at_the_whole_text_and_not_at_its_cut(tmp_path):
    file = write(tmp_path / "tiny.txt", "a b a b a c", "b a a")
    corpus = load_corpus(file, vocab_size=2, length=2)
    assert [corpus.decode(row) for row in corpus.inputs] == ["b a"]
    assert corpus.statistics.n_in_vocabulary == 1


def test_map_replaces_other_tokens_by_unk(tmp_path):
    file = write(tmp_path / "tiny.txt", *TINY)
    corpus = load_corpus(file, vocab_size=3, length=3, unknown="map")
    assert corpus.vocabulary == ["a", "b", UNKNOWN]
    assert corpus.counts.tolist() == [11, 6, 4]
    assert corpus.inputs.tolist() == [[0, 1, 0], [0, 1, 2], [2, 0, 1], [2, 0, 0]]
    assert corpus.targets.tolist() == [[1, 0, 1], [1, 2, 0], [0, 1, 0], [0, 0, 1]]
    assert corpus.index(UNKNOWN) == 2
    assert corpus.decode(corpus.inputs[1]) == f"a b {UNKNOWN}"


def test_the_whole_vocabulary_can_be_asked_for_exactly(tmp_path):
    file = write(tmp_path / "tiny.txt", *TINY)
    assert load_corpus(file, vocab_size=5, length=3).vocabulary == ["a", "b", "c", ".", "d"]
    assert load_corpus(file, vocab_size=6, length=3, unknown="map").counts.tolist() == [11, 6, 2, 1, 1, 0]
    for unknown, largest in (("drop", 5), ("map", 6)):
        with expect_error("5 different tokens", f"vocab_size {largest} or less"):
            load_corpus(file, vocab_size=largest + 1, length=3, unknown=unknown)


def test_a_tokenizer_of_ones_own(tmp_path):
    file = write(tmp_path / "tiny.txt", "Ab Ab cd", "cd Ab Ab")
    corpus = load_corpus(file, vocab_size=2, length=2, tokenizer=str.split)
    assert corpus.vocabulary == ["Ab", "cd"]
    assert corpus.index("Ab") == 0


# Files and folders


def test_blank_lines_separate_texts_only_without_end_of_text_marks(tmp_path):
    assert load_texts(write(tmp_path / "a.txt", "one\ntwo", "three", separator="\n \n")).texts == ["one\ntwo", "three"]
    assert load_texts(write(tmp_path / "b.txt", "one\n\ntwo", "three", "  ")).texts == ["one\n\ntwo", "three"]
    assert load_texts(write(tmp_path / "c.txt", "\ufeffonly one\r\n")).texts == ["only one"]


def test_a_folder_is_read_in_the_order_of_its_names_with_topics(tmp_path):
    write(tmp_path / "02-sea.txt", "waves", "fish")
    write(tmp_path / "01-sky.txt", "stars")
    write(tmp_path / "03.txt", "numbers")
    write(tmp_path / "notes.md", "not read")
    assert vars(load_texts(tmp_path)) == {
        "texts": ["stars", "waves", "fish", "numbers"],
        "topics": ["sky", "sea", "sea", "03"],
    }
    assert load_texts(tmp_path, max_texts=2).texts == ["stars", "waves"]
    (tmp_path / "02-sea.txt").unlink()
    (tmp_path / "03.txt").unlink()
    assert load_texts(str(tmp_path)).topics is None


def test_a_copy_of_the_stories_reads_like_the_embedded_ones(stories):
    copy = load_corpus(texts.STORIES, vocab_size=3000, length=200)
    assert torch.equal(copy.inputs, stories.inputs)
    assert copy.topics == stories.topics


@pytest.mark.parametrize(
    ("name", "at_least", "vocab_size", "length"),
    [("tinystories-sample", 3000, 3000, 200), ("tinyshakespeare", 7000, 1000, 16)],
)
def test_larger_samples(name, at_least, vocab_size, length):
    file = shared_file(f"data/{name}.txt")
    dropped = load_corpus(file, vocab_size=vocab_size, length=length)
    mapped = load_corpus(file, vocab_size=vocab_size, length=length, unknown="map")
    assert dropped.n_texts == mapped.n_texts >= at_least
    assert dropped.topics is None
    assert 100 < len(dropped) < len(mapped) == mapped.statistics.n_long_enough
    assert mapped.vocabulary[:-1] == dropped.vocabulary[:-1]
    assert mapped.counts.sum() == mapped.statistics.n_tokens
    assert torch.equal(dropped.targets[:, :-1], dropped.inputs[:, 1:])


# Sequences


def test_words_and_their_numbers(stories):
    fish = stories.index("fish")
    assert stories.vocabulary[fish] == stories.word(fish) == "fish"
    assert stories.index("Fish") == fish
    with expect_error("'elefant'", "did you mean 'elephant'?"):
        stories.index("elefant")
    with expect_error("'zzzzqqqq'", "try a common one, such as 'the'"):
        stories.index("zzzzqqqq")
    for outside in (-1, 3000):
        with expect_error("0 to 2999"):
            stories.word(outside)


def test_split_holds_out_each_sequence_once(stories):
    rest, held_out = stories.split(0.1, torch.Generator().manual_seed(0))
    assert (len(rest), len(held_out)) == (1472, 164)
    assert len(held_out.topics) == 164
    assert rest.vocabulary == stories.vocabulary
    rows = [[tuple(row) for row in part.inputs.tolist()] for part in (stories, rest, held_out)]
    assert Counter(rows[0]) == Counter(rows[1]) + Counter(rows[2])
    again = stories.split(0.1, torch.Generator().manual_seed(0))[1]
    assert torch.equal(again.inputs, held_out.inputs)
    for fraction in (0.0, 1.0, -0.5, 2.0):
        with expect_error("between 0 and 1"):
            stories.split(fraction, torch.Generator())


# The hub


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library `datasets` with endless rows; notes what was asked of it and how much was read."""
    log = SimpleNamespace(calls=[], n_rows=0, rows=None)

    def endless():
        while True:
            log.n_rows += 1
            yield {"text": f" story number {'x' * log.n_rows} \n\n goes on " if log.n_rows % 3 else " "}

    def load_dataset(path, **arguments):
        log.calls.append((path, arguments))
        return log.rows or endless()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(texts, "_reach_hub", lambda: None)
    return log


def test_the_hub_is_streamed_and_read_no_further_than_needed(hub):
    found = load_texts("tinystories", max_texts=4)
    assert found.texts == [f"story number {'x' * n} \n\n goes on" for n in (1, 2, 4, 5)]
    assert found.topics is None
    assert hub.n_rows == 5
    assert hub.calls == [("roneneldan/TinyStories", {"split": "train", "streaming": True})]
    corpus = load_corpus("fineweb", vocab_size=5, length=3, unknown="map", max_texts=10)
    assert (len(corpus), corpus.topics) == (10, None)
    assert corpus.vocabulary[-1] == UNKNOWN


def test_shakespeare_is_one_row_of_many_speeches(hub):
    hub.rows = [{"text": "First Citizen:\nSpeak.\n\nAll:\nSpeak, speak.\n"}]
    assert load_texts("shakespeare").texts == ["First Citizen:\nSpeak.", "All:\nSpeak, speak."]


@pytest.mark.parametrize("name", [name for name in CORPUS_NAMES if name != "stories"])
def test_a_hub_that_fails_half_way_is_an_error(hub, name):
    def broken():
        yield {"text": "one"}
        raise ConnectionError("lost\nthe line")

    hub.rows = broken()
    with expect_error(f"'{name}'", "ConnectionError: lost the line", "check the network", "local", "use 'stories'"):
        load_texts(name)


def test_an_empty_answer_of_the_hub_is_an_error(hub):
    hub.rows = [{"text": " "}]
    with expect_error("empty", "use 'stories'"):
        load_texts("openwebtext")


def test_no_network_is_said_without_asking_the_library(hub, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=None))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with expect_error("refused", "check the network", "use 'stories'"):
        load_texts("tinystories")


def test_no_library_is_said_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with expect_error("pip install", "[hub]", "local text file", "use 'stories'"):
        load_corpus("openwebtext", vocab_size=100, length=10)


# Bad input


@pytest.mark.parametrize("name", ["storys", "", "no/such/folder", "once upon a time " * 500, "nul\0"])
def test_no_such_corpus(name):
    with expect_error("no corpus", *CORPUS_NAMES, "path of a text file"):
        load_corpus(name)


def test_empty_inputs(tmp_path):
    with expect_error("no .txt file"):
        load_texts(tmp_path)
    with expect_error("holds no text"):
        load_texts(write(tmp_path / "blank.txt", " \n\n ", ""))
    with expect_error("holds no text"):
        load_texts(tmp_path)


def test_files_that_are_not_text(tmp_path):
    for name, content in (("latin.txt", "é".encode("latin-1")), ("model.bin", b"PK\0\0abc")):
        (tmp_path / name).write_bytes(content)
        with expect_error(name, "UTF-8"):
            load_texts(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        ({"vocab_size": 1}, ["vocab_size is 1", "at least 2"]),
        ({"vocab_size": 300.0}, ["vocab_size is 300.0", "whole number"]),
        ({"vocab_size": 3500}, ["3,499 different tokens", "vocab_size 3,499 or less"]),
        ({"length": 0}, ["length is 0", "at least 2"]),
        ({"length": -3}, ["length is -3"]),
        ({"length": 1}, ["length is 1", "at least 2"]),
        ({"length": 334}, ["335 tokens", "334", "use length 333 or less"]),
        ({"max_sequences": 0}, ["max_sequences is 0", "at least 1"]),
        ({"max_sequences": -5}, ["max_sequences is -5"]),
        ({"max_texts": 0}, ["max_texts is 0"]),
        ({"unknown": "keep"}, ["'keep'", "'drop'", "'map'"]),
        ({"vocab_size": 50}, ["50 most common", "larger vocab_size", "'map'", UNKNOWN]),
    ],
)
def test_arguments_out_of_range(arguments, needles):
    with expect_error(*needles):
        load_corpus("stories", **arguments)


def test_the_longest_story_still_gives_a_sequence():
    assert load_corpus("stories", vocab_size=3499, length=333).inputs.shape == (1, 333)


def test_a_text_of_one_token(tmp_path):
    file = write(tmp_path / "one.txt", "word")
    with expect_error("more words"):
        load_corpus(file, vocab_size=2, length=2)
    with expect_error("longest text (1 read) has 1", "give longer texts"):
        load_corpus(file, vocab_size=2, length=2, unknown="map")


def test_select_takes_rows_or_a_mask() -> None:
    corpus = load_corpus("stories", vocab_size=100, length=10, unknown="map", max_sequences=64)
    mask = torch.zeros(64, dtype=torch.bool)
    mask[10:13] = True
    for rows in (mask, torch.tensor([10, 11, 12]), [10, 11, 12]):
        chosen = corpus.select(rows)
        assert torch.equal(chosen.inputs, corpus.inputs[10:13])
        assert chosen.topics == corpus.topics[10:13]
    for rows in (mask[:5], torch.tensor([99]), torch.tensor([], dtype=torch.int64)):
        with pytest.raises(InputError):
            corpus.select(rows)
