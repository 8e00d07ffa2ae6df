"""What the pages have for readers beyond Jupyter Book, as an extension of Sphinx.

- `chapter-map`, a directive: the chapters of both papers side by side, from the table of contents, each with the time
  it took when these pages were built.
- Terms of the glossary say what they mean: the first place of each in a chapter becomes a link, and _static/terms.js
  shows the definition there when the pointer or the keyboard is on it. The definitions are in _static/term-meanings.js,
  which is written with the pages.
- Every page says in its head what it is about, and marks Korean as Korean.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from assoc.files import write_atomically

GLOSSARY = "book/glossary"
CHAPTER = re.compile(r"book/(\d)([ab]?)-")
HANGUL = re.compile("[가-힣]")
FAMILIAR = frozenset(
    (
        "cross-entropy",
        "embedding",
        "gradient",
        "key",
        "learning rate",
        "logits",
        "mini-batch",
        "one-hot",
        "output",
        "token",
    )
)
"""Terms that every reader knows: in the glossary for their Korean names, but not marked in chapters."""
DESCRIPTION_LENGTH = 200  # characters; search engines and previews show about as many


# --- the map of the chapters


class ChapterMapNode(nodes.General, nodes.Element):
    """Holds the place of the map until all chapters have been executed."""


class ChapterMap(SphinxDirective):
    """The directive `chapter-map`, without arguments."""

    def run(self) -> list[nodes.Node]:
        return [ChapterMapNode()]


def run_time(env: Any, document: str) -> str:
    """The seconds that a chapter took to execute, as shown; "" if it was not executed."""
    seconds = (NbMetadataCollector.get_exec_data(env, document) or {}).get("runtime")
    return f"{max(1, round(seconds))} s" if seconds else ""


def chapter_parts(env: Any) -> Iterator[tuple[str, list[str]]]:
    """Caption and chapters of every part of the table of contents that has chapters."""
    site_map = env.external_site_map
    for part in site_map.root.subtrees:
        documents = [str(item) for item in part.items]
        if any(map(CHAPTER.match, documents)):
            yield part.caption, documents


class FillChapterMap(SphinxPostTransform):
    default_priority = 8  # before references are resolved

    def run(self, **_: Any) -> None:
        for node in list(self.document.findall(ChapterMapNode)):
            node.replace_self(self.table())

    def table(self) -> nodes.table:
        group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (18, 41, 41)), cols=3)
        names = ("", "Paper A", "Paper B")
        group += nodes.thead("", nodes.row("", *(nodes.entry("", nodes.paragraph(text=name)) for name in names)))
        group += nodes.tbody("", *(self.row(caption, chapters) for caption, chapters in chapter_parts(self.env)))
        return nodes.table("", group, classes=["chapter-map", "colwidths-given"])

    def row(self, caption: str, chapters: list[str]) -> nodes.row:
        row = nodes.row("", nodes.entry("", nodes.paragraph(text=caption)))
        by_paper = {CHAPTER.match(chapter)[2]: chapter for chapter in chapters if CHAPTER.match(chapter)}
        if "" in by_paper:
            row += nodes.entry("", self.chapter(by_paper[""]), morecols=1)
        else:
            row += [nodes.entry("", *([self.chapter(by_paper[paper])] if paper in by_paper else [])) for paper in "ab"]
        return row

    def chapter(self, document: str) -> nodes.paragraph:
        target = self.app.builder.get_relative_uri(self.env.docname, document)
        title = self.env.titles[document].astext()
        link = nodes.reference("", title, refuri=target, internal=True)
        time = run_time(self.env, document)
        return nodes.paragraph("", "", link, *([nodes.inline("", time, classes=["run-time"])] if time else []))


# --- terms that say what they mean


def plural(term: str) -> str:
    """A pattern for a term in the singular or plural."""
    for ending, endings in (("y", "(?:y|ies)"), ("matrix", "matri(?:x|ces)")):
        if term.endswith(ending):
            return re.escape(term.removesuffix(ending)) + endings
    return re.escape(term) + "s?"


def korean_names(definition: nodes.Element) -> list[str]:
    """The Korean words that open a definition, without what stands in brackets."""
    bold = next(iter(definition.findall(nodes.strong)), None)
    words = re.sub(r"\([^)]*\)", "", bold.astext()).split(",") if bold is not None else []
    return [word.strip() for word in words if HANGUL.search(word)]


def glossary_entries(doctree: nodes.document) -> Iterator[tuple[str, str, nodes.definition]]:
    """Name, anchor and definition of every term."""
    for item in doctree.findall(nodes.definition_list_item):
        term = next(item.findall(nodes.term))
        yield term.astext(), term["ids"][0], next(item.findall(nodes.definition))


def term_patterns(doctree: nodes.document) -> dict[str, tuple[str, re.Pattern[str]]]:
    """Name -> anchor and the pattern that finds the term in chapters, long names first. Korean particles may follow."""
    patterns = {}
    for name, anchor, definition in sorted(glossary_entries(doctree), key=lambda entry: -len(entry[0])):
        if name in FAMILIAR:
            continue
        english = rf"(?<![A-Za-z0-9-]){plural(name)}(?![A-Za-z0-9-])"
        korean = (rf"(?<![가-힣]){re.escape(word)}" for word in korean_names(definition))
        patterns[name] = anchor, re.compile("|".join((english, *korean)), re.IGNORECASE)
    return patterns


NOT_PROSE = (
    nodes.reference, nodes.literal, nodes.title, nodes.caption, nodes.math, nodes.term, nodes.table, nodes.literal_block
)  # fmt: skip


def prose(parent: nodes.Element) -> Iterator[nodes.Text]:
    """The text of paragraphs, without links, code, formulas, headings, captions and tables."""
    for text in list(parent.findall(nodes.Text)):
        ancestors, node = [], text.parent
        while node is not None:
            ancestors.append(node)
            node = node.parent
        if any(isinstance(a, nodes.paragraph) for a in ancestors) and not any(
            isinstance(a, NOT_PROSE) for a in ancestors
        ):
            yield text


def mark_first(texts: list[nodes.Text], pattern: re.Pattern[str], target: str) -> None:
    """Make the first match in these texts a link."""
    for index, text in enumerate(texts):
        if found := pattern.search(text):
            start, end = found.span()
            link = nodes.reference("", found[0], refuri=target, internal=True, classes=["term"])
            before, after = nodes.Text(text[:start]), nodes.Text(text[end:])
            text.parent.replace(text, [before, link, after])
            texts[index : index + 1] = [before, after]
            return


def mark_terms(app: Sphinx, doctree: nodes.document, document: str) -> None:
    """Link the first place of each term in a chapter, and in its Korean summary, unless the author linked it there."""
    if not CHAPTER.match(document):
        return
    glossary = app.builder.get_relative_uri(document, GLOSSARY)
    summaries = [
        box for box in doctree.findall(nodes.admonition) if HANGUL.search(next(box.findall(nodes.title)).astext())
    ]
    korean = [text for box in summaries for text in prose(box)]
    scopes = korean, [text for text in prose(doctree) if not any(text is other for other in korean)]
    linked = {link.get("refuri") for link in doctree.findall(nodes.reference)}
    for anchor, pattern in term_patterns(app.env.get_doctree(GLOSSARY)).values():
        target = f"{glossary}#{anchor}"
        for texts in scopes:
            if texts is korean or target not in linked:
                mark_first(texts, pattern, target)


def write_meanings(app: Sphinx, error: Exception | None) -> None:
    """Write the definitions as a script, which a page opened from a file can load too."""
    if error is None and app.builder.format == "html":
        doctree = app.env.get_and_resolve_doctree(GLOSSARY, app.builder)
        meanings = {}
        for name, anchor, definition in glossary_entries(doctree):
            meaning = "".join(app.builder.render_partial(part)["fragment"] for part in definition)
            meanings[anchor] = f"<strong>{escape(name)}</strong>{mark_korean(meaning)}"
        script = f"window.termMeanings = {json.dumps(meanings, ensure_ascii=False, sort_keys=True)};\n"
        write_atomically(app.outdir / "_static" / "term-meanings.js", script)


# --- heads and languages


def description(doctree: nodes.document) -> str:
    """The first paragraph of a page, cut at a word."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            text = " ".join(paragraph.astext().split())
            return text if len(text) <= DESCRIPTION_LENGTH else f"{text[:DESCRIPTION_LENGTH].rsplit(' ', 1)[0]} …"
    return ""


