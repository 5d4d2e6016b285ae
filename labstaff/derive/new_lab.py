"""`lab new`: a lab that passes its own two-sided check before anything of it is written, to be filled from there.

Each task it makes adds its number to an array: something that a test can judge, a mistake can get wrong and another
right answer can do otherwise. What must be written in its place says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from labkit.labs.catalog import find_labs, solution_folder
from labkit.labs.manifest import MANIFEST_NAME, Lab, read_manifest
from labstaff.derive.build import build

CHAPTERS = Path("docs", "README.md")
CHAPTER_ROW = re.compile(r"^\| \d+ \| \[.*\|\n", re.MULTILINE)


class NewLabError(ValueError):
    """Why no lab was made; nothing was written."""


def new_lab(root: Path, number: str, name: str, tasks: list[str]) -> list[Path]:
    """Write lab `number`, `labNN_name`, with `tasks` under `root`; returns the files, those derived from them too.

    Raises:
        NewLabError: the number or a name is taken, or cannot be one.
    """
    lab_name = f"lab{int(number):02d}_{name}" if number.isdigit() else ""
    _refuse(root, lab_name, name, tasks)
    folder, solutions = root / "labs" / lab_name, root / "solutions" / lab_name
    title = name.replace("_", " ").capitalize()
    chapter = root / "docs" / f"{int(number):02d}_{name}.md"
    written = []
    for path, text in [
        (folder / MANIFEST_NAME, _manifest(title, name, chapter.name, tasks)),
        (folder / "README.md", _handout(title, number, name, chapter.name, tasks)),
        (folder / "tests" / f"test_{name}.py", _suite(title, number, name, tasks)),
        (solutions / "src" / f"{name}.py", _solution(title, number, tasks)),
        (solutions / "report.py", _report(title, number)),
        *((solutions / "right" / f"{right}.py", text) for right, text in _right(tasks)),
        *((solutions / "mistakes" / f"{task}.toml", _mistake(i, task)) for i, task in enumerate(tasks, 1)),
        (chapter, f"# {title}\n\nThe question that this chapter answers.\n"),
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    lab = read_manifest(folder / MANIFEST_NAME)
    written += [*build(lab), _chapters_row(root, lab, chapter.name)]
    assert solution_folder(lab) == solutions
    return written


def _refuse(root: Path, lab_name: str, name: str, tasks: list[str]) -> None:
    if not re.fullmatch(r"lab\d\d_[a-z][a-z0-9_]*", lab_name):
        raise NewLabError(f"a lab has a number of two digits and a name like ring_attention, not {name!r}")
    for lab in find_labs(root):
        if lab.folder.name[:5] == lab_name[:5] or lab.module == name:
            raise NewLabError(f"{lab.folder.name} is there already")
    bad = [task for task in tasks if not task.isidentifier()]
    if bad or not tasks or len(set(tasks)) < len(tasks):
        raise NewLabError(f"tasks are Python names, each once: {', '.join(bad or tasks) or 'there is none'}")


def _class_name(task: str) -> str:
    return "Test" + "".join(part[:1].upper() + part[1:] for part in task.split("_"))


def _manifest(title: str, name: str, chapter: str, tasks: list[str]) -> str:
    head = f'''title = "{title}"
summary = "What a student does here, in a sentence."
module = "{name}"
hours = 1
draft = true # not released, and its mistakes are not counted yet: take this line away when it is done
read = ["docs/{chapter}"]
'''
    tables = [
        f'''
[[tasks]]
name = "{task}"
signature = "{task}(x)"
tests = "{_class_name(task)}"
points = 10
hints = ["A nudge, before nearly the answer."]
'''
        for task in tasks
    ]
    questions = [
        f'\n[[questions]]\nid = "question_{i}"\ntitle = "A question of the report"\npoints = 2\n' for i in range(1, 4)
    ]
    return head + "".join(tables + questions)


def _handout(title: str, number: str, name: str, chapter: str, tasks: list[str]) -> str:
    points = 10 * len(tasks)
    sections = [
        f"### `{task}(x)`\n\n`x` is `(N,)`; the result is `x + {i}`, of its shape and dtype.\n"
        for i, task in enumerate(tasks, 1)
    ]
    return "\n".join(
        [
            f"# Lab {int(number):02d}: {title}\n",
            "**Objective.** What is measured, built and understood here.\n",
            "| | |\n|---|---|",
            f"| Module | `src/{name}.py`, NumPy only |",
            f"| Read first | [`docs/{chapter}`](../../docs/{chapter}) |",
            "| Time | about 1 hour |",
            f"| Points | {points} for the tasks, 6 for the report |\n",
            "## How to run\n",
            f"```\nuv run lab check {int(number):02d}\nuv run lab hint {int(number):02d}\n```\n",
            "**Imports.** NumPy and ordinary modules of the standard library are all you need.\n",
            "**Time.** A test may take 5 s of CPU time, and 60 s by the clock.\n",
            "## What you build\n",
            *sections,
        ]
    )


def _suite(title: str, number: str, name: str, tasks: list[str]) -> str:
    classes = [
        f"""

