"""`lab site`: an author's error stops the build, and only a site is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docutils import nodes

from labstaff.site import HERE, SiteError, build_site, citation
from labstaff.site.cards import figure_of

CHAPTER = """\
# One

## A part

$x$, [front](README.md), [part](#a-part), [handout](../labs/lab01_x/README.md), [stub](../labs/lab01_x/src/x.py)
"""
MISTAKES = {
    "[gone](02_gone.md)": "'myst' cross-reference target not found: '02_gone.md'",
    "[gone](README.md#no)": "local id not found in doc 'docs/README': 'no'",
    "[gone](#no)": "'myst' cross-reference target not found: 'no'",
    "![A picture.](gone.svg)": "image file not readable: docs/gone.svg",
}
"""A line, and Sphinx's warning."""
MANIFEST = """\
title = "A lab"
summary = "What it is."
outcomes = ["write it", "measure it", "find what is wrong"]
module = "x"
hours = 1

[[tasks]]
name = "f"
signature = "f(x)"
tests = "TestF"
points = 1
hints = ["Look."]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a front page, a chapter and a handout."""
    files = {
        "docs/README.md": "# Front\n\n[one](01_one.md)\n",
        "docs/01_one.md": CHAPTER,
        "labs/lab01_x/README.md": "# A lab\n\n[chapter](../../docs/01_one.md#a-part)\n",
        "labs/lab01_x/lab.toml": MANIFEST,
        "labs/lab01_x/src/x.py": "x = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "repository"


def test_pages_are_in_the_navigation(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_site(root, out, {"what_goes_wrong": "# Mistakes\n"})
    html = (out / "docs" / "README.html").read_text(encoding="utf-8")
    tree = html[html.index('class="sidebar-tree"') : html.index("</aside>")]
    entries = ["Chapters", "1. One", "Labs", "A lab", "Instructors", "Mistakes"]
    assert sorted(entries, key=tree.index) == entries
    assert "docs/README.html" in (out / "index.html").read_text(encoding="utf-8")


def test_mistakes_stop_the_build_and_leave_the_old_site(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_site(root, out)
    (out / "old.html").touch()
    chapter = root / "docs" / "01_one.md"
    chapter.write_text(CHAPTER + "\n" + "\n\n".join(MISTAKES), encoding="utf-8")
    (root / "docs" / "nowhere.md").write_text("# A page that the navigation forgets\n", encoding="utf-8")
    with pytest.raises(SiteError) as error:
        build_site(root, out)
    warnings = str(error.value)
    for at, message in enumerate(MISTAKES.values()):
        assert f"docs/01_one.md:{7 + 2 * at}: WARNING: {message}" in warnings
    assert "docs/nowhere.md: WARNING: document isn't included in any toctree" in warnings
    assert (out / "old.html").is_file()
    chapter.write_text(CHAPTER, encoding="utf-8")
    (root / "docs" / "nowhere.md").unlink()
    build_site(root, out)
    assert not (out / "old.html").exists()


def test_labs_that_were_deleted_by_hand_are_not_linked(root: Path, tmp_path: Path) -> None:
    """The folder of a deleted lab may remain, with Python's cache in it."""
    (root / "labs/lab04_y/tests/__pycache__").mkdir(parents=True)
    chapter = root / "docs" / "01_one.md"
    chapter.write_text(CHAPTER + "\n[Lab 04](../labs/lab04_y/README.md#audit), [05](../labs/lab05_z/README.md)\n")
    build_site(root, tmp_path / "out")
    html = (tmp_path / "out" / "docs" / "01_one.html").read_text(encoding="utf-8")
    assert "<p>Lab 04 (not in this course), –</p>" in html
    assert 'href="../labs/lab01_x/README.html"' in html


def test_another_folder_is_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SiteError, match="is not a site"):
        build_site(root, tmp_path)
    assert (tmp_path / "thesis.tex").is_file()


def test_pages_name_authors_licence_and_citation(root: Path, tmp_path: Path) -> None:
    build_site(root, tmp_path / "out")
    html = (tmp_path / "out" / "docs" / "01_one.html").read_text(encoding="utf-8")
    foot = " ".join(html[html.index('<p class="colophon">') :].partition("</p>")[0].split())
    assert "Attention Labs, the Attention Labs authors. MIT licence." in foot
    assert 'href="README.html#how-to-cite"' in foot
    assert ("Source" in foot) == ("repository_code" in citation())
    assert "Last updated on" in html


def test_a_link_shows_the_title_and_the_first_paragraph(root: Path, tmp_path: Path) -> None:
    """Without an address nothing that needs one is written."""
    (root / "docs" / "01_one.md").write_text('# A & B\n\nWhat *costs* a "byte" & a half?\n\nMore.\n', encoding="utf-8")
    (root / "labs/lab01_x/README.md").write_text("# A lab\n\n" + "word " * 99, encoding="utf-8")
    build_site(root, tmp_path / "out")
    page, lab = (
        (tmp_path / "out" / name).read_text(encoding="utf-8").partition("<title>")[0]
        for name in ("docs/01_one.html", "labs/lab01_x/README.html")
    )
    assert '<meta name="description" content="What costs a “byte” &amp; a half?">' in page
    assert '<meta property="og:title" content="1. A &amp; B">' in page
    assert f'content="{"word " * 39}…">' in lab
    assert "og:url" not in page + lab
    assert "og:image" not in page + lab
    assert not {"404.html", "sitemap.xml"} & {file.name for file in (tmp_path / "out").iterdir()}
    root_page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert 'content="Attention Labs">\n<meta property="og:description" content="one">' in root_page


@pytest.mark.parametrize(
    ("images", "name"),
    [
        (
            ["docs/loop.svg", "docs/figures/00_front.svg", "docs/figures/05_one_step.svg", "docs/figures/b.svg"],
            "05_one_step",
        ),
        (["docs/figures/00_front.svg", "docs/loop.svg"], "00_front"),
        ([], "00_front"),
    ],
)
def test_a_link_shows_the_page_s_own_figure(images: list[str], name: str) -> None:
    page = nodes.section("", *(nodes.image(uri=image) for image in images))
    assert figure_of(page) == name


def test_an_address_begins_with_its_protocol(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"example\.org is no address: begin it with https://"):
        build_site(root, tmp_path / "out", url="example.org")


def test_long_pages_begin_with_their_contents(root: Path, tmp_path: Path) -> None:
    sections = "".join(f"\n## Part {number}\n\nWords.\n" for number in range(9))
    (root / "docs" / "01_one.md").write_text(CHAPTER + sections, encoding="utf-8")
    build_site(root, tmp_path / "out")
    long, short = (
        (tmp_path / "out" / "docs" / name).read_text(encoding="utf-8") for name in ("01_one.html", "README.html")
    )
    contents = long.partition('<details class="on-this-page">')[2].partition("</details>")[0]
    assert 'href="#part-8"' in contents
    assert "on-this-page" not in short


def test_search_has_every_section_s_text_without_the_contents(root: Path, tmp_path: Path) -> None:
    build_site(root, tmp_path / "out")
    script = (tmp_path / "out" / "_static" / "search_texts.js").read_text(encoding="utf-8")
    sections = json.loads(script.removeprefix("globalThis.SEARCH_SECTIONS = ").rstrip(";\n"))
    assert [section[:4] for section in sections] == [
        ["docs/01_one.html", "one", "1. One", "1. One"],
        ["docs/01_one.html", "a-part", "A part", "1. One"],
        ["docs/README.html", "front", "Front", "Front"],
        ["labs/lab01_x/README.html", "a-lab", "A lab", "A lab"],
    ]
    assert "handout" in sections[1][4]
    assert "handout" not in sections[0][4]
    search = (tmp_path / "out" / "search.html").read_text(encoding="utf-8")
    assert search.index("search_texts.js") < search.index("static/search.js")
    assert "searchtools.js" not in search


SECTIONS = [
    ["docs/01.html", "a", "1. Memory", "1. Memory", "Many outputs, a unit of processing, and FlashAttention."],
    ["docs/05.html", "b", "5. FlashAttention", "5. FlashAttention", "Tiles."],
    [
        "docs/05.html",
        "c",
        "Windows",
        "5. FlashAttention",
        "A tensor processing unit, TPU, & attention. Windows, windows, windows.",
    ],
    ["docs/08.html", "d", "8. Sliding windows", "8. Sliding windows", "Some windows, no flash. An output (C++)."],
]


@pytest.mark.parametrize(
    ("query", "anchors"),
    [
        ("TPU", "c"),
        ("put", ""),
        ("flash attention", "ba"),
        ("Flash-Attention", "ba"),
        ("window", "dc"),
        ("processing unit", "ca"),
        ("outputs", "ad"),
        ("C++ output", "d"),
        ("attention tiles", ""),
        ("+", ""),
    ],
)
def test_search_finds_whole_words(query: str, anchors: str) -> None:
    import quickjs

    script = quickjs.Context()
    script.eval((HERE / "static" / "search.js").read_text(encoding="utf-8"))
    found = script.eval(f"JSON.stringify(searchSections({json.dumps(query)}, {json.dumps(SECTIONS)}))")
    assert "".join(each["section"][1] for each in json.loads(found)) == anchors
