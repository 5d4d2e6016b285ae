"""The book as a website: whole, in order, with nothing loaded from elsewhere, and strict with its authors."""

from __future__ import annotations

import errno
import json
import posixpath
import re
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_labs
from labstaff.derive.course_map import BEGIN, END, PAGE, refresh_page, table, with_table
from labstaff.site import SiteError, _put_in_place, build_site
from labstaff.site.links import problems
from labstaff.site.mathematics import TexError, render
from labstaff.site.pages import CHAPTER, navigation
from labstaff.site.search import TEXTS, on_one_line
from tests.labstaff.site.built_site import built_site

CHAPTERS = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if CHAPTER.fullmatch(path.stem))
HANDOUTS = [f"labs/{lab.folder.name}" for lab in find_labs()]
DISPLAYED = re.compile(r"^\s*\$\$$", re.MULTILINE)
FRONT = "# Front\n\n[one](01_one.md)\n"
CHAPTER_ONE = "# One\n\n## A part\n\n$x$, [front](README.md), [part](#a-part)\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


class TestSite:
    """The real one."""

    def test_links_anchors_and_files_are_there_and_nothing_comes_from_elsewhere(self, site: Path) -> None:
        assert problems(site) == []

    def test_every_chapter_and_every_handout_is_a_page(self, site: Path) -> None:
        pages = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
        assert CHAPTERS
        assert {"index", "search", "glossary", "references", "self_study", "course_map"} <= pages
        assert set(CHAPTERS) | set(HANDOUTS) <= pages

    def test_the_sidebar_is_in_reading_order(self, site: Path) -> None:
        html = (site / "glossary.html").read_text(encoding="utf-8")
        tree = html[html.index('class="sidebar-tree"') : html.index("</aside>")]
        linked = [href.removesuffix(".html") for href in re.findall(r'href="([^"#]+)"', tree)]
        assert [page for page in linked if page in CHAPTERS] == CHAPTERS
        assert [page for page in linked if page in HANDOUTS] == HANDOUTS
        assert linked.index("self_study") < linked.index(CHAPTERS[0]) < linked.index(HANDOUTS[0])
        assert "1. The GPU memory hierarchy" in tree

    def test_every_displayed_formula_is_rendered(self, site: Path) -> None:
        for page in CHAPTERS:
            source = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
            html = (site / f"{page}.html").read_text(encoding="utf-8")
            assert html.count('class="katex-display"') == len(DISPLAYED.findall(source)) / 2, page
        assert (site / "_static" / "fonts" / "KaTeX_Main-Regular.woff2").stat().st_size > 10_000

    def test_a_handout_offers_its_stub(self, site: Path) -> None:
        lab = find_labs()[0]
        html = (site / f"{HANDOUTS[0]}.html").read_text(encoding="utf-8")
        (stub,) = {Path(href) for href in re.findall(r'href="([^"]+)"', html) if href.endswith(f"/{lab.module}.py")}
        assert (site / HANDOUTS[0]).parent.joinpath(stub).read_bytes() == lab.answer_file.read_bytes()

    def test_only_pages_to_play_with_load_their_scripts(self, site: Path) -> None:
        scripts = re.compile(r'<script [^>]*src="[./]*_static/((?:tile_loop|cache_blocks|ring|player)/\w+\.js)')
        loading = {path.stem: scripts.findall(path.read_text(encoding="utf-8")) for path in site.glob("*.html")}
        named = {}
        for page in ("tile_loop", "cache_blocks", "ring"):
            alone = (ROOT / "docs" / "_static" / page / "index.html").read_text(encoding="utf-8")
            named[page] = [posixpath.normpath(f"{page}/{name}") for name in re.findall(r'<script src="([^"]+)"', alone)]
            assert named[page][0] == "player/player.js"
        assert {page: found for page, found in loading.items() if found} == named

    def test_only_the_search_page_loads_the_texts_that_it_quotes(self, site: Path) -> None:
        loading = [path for path in site.rglob("*.html") if TEXTS in path.read_text(encoding="utf-8")]
        assert loading == [site / "search.html"]
        texts = json.loads((site / "_static" / TEXTS).read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
        assert set(CHAPTERS) | set(HANDOUTS) <= texts.keys()
        for name, sections in texts.items():
            html = (site / f"{name}.html").read_text(encoding="utf-8")
            assert [anchor for anchor, _ in sections if f' id="{anchor}">' not in html] == [], name

    def test_the_front_page_leads_to_every_chapter_and_lab(self) -> None:
        front = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#]+)", front)
        assert [page for page in CHAPTERS if f"{page}.md" not in targets] == []
        assert [page for page in HANDOUTS if f"../{page}/README.md" not in targets] == []


def mini(folder: Path, chapter: str = CHAPTER_ONE, **files: str) -> Path:
    """A house with a front page and one chapter, and the files named."""
    for name, text in {"README": FRONT, "01_one": chapter, **files}.items():
        path = folder / "docs" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


class TestStrictness:
    """What an author gets wrong stops the build, and is named with its place."""

    def test_a_house_in_order_builds(self, tmp_path: Path) -> None:
        assert build_site(mini(tmp_path / "house"), tmp_path / "out") == 3
        assert (tmp_path / "out" / "index.html").is_file()

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            (r"$\fra{1}{2}$", r"docs/01_one.md:5: WARNING: TeX: Undefined control sequence: \fra"),
            ("$$\n\\frac{1}{2\n$$", "docs/01_one.md:5: WARNING: TeX: Unexpected end of input"),
            ("[gone](02_gone.md)", "docs/01_one.md:5: WARNING: 'myst' cross-reference target not found: '02_gone.md'"),
            ("[gone](README.md#no)", "docs/01_one.md:5: WARNING: local id not found in doc 'index': 'no'"),
            ("[gone](#no)", "docs/01_one.md:5: WARNING: 'myst' cross-reference target not found: 'no'"),
            ("![A picture.](gone.svg)", "docs/01_one.md:5: WARNING: image file not readable: gone.svg"),
            ('<a href="gone.html">raw</a>', "01_one.html: links to gone.html, which is not there"),
            ('<script src="https://example.org/x.js"></script>', "01_one.html: loads https://example.org/x.js from"),
        ],
        ids=["tex", "displayed tex", "link", "anchor", "own anchor", "image", "raw link", "load from elsewhere"],
    )
    def test_a_mistake_stops_the_build(self, tmp_path: Path, line: str, said: str) -> None:
        house = mini(tmp_path / "house", chapter=f"# One\n\nText.\n\n{line}\n")
        with pytest.raises(SiteError) as complaint:
            build_site(house, tmp_path / "out")
        assert said in str(complaint.value)
        assert not (tmp_path / "out").exists()

    def test_a_site_is_replaced_only_by_a_whole_one(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "searchindex.js").touch()
        (out / "old.html").touch()
        with pytest.raises(SiteError):
            build_site(mini(tmp_path / "house", chapter="# One\n\n[gone](gone.md)\n"), out)
        assert (out / "old.html").is_file()
        build_site(mini(tmp_path / "house"), out)
        assert not (out / "old.html").exists()

    def test_another_folder_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(SiteError, match="is not a site"):
            build_site(mini(tmp_path / "house"), tmp_path)
        assert (tmp_path / "thesis.tex").is_file()


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="b.html#here">x</a>', ""),
        ('<a href="https://example.org/">x</a>', ""),
        ('<img src="data:image/gif;base64,AAAA">', ""),
        ("<code>$$ x $$</code>", ""),
        ('<a href="b.html#gone">x</a>', "an anchor that is not there"),
        ('<a href="gone.html">x</a>', "which is not there"),
        ('<a href="/b.html">x</a>', "which is not there"),
        ('<a href="../b.html">x</a>', "which is not there"),
        ('<img src="gone.svg">', "which is not there"),
        ('<img srcset="b.html 1x, gone.svg 2x">', "which is not there"),
        ('<link href="//example.org/x.css">', "from elsewhere"),
        ("<style>a { background: url(https://example.org/x) }</style>", "from elsewhere"),
        ('<p style="background: url(gone.svg)">', "which is not there"),
        (r"<p>$$ \frac{1}{2} $$</p>", "TeX that was not rendered"),
        ('<p id="a"></p><p id="a"></p>', "is there twice"),
    ],
)
def test_what_the_check_of_a_built_site_finds(tmp_path: Path, html: str, said: str) -> None:
    (tmp_path / "a.html").write_text(html, encoding="utf-8")
    (tmp_path / "b.html").write_text('<p id="here"></p>', encoding="utf-8")
    found = problems(tmp_path)
    assert len(found) == bool(said), found
    assert said in "".join(found)


