"""Reading mistakes: edits that fit one place, replacements with what they use, errors that name their place."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.labs.catalog import find_lab, solution_file
from labkit.labs.manifest import Lab
from labstaff.authoring.algorithms import ReplaceError, replaced
from labstaff.authoring.edits import EditError, edited
from labstaff.authoring.mistakes import (
    MistakeError,
    Record,
    UnknownMistake,
    find_mistake,
    mistakes_of,
    read_records,
    write_records,
)
from labstaff.authoring.show import diff_lines, message
from labstaff.site import build_site
from labstaff.site.mistakes import OVERVIEW, mistake_pages

PROGRAM = """\
import math


def area(r):
    scale = math.pi
    if r < 0:
        raise ValueError(r)
    return scale * r**2


def volume(r):
    scale = math.pi
    return 4 / 3 * scale * r**3
"""
LAB = find_lab("01")
TASK = LAB.tasks[0]
ENTRY = """\
[[mistake]]
name = "a_mistake"
what = "It is wrong."
edit = '''
- return weights @ V, weights
+ return weights, weights @ V
'''
"""


class TestEdits:
    """`edited`: removed, added and context lines."""

    def test_indentation_common_to_a_place_is_left_out(self):
        changed = edited(PROGRAM, "- if r < 0:\n-     raise ValueError(r)\n+ if r < 1:\n+     return 0\n")
        assert changed == PROGRAM.replace(
            "    if r < 0:\n        raise ValueError(r)", "    if r < 1:\n        return 0"
        )

    def test_lines_that_stay_say_which_place_is_meant(self):
        changed = edited(PROGRAM, "'''\n  scale = math.pi\n- return 4 / 3 * scale * r**3\n+ return scale\n"[4:])
        assert changed == PROGRAM.replace("return 4 / 3 * scale * r**3", "return scale")

    def test_several_places_are_found_in_the_program_as_it_was(self):
        edit = "- return scale * r**2\n+ return 4 / 3 * scale * r**3\n@@\n- return 4 / 3 * scale * r**3\n+ return 0\n"
        assert edited(PROGRAM, edit).count("return 4 / 3 * scale * r**3") == 1

    def test_an_empty_line_can_come_and_stay(self):
        edit = "  import math\n+\n+ TAU = 2 * math.pi\n\n\n  def area(r):\n"
        assert edited(PROGRAM, edit) == PROGRAM.replace("import math\n", "import math\n\nTAU = 2 * math.pi\n")

    @pytest.mark.parametrize(
        ("edit", "says"),
        [
            (
                "- scale = math.pi\n+ scale = 3",
                "place 1, which begins `scale = math.pi`, is found 2 times, first in lines",
            ),
            (
                "- return scale * r**2\n@@\n- scale = math.e\n",
                "place 2, which begins `scale = math.e`, is found nowhere",
            ),
            ("- return scale\n", "is found nowhere"),
            ("- r**2\n", "is found nowhere"),
            ("  import math\n", "place 1: it changes nothing"),
            ("+ import os\n", "place 1: it changes nothing, or has no context"),
            ("return scale\n", "a line must begin with `- `, `+ ` or two spaces, found 'return scale'"),
            ("-return scale * r**2\n", "a line must begin with"),
            ("- if r < 0:\n@@\n  if r < 0:\n-     raise ValueError(r)\n", "two places overlap at line 6"),
        ],
    )
    def test_what_does_not_fit_is_told(self, edit, says):
        with pytest.raises(EditError, match=re.escape(says)):
            edited(PROGRAM, edit)


class TestReplacing:
    """`replaced`: one function instead of another."""

    ALGORITHMS = """\
import math
import random

N = 1000


def unused():
    return random.random()


def _inside(r):
    return sum(random.random() < r for _ in range(N))


def area_by_chance(r):
    "area_by_chance of r"
    return _inside(r) if r < 9 else area_by_chance(r / 2) * math.pi
