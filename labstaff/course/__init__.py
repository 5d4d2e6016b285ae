"""The nbgrader course: release, collect, grade, record, export. No notebook is ever executed."""
