"""The labels of files: from their folders, from their names by a pattern, or from a table."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...workers.api import AnyArray, nearest, shown
from ...workers.base import ParameterError, SourceError, in_folder, read_whole
from ..files import WholeObjects, is_table
from ..files.urls import is_url
from ..images import finite_numbers, is_number, label_values

FOLDER = "folder"


def labels_of(
    paths: Sequence[str], names: Sequence[str], labels: str, classes: Sequence[str], base_dir: Path, what: str
) -> AnyArray:
    """Return a label for each of `paths`, shape (files,).

    `names`: the paths below the folder that all have in common. `labels`, `classes`: as in FilesOptions. `what` begins
    messages. Raises ParameterError, SourceError for a file without a label.
    """
    what = f"{what}: parameter 'labels' is {labels!r}"
    if labels == FOLDER:
        texts = [path.rpartition("/")[0].rpartition("/")[2] for path in paths]
    elif is_table(Path(labels)):
        texts = _from_table(paths, labels, base_dir, what)
    else:
        texts = _from_names(names, labels, what)
    if classes:
        return _numbered(texts, classes, paths, what)
    if labels == FOLDER or not is_number(texts[0].encode()):
        return _numbered(texts, sorted(set(texts)), paths, what)  # as torchvision numbers them
    words = [text.encode() for text in texts]
    if (values := finite_numbers(words)) is None:
        wrong = next(index for index, word in enumerate(words) if not is_number(word))
        raise SourceError(
            f"{what}: the label of {paths[wrong]} is {texts[wrong]!r}, and that of {paths[0]} the number {texts[0]}: "
            "expected a number for each file; names of classes that look like numbers are listed in 'classes'"
        )
    advice = "write all labels as whole numbers below 2**63, or none above 2**24"
    return label_values(values[:, np.newaxis], "auto", lambda index: f"{what}: {paths[index]}", advice)


def _numbered(texts: Sequence[str], classes: Sequence[str], paths: Sequence[str], what: str) -> AnyArray:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = next((index for index, text in enumerate(texts) if text not in numbers), None)
    if unknown is not None:
        raise SourceError(
            f"{what}: the class of {paths[unknown]} is {texts[unknown]!r}, which is not among 'classes'"
            f"{nearest(texts[unknown], classes)}: {shown(list(classes))}"
        )
    return np.array([numbers[text] for text in texts], np.int64)


def _from_names(names: Sequence[str], pattern: str, what: str) -> list[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ParameterError(f"{what}, which is no regular expression: {error}") from None
    if compiled.groups != 1:
        raise ParameterError(
            f"{what}: expected 'folder', a table such as labels.csv, or a regular "
            r"expression with one group, which is the label, such as 'class(\d+)_'"
        )
    texts = []
    for name in names:
        found = compiled.search(name)
        if not found or found[1] is None:
            raise SourceError(f"{what}: the label of {name!r} is not found: nothing in there matches")
        texts.append(found[1])
    return texts


def _from_table(paths: Sequence[str], table: str, base_dir: Path, what: str) -> list[str]:
    """Return the labels of `paths` by a table of lines `path,label`; lines of other files are left out."""
    where = table if is_url(table) else str(in_folder(base_dir, table))
    try:
        content = WholeObjects().content(where) if is_url(where) else read_whole(os.fsencode(where))
        rows = list(
            csv.reader(io.StringIO(content.decode("utf-8-sig")), "excel-tab" if where.endswith("tsv") else "excel")
        )
    except OSError as error:
        raise SourceError(f"{what}: the table {where} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{what}: the table {where} is no text of 'path,label' lines in UTF-8: {error}") from error
    listed: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        if len(row) != 2:
            raise SourceError(f"{what}: {where} line {number}: expected 'path,label', got {shown(','.join(row))}")
        path, label = row[0].strip(), row[1].strip()
        if listed.setdefault(path, label) != label:
            raise SourceError(f"{what}: {where} line {number}: {path!r} has the labels {listed[path]!r} and {label!r}")
    folder = os.path.dirname(where)  # noqa: PTH120 - a Path would change a URL
    by_path = {os.path.normpath(os.path.join(folder, path)): label for path, label in listed.items()}  # noqa: PTH118
    texts, by_name = [], dict[str, str]()
    for path in paths:
        name = path.rpartition("/")[2]
        found = by_path.get(os.path.normpath(path), listed.get(path))
        if found is None and (found := listed.get(name)) is not None and by_name.setdefault(name, path) != path:
            raise SourceError(
                f"{what}: {where} has {name!r}, and there are {by_name[name]} and {path}: write the paths from the "
                "table's folder on"
            )
        if found is None:
            first = next(iter(listed), "")
            raise SourceError(
                f"{what}: {where} has no line for {path}: expected 'path,label' for each file, the path from the "
                f"table's folder on, or the file's name; its first line is of {first!r}"
            )
        texts.append(found)
    return texts