def test_a_disk_without_room_leaves_the_site_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, out = tmp_path / "fresh", tmp_path / "site"
    for folder, text in ((fresh, "new"), (out, "old")):
        folder.mkdir()
        (folder / "index.html").write_text(text)

    def full(_from: Path, to: Path) -> None:
        to.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.move", full)
        with pytest.raises(OSError, match="No space left"):
            _put_in_place(fresh, out)
    assert (out / "index.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "site"]
    _put_in_place(fresh, out)
    assert (out / "index.html").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_style_sheets_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import 'https://example.org/b.css'; a { src: url(gone.woff2) }", encoding="utf-8")
    assert problems(tmp_path) == [
        "a.css: loads https://example.org/b.css from elsewhere",
        "a.css: loads gone.woff2, which is not there",
    ]


def test_formulas_come_with_mathml_for_screen_readers() -> None:
    html = render(r"\frac{1}{2}", display=True)
    assert "<mfrac>" in html
    assert 'aria-hidden="true"' in html
    with pytest.raises(TexError, match=r"Undefined control sequence: \\nope"):
        render(r"\nope", display=False)


@pytest.mark.parametrize(
    ("tex", "line"),
    [
        (r"\frac{1}{2}", "1/2"),
        (r"Q K^\top / \sqrt{d}", "QK^⊤/√d"),
        (r"\frac{w-1}{b}", "(w−1)/b"),
        (r"\sum_{i=1}^{N} 2N^2", "∑_(i=1)^N2N^2"),
        (r"\nope", r"\nope"),
    ],
)
def test_a_formula_is_quoted_on_one_line(tex: str, line: str) -> None:
    assert on_one_line(tex) == line


def test_navigation_has_every_page_once_and_takes_in_what_it_does_not_know() -> None:
    pages = ["index", "labs/lab01_x", "02_two", "01_one", "glossary", "surprise", "10_ten"]
    assert navigation(pages) == {
        "Chapters": ["01_one", "02_two", "10_ten"],
        "Labs": ["labs/lab01_x"],
        "Look up": ["glossary"],
        "More": ["surprise"],
    }


class TestCourseMap:
    """docs/course_map.md is derived from the manifests."""

    def test_the_table_is_fresh(self) -> None:
        text = (ROOT / PAGE).read_text(encoding="utf-8")
        assert text == with_table(text, find_labs()), "docs/course_map.md is stale; run: uv run lab build"

    def test_it_tells_what_the_manifests_say(self) -> None:
        lab = find_labs()[1]
        row = table([lab]).splitlines()[2]
        for part in (lab.title, lab.summary, f"../labs/{lab.folder.name}/README.md", "Lab 01", f"| {lab.hours:g} |"):
            assert part in row
        assert f"{lab.points:g} + {sum(question.points for question in lab.questions):g}" in row

    def test_a_stale_table_is_written_again(self, tmp_path: Path) -> None:
        page = tmp_path / PAGE
        page.parent.mkdir()
        page.write_text(f"# Map\n\n{BEGIN}\n| old |\n{END}\n\nAfter.\n", encoding="utf-8")
        labs = find_labs()
        assert refresh_page(tmp_path, labs) == [page]
        assert page.read_text(encoding="utf-8") == f"# Map\n\n{BEGIN}\n{table(labs)}{END}\n\nAfter.\n"
        assert refresh_page(tmp_path, labs) == []

    def test_a_page_without_its_marks_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="expected one region"):
            with_table("# Map\n", find_labs())
