"""nbgrader's check of the cells' metadata, which is the same in every submission, done once for each that is new."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from nbgrader.nbgraderformat import MetadataValidator, ValidationError
from nbgrader.preprocessors import NbGraderPreprocessor


class CheckMetadata(NbGraderPreprocessor):
    """In the place of nbgrader's CheckCellMetadata, which checks its own schema anew for every cell."""

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The notebook as it is; raises nbgrader's `ValidationError` where nbgrader's own step does."""
        try:
            Remembering().validate_nb(nb)
        except ValidationError as error:
            self.log.error("%s", error)
            raise ValidationError("Notebook failed to validate; the nbgrader metadata may be corrupted.") from error
        return nb, resources


class Remembering(MetadataValidator):
    """nbgrader's validator, which does not look again at what it has found right."""

    _right: ClassVar[set[str]] = set()

    def validate_cell(self, cell: Any) -> None:
        """Raises `ValidationError`; what decides it is a cell's kind and its metadata of nbgrader's."""
        what = json.dumps([cell.cell_type, cell.metadata.get("nbgrader")], sort_keys=True)
        if what not in self._right:
            super().validate_cell(cell)
            self._right.add(what)