"""

    def test_it_takes_the_name_and_brings_what_it_uses(self):
        changed = replaced(PROGRAM, self.ALGORITHMS, {"area": "area_by_chance"})
        head, tail = PROGRAM.split("def area")[0], PROGRAM[PROGRAM.index("def volume") :]
        body = self.ALGORITHMS[self.ALGORITHMS.index("def _inside") :].replace("area_by_chance(r", "area(r")
        assert changed == f"{head}import random\n\n\nN = 1000\n\n\n{body}\n\n{tail}"

    @pytest.mark.parametrize(
        ("replace", "says"),
        [
            ({"surface": "area_by_chance"}, "the solution defines no function or class surface"),
            ({"area": "area_by_magic"}, "algorithms.py defines no function or class area_by_magic"),
            ({"area": "N"}, "algorithms.py defines no function or class N"),
        ],
    )
    def test_names_that_are_not_there(self, replace, says):
        with pytest.raises(ReplaceError, match=says):
            replaced(PROGRAM, self.ALGORITHMS, replace)


def lab_with(folder: Path, text: str, task: str = TASK.name) -> Lab:
    """Lab 01 in a separate repository with `text` as its mistakes."""
    lab = msgspec.structs.replace(LAB, folder=folder / "labs" / LAB.folder.name)
    solution_file(lab).parent.mkdir(parents=True)
    solution_file(lab).write_bytes(solution_file(LAB).read_bytes())
    file = solution_file(lab).parent.parent / "mistakes" / f"{task}.toml"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    return lab


class TestReading:
    """`mistakes_of`: every error names the file, and the key or the mistake."""

    def test_a_mistake_is_read(self, tmp_path):
        (mistake,) = mistakes_of(lab_with(tmp_path, ENTRY))
        assert (mistake.name, mistake.what, mistake.task, mistake.says) == ("a_mistake", "It is wrong.", TASK.name, "")
        solution = solution_file(LAB).read_text(encoding="utf-8")
        assert mistake.source() == solution.replace("return weights @ V, weights", "return weights, weights @ V")

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('name = "a_mistake"\n', "", "missing required field `name` - at `$.mistake[0]`"),
            ('what = "It is wrong."\n', "", "missing required field `what` - at `$.mistake[0]`"),
            ("It is wrong.", "It is wrong", " - at `$.mistake[0].what`"),
            ("what =", "killed_by = 3\nwhat =", "unknown field `killed_by` - at `$.mistake[0]`"),
            ("edit = '''", "says = '''", "a_mistake: expected one of `edit` and `replace`"),
            ("[[mistake]]", "[[mistakes]]", "unknown field `mistakes`"),
            ("'''\n- ret", "''\n- ret", "line 5"),
        ],
    )
    def test_what_is_malformed_is_named(self, tmp_path, old, new, says):
        assert old in ENTRY
        lab = lab_with(tmp_path, ENTRY.replace(old, new))
        with pytest.raises(MistakeError, match=rf"mistakes/{TASK.name}\.toml: .*{re.escape(says)}"):
            mistakes_of(lab)

    def test_a_name_twice(self, tmp_path):
        with pytest.raises(MistakeError, match="a_mistake: the name is taken"):
            mistakes_of(lab_with(tmp_path, ENTRY + "\n" + ENTRY))

    def test_a_task_that_is_not_there(self, tmp_path):
        with pytest.raises(MistakeError, match=r"other\.toml: other is not one of the tasks standard_attention, "):
            mistakes_of(lab_with(tmp_path, ENTRY, task="other"))

    def test_an_edit_that_does_not_fit_any_more(self, tmp_path):
        (mistake,) = mistakes_of(lab_with(tmp_path, ENTRY.replace("- return weights @", "- return weight @")))
        with pytest.raises(MistakeError, match=rf"{TASK.name}\.toml: a_mistake: edit: place 1, .* is found nowhere"):
            mistake.source()

    def test_the_nearest_names(self):
        with pytest.raises(UnknownMistake, match="near it: attention_without_scale"):
            find_mistake(LAB, "attention_with_scale")


class TestCommand:
    """`lab mistake`."""

    def test_a_list(self):
        result = CliRunner().invoke(app, ["mistake", "01"])
        names = re.findall(r"^  (\w+)  ", result.stdout, re.MULTILINE)
        assert result.exit_code == 0
        assert sorted(names) == sorted(mistake.name for mistake in mistakes_of(LAB))

    def test_one_is_shown_with_what_a_student_reads(self):
        result = CliRunner().invoke(app, ["mistake", "01", "attention_results_swapped"])
        assert result.exit_code == 0
        assert "\n-    return weights @ V, weights\n+    return weights, weights @ V\n" in result.stdout
        assert "SOLUTION" not in result.stdout
        assert "lab01 · standard_attention · 0 of " in result.stdout
        assert "  ✗ test_" in result.stdout
        assert "next:" not in result.stdout

    def test_another_algorithm_is_shown_as_what_comes(self):
        shown = diff_lines(find_mistake(LAB, "measure_by_formula"))
        assert shown[0] == "@@ measure_attention_memory is replaced entirely"
        assert {line[:1] for line in shown[1:]} == {"+"}

    def test_an_unknown_name_is_one_line(self):
        result = CliRunner().invoke(app, ["mistake", "01", "plot_in_byte"])
        assert result.exit_code == 1
        said = str(result.exception)
        assert said.startswith("lab mistake: lab01 has no mistake 'plot_in_byte'; near it: plot_in_bytes, ")
        assert "\n" not in said

    def test_without_a_record_it_says_how_to_make_one(self, tmp_path):
        (mistake,) = mistakes_of(lab_with(tmp_path, ENTRY))
        assert message(mistake) == ["not run yet: uv run python -m labstaff.authoring.record 01 a_mistake"]


@pytest.mark.slow
class TestPages:
    """The instructors' pages of the site."""

    @pytest.fixture(scope="class")
    @staticmethod
    def site(tmp_path_factory):
        folder = tmp_path_factory.mktemp("pages")
        (folder / "course" / "docs").mkdir(parents=True)
        (folder / "course" / "docs" / "README.md").write_text("# Front\n", encoding="utf-8")
        build_site(folder / "course", folder / "out", mistake_pages([LAB]))
        return folder / "out"

    def test_every_mistake_is_listed_and_told(self, site):
        overview = (site / f"{OVERVIEW}.html").read_text(encoding="utf-8")
        told = (site / OVERVIEW / f"{LAB.folder.name}.html").read_text(encoding="utf-8")
        names = [mistake.name for mistake in mistakes_of(LAB)]
        n_failures = sum("\n".join(message(mistake)).count("✗ test_") for mistake in mistakes_of(LAB))
        linked = re.findall(rf'href="{OVERVIEW}/{LAB.folder.name}\.html#([\w-]+)"', overview)
        assert sorted(linked) == sorted(name.replace("_", "-") for name in names)
        assert set(linked) <= set(re.findall(r'id="([\w-]+)"', told))
        assert told.count("✗ test_") == n_failures >= len(names)
        assert f"{len(names)} mistakes" in overview

    def test_the_sidebar_leads_to_them(self, site):
        html = (site / "docs" / "README.html").read_text(encoding="utf-8")
        tree = html[html.index('class="sidebar-tree"') : html.index("</aside>")]
        caption, linked = tree.index("Instructors"), re.findall(r'href="([^"#]+)"', tree)
        assert "caption-text" not in tree[caption:], "they stand under the last caption, which is Instructors"
        assert linked == [f"../{OVERVIEW}.html", f"../{OVERVIEW}/{LAB.folder.name}.html"]


class TestRecords:
    """`record.json`: written besides what is there, and without mistakes that are gone."""

    RECORD = Record("TestStandardAttention::test_a", ["TestStandardAttention::test_a"], ["off by 3"])

    def test_what_is_written_is_read(self, tmp_path):
        lab = lab_with(tmp_path, ENTRY + "\n" + ENTRY.replace("a_mistake", "another"))
        write_records(lab, {"a_mistake": self.RECORD, "gone": self.RECORD})
        assert read_records(lab) == {"a_mistake": self.RECORD}
        first, second = mistakes_of(lab)
        assert (first.found_by, second.found_by) == (("TestStandardAttention::test_a",), ("TestStandardAttention",))
        write_records(lab, {"another": self.RECORD})
        assert read_records(lab) == {"a_mistake": self.RECORD, "another": self.RECORD}

    def test_what_is_malformed_is_named(self, tmp_path):
        lab = lab_with(tmp_path, ENTRY)
        file = mistakes_of(lab)[0].file.with_name("record.json")
        file.write_text('{"a_mistake": {"found_by": 3}}', encoding="utf-8")
        with pytest.raises(MistakeError, match=r"record\.json: .*found_by"):
            mistakes_of(lab)
