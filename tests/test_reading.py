"""What readers get beyond Jupyter Book: the picture of the first page, terms that explain themselves, heads, Korean."""

import json
import re
from itertools import product
from xml.etree import ElementTree

import pytest
from docutils import nodes

import landing_picture
import reading
from assoc.leading_terms import step_coefficients

# --- the picture of the first page


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(landing_picture.RECORD.read_text())


def half_way(values: list[float]) -> int:
    """The first place where at least half of the last value is reached."""
    return next(place for place, value in enumerate(values) if value >= values[-1] / 2)


def test_the_picture_shows_what_it_says(record: dict) -> None:
    """Output before values before attention; what to output before what to look for before where it stood."""
    kinds = [half_way(record["paper_a"]["coefficient"][kind]) for kind in landing_picture.KINDS]
    memories = [half_way(record["paper_b"]["cosine"][memory]) for memory in landing_picture.MEMORIES]
    assert kinds == sorted(set(kinds))
    assert memories == sorted(set(memories))


def test_the_lines_of_the_picture_are_the_closed_form(record: dict) -> None:
    for steps, time in enumerate(record["paper_a"]["training_time"]):
        coefficients = step_coefficients(steps, record["paper_a"]["training_time"][1])
        assert time == pytest.approx(steps * record["paper_a"]["training_time"][1])
        for kind in landing_picture.KINDS:
            predicted = record["paper_a"]["predicted"][kind][steps]
            assert predicted == pytest.approx(getattr(coefficients, kind), rel=1e-4)


@pytest.mark.parametrize(("paper", "theme"), list(product("ab", landing_picture.THEMES)))
def test_the_committed_picture_is_that_of_the_record(record: dict, paper: str, theme: str) -> None:
    committed = landing_picture.picture(paper, theme).read_text()
    assert landing_picture.draw(record, paper, theme) == committed
    assert ElementTree.fromstring(committed).tag.endswith("svg")


# --- terms


def glossary(**terms: str) -> nodes.document:
    """A glossary with these terms, "_" for a space, and their bold Korean names."""
    document = nodes.document(None, None)
    items = nodes.definition_list()
    for name, korean in terms.items():
        term = nodes.term("", name.replace("_", " "), ids=[f"term-{name}"])
        meaning = nodes.paragraph("", "", nodes.strong("", korean), nodes.Text(". What it means."))
        items += nodes.definition_list_item("", term, nodes.definition("", meaning))
    document += items
    return document


def found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[0] if match else None


def test_terms_are_found_as_words_in_any_number_and_before_korean_particles() -> None:
    document = glossary(
        bigram="바이그램(bigram)",
        associative_memory="연상 기억(associative memory)",
        value_matrix="값 행렬, value 행렬",
        token="토큰",
    )
    patterns = {name: pattern for name, (_, pattern) in reading.term_patterns(document).items()}
    assert found(patterns["bigram"], "Global Bigrams are fast") == "Bigrams"
    assert found(patterns["bigram"], "in-bigram, bigramme") is None
    assert found(patterns["bigram"], "전역 bigram과 바이그램은") == "bigram"
    assert found(patterns["associative memory"], "Associative memories hold pairs") == "Associative memories"
    assert found(patterns["associative memory"], "연상 기억으로 봅니다") == "연상 기억"
    assert found(patterns["value matrix"], "the value matrices") == "value matrices"
    assert found(patterns["value matrix"], "value 행렬이") == "value 행렬"
    assert "token" not in patterns


def test_only_the_first_place_in_prose_becomes_a_link() -> None:
    document = nodes.document(None, None)
    document += nodes.section(
        "",
        nodes.title("", "A trigger"),
        nodes.paragraph("", "", nodes.literal("", "trigger"), nodes.Text(" a trigger, a trigger")),
    )
    _, pattern = next(iter(reading.term_patterns(glossary(trigger="트리거")).values()))
    reading.mark_first(list(reading.prose(document)), pattern, "glossary.html#term-trigger")
    (link,) = document.findall(nodes.reference)
    assert link.parent.astext() == "trigger a trigger, a trigger"
    assert link.parent.index(link) == 2  # after the code and " a "
    assert link["refuri"] == "glossary.html#term-trigger"


# --- heads and languages


def test_korean_is_marked_and_english_is_not() -> None:
    box = '<div class="tip admonition">\n<p class="admonition-title">{}</p>'
    assert 'lang="ko"' in reading.mark_korean(box.format("1분 요약"))
    assert 'lang="ko"' not in reading.mark_korean(box.format("In short"))
    assert reading.mark_korean("<strong>문맥(context)</strong>") == '<strong lang="ko">문맥(context)</strong>'
    assert reading.mark_korean("<strong>context</strong>") == "<strong>context</strong>"


def test_the_description_is_the_first_paragraph_cut_at_a_word() -> None:
    document = nodes.document(None, None)
    document += nodes.section(
        "", nodes.title("", "Title"), nodes.paragraph("", "word " * 100), nodes.paragraph("", "x")
    )
    about = reading.description(document)
    assert about.startswith("word word")
    assert about.endswith("word …")
    assert len(about) <= reading.DESCRIPTION_LENGTH + 2
    assert reading.description(nodes.document(None, None)) == ""