class {_class_name(task)}:
    def test_values(self, rng):
        x = rng.standard_normal(63)
        assert_close("the result", {task}(x), x + {i}, plain=x + {i}, suspects={{"nothing is added": x}})
"""
        for i, task in enumerate(tasks, 1)
    ]
    head = f'"""Lab {int(number):02d}\'s suite: {title.lower()}."""\n\n'
    imports = f"from {name} import {', '.join(sorted(tasks))}\n\nfrom labkit.testing.compare import assert_close\n"
    return head + imports + "".join(classes)


def _solution(title: str, number: str, tasks: list[str]) -> str:
    functions = [
        f'''

def {task}(x: np.ndarray) -> np.ndarray:
    """Each element of x plus {i}.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [{i}.5].
    """
    ### BEGIN SOLUTION
    return x + {i}
    ### END SOLUTION
'''
        for i, task in enumerate(tasks, 1)
    ]
    return f'"""Lab {int(number):02d}: {title}."""\n\nimport numpy as np\n' + "".join(functions)


def _right(tasks: list[str]) -> Iterator[tuple[str, str]]:
    forms = {"the_other_way_round": "return {i} + x", "by_subtraction": "return x - (-{i})"}
    for name, body in forms.items():
        functions = [f"\n\ndef {task}(x):\n    {body.format(i=i)}\n" for i, task in enumerate(tasks, 1)]
        yield name, f'"""Everything {name.replace("_", " ")}."""\n' + "".join(functions)


def _mistake(i: int, task: str) -> str:
    return f"""[[mistake]]
name = "{task.lower()}_adds_nothing"
what = "Nothing is added."
says = "nothing is added"
edit = '''
- return x + {i}
+ return x
'''
"""


def _report(title: str, number: str) -> str:
    cells = [
        f'# %% [markdown]\n"""\n# Lab {int(number):02d}: {title}\n\nThree answers. Say how you came to each.\n"""\n'
    ]
    for i in range(1, 4):
        cells.append(f"# %% [markdown]\n# ## {i}. A question\n#\n# What is asked.\n")
        marks = f'{{"grade": true, "grade_id": "question_{i}", "solution": true}}'
        cells.append(
            f"# %% [markdown] nbgrader={marks}\n# A model answer to question {i} of {title.lower()}.\n#\n"
            "# *Rubric (2): 1 for what; 1 for why.*\n"
        )
    return "\n".join(cells)


def _chapters_row(root: Path, lab: Lab, chapter: str) -> Path:
    """Add the chapter to the table of chapters, as its last row."""
    page = root / CHAPTERS
    text = page.read_text(encoding="utf-8")
    row = f"| {int(lab.number)} | [{lab.title}]({chapter}) | What is its question? | "
    row += f"[{lab.number}](../labs/{lab.folder.name}/README.md) |\n"
    end = max((found.end() for found in CHAPTER_ROW.finditer(text)), default=len(text))
    page.write_text(text[:end] + row + text[end:], encoding="utf-8")
    return page