def mark_korean(html: str) -> str:
    """Say in HTML which boxes and bold words are Korean, for fonts and screen readers."""
    boxes = re.compile(r'<div class="([^"]*\badmonition\b[^"]*)">(\s*<p class="admonition-title">[^<]*[가-힣])')
    return re.sub("<strong>([^<]*[가-힣])", r'<strong lang="ko">\1', boxes.sub(r'<div class="\1" lang="ko">\2', html))


def complete_page(
    app: Sphinx, document: str, _template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Add the description of a page to its head, and languages to its body."""
    if doctree is None:
        return
    context["body"] = mark_korean(context["body"])
    about = description(doctree)
    head = {"og:type": "article", "og:site_name": app.config.html_title, "og:title": app.env.titles[document].astext()}
    tags = [f'<meta property="{name}" content="{escape(value)}">' for name, value in head.items()]
    if about:
        tags += [
            f'<meta {key} content="{escape(about)}">' for key in ('name="description"', 'property="og:description"')
        ]
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(ChapterMapNode)
    app.add_directive("chapter-map", ChapterMap)
    app.add_post_transform(FillChapterMap)
    app.add_js_file("term-meanings.js", loading_method="defer")
    app.add_js_file("terms.js", loading_method="defer")
    app.connect("doctree-resolved", mark_terms)
    app.connect("html-page-context", complete_page)
    app.connect("build-finished", write_meanings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
