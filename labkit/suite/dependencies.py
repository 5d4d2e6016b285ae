"""Finds which tasks a student's code for one task runs, so that one mistake is not searched for in three places."""

from __future__ import annotations

import ast

from labkit.labs.manifest import Lab


def tasks_run_by(lab: Lab) -> dict[str, list[str]]:
    """For each task the earlier tasks that its code in the student's file names, directly or through helpers."""
    try:
        tree = ast.parse(lab.answer_file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named = {
        name: {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & defined.keys()
        for name, node in defined.items()
    }
    names = [task.name for task in lab.tasks]
    found: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        reached, left = {name}, [name]
        while left:
            new = named.get(left.pop(), set()) - reached
            reached |= new
            left += new
        found[name] = [earlier for earlier in names[:place] if earlier in reached]
    return found
