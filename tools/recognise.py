"""From paths to a source that reads them: what `blobfeed inspect` and `pack` are given."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from ..layers.param_str import parse_param_str
from ..sources.files import expand_paths, is_table, natural_key, table_advice
from ..sources.files.urls import is_url
from ..sources.images import PICTURES, parse_image_list
from ..sources.kinds import KINDS, kind_of, kind_of_name
from ..workers.api import shown
from ..workers.base import ParameterError, SourceError
from .found import MANY_SAMPLES, WORDS_FOR, Found, files, hdf5, npz, records, sized, zarr
from .written import writing

_MOST_CLASSES = 20
_IMAGES = (*PICTURES, "gif", "avif", "jp2", "jfif", "jpe")


def source_of(paths: Sequence[str], tops: Sequence[str] | None = None, image_list: Path | None = None) -> Found:
    """Return what `paths` hold: files, globs, a folder, or one declaration such as `{npy: {data: x.npy}}`.

    A declaration may have `source:` in front, as `inspect` prints it.
    `image_list`: where to write the list of a folder of images. Raises SourceError for what cannot be read, or needs
    something first; it says what.
    """
    if len(paths) == 1 and re.match(r"\s*(\{|source\s*:)", paths[0]):
        found = _declaration(paths[0])
    else:
        files = [file for path in paths for file in ([path] if is_url(path) else expand_paths(path, Path(), "SOURCE"))]
        found = _recognised([Path(file) for file in files], image_list)
    return replace(found, tops=tuple(tops) if tops else found.tops)


def _declaration(text: str) -> Found:
    declared = parse_param_str(text, "the declaration")
    if list(declared) == ["source"] and isinstance(declared["source"], dict):
        declared = declared["source"]
    if len(declared) != 1:
        raise ParameterError(f"{text!r}: expected a mapping with one key, the kind, such as {{npy: {{data: x.npy}}}}")
    ((kind, options),) = declared.items()
    is_path = isinstance(options, str) and not (kind in KINDS and KINDS[kind].example)  # there keys are tops
    return Found({kind: {"path": options} if is_path else options})


def _recognised(paths: Sequence[Path], image_list: Path | None) -> Found:
    if missing := [path for path in paths if not path.exists()]:
        raise SourceError(
            f"there is no {str(missing[0])!r}; name files or folders, or a declaration such as {{npy: …}}"
        )
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise SourceError(
            f"{', '.join(map(str, paths))} are of different kinds ({', '.join(sorted(kinds))}): name those of one kind"
        )
    kind = kinds.pop()
    if (kind == "npz" and len(paths) > 1) or (kind == "npy" and _differ_in_numbers(paths)):
        return files(_glob_of(paths))
    if kind in ("npy", "idx"):
        return Found({kind: _tops_by_file(paths)})
    if kind == "hdf5":
        return hdf5(paths)
    if kind in ("tar", "parquet"):
        return records(kind, paths)
    if len(paths) > 1 and kind in ("text", "folder"):
        raise SourceError(f"{len(paths)} {kind}s were named, such as {str(paths[0])!r}: name one of them")
    if len(paths) > 1:
        raise SourceError(f"{len(paths)} paths of kind {kind}: name one, or declare {{concat: [{{{kind}: …}}, …]}}")
    (path,) = paths
    if kind == "folder":
        return _folder(path, image_list)
    if kind == "lmdb":  # the source says of a LevelDB how to make an LMDB of it
        return sized(kind, {"path": str(path)})
    if kind == "npz":
        return npz(path)
    if kind == "zarr":
        return zarr(path)
    return _text(path)


def _kind(path: Path) -> str:
    """The kind of what lies at `path`, "folder" or "text" for what has to be looked into."""
    if (kind := kind_of(path)) or path.is_dir():
        return kind or "folder"
    with path.open("rb") as file:
        head = file.read(512)
    if not head.strip():
        raise SourceError(f"{str(path)!r} is empty")
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):  # these begin UTF-16
        known = ", ".join(kind for kind, entry in KINDS.items() if entry.names or entry.signatures)
        raise SourceError(f"{str(path)!r} is none of {known}, or a text that lists files")
    return "text"


def _differ_in_numbers(paths: Sequence[Path]) -> bool:
    """Return true for as many files as no set of tops has, whose names differ in their numbers alone."""
    return len(paths) >= MANY_SAMPLES and len({re.sub(r"\d+", "#", path.name) for path in paths}) == 1


def _glob_of(paths: Sequence[Path]) -> str | list[str]:
    """Return a glob that finds these files and no others, or else their paths."""
    named, root = set(map(str, paths)), os.path.commonpath([path.parent for path in paths])
    endings = sorted({path.suffix for path in paths})
    ending = endings[0] if len(endings) == 1 else f"{{{','.join(endings)}}}"
    begin = os.path.commonprefix([path.name for path in paths])  # noqa: RUF071 - names are text
    begin = glob.escape(begin.rstrip("0123456789"))
    for between in ("*", "*/*", "**/*", f"{begin}*", f"*/{begin}*", f"**/{begin}*"):
        pattern = str(Path(glob.escape(root), between + ending))
        with suppress(SourceError):  # of several endings one may have no files there
            if set(expand_paths(pattern, Path(), "SOURCE")) == named:
                return pattern
    return list(map(str, paths))


def _tops_by_file(paths: Sequence[Path]) -> dict[str, str]:
    """A top for each file: `data` and `label` where the names say so, else the file's own name."""
    if len(paths) == 1:
        return {"data": str(paths[0])}
    tops: dict[str, str] = {}
    for path in paths:
        words = re.sub(r"[-.]", "_", path.name).lower()
        name = path.name if kind_of_name(path.name) == "idx" else re.split(r"[-.]", path.name)[0]
        top = next((top for top, pattern in WORDS_FOR.items() if re.search(pattern, words)), name)
        named = top if top not in tops else path.stem
        if named in tops:
            raise SourceError(
                f"{tops[named]} and {path} would both be the top {named!r}: rename one, or declare the tops, such as "
                f"'{{npy: {{{named}: [FILE, FILE]}}}}' for .npy files to be put end to end"
            )
        tops[named] = str(path)
    return dict(sorted(tops.items(), key=lambda top: top[0] != "data"))


def _text(path: Path) -> Found:
    if path.suffix == ".prototxt":
        raise SourceError(
            f"{path} is a definition of a net or a solver, and no data: name the data that it reads, or draw what a "
            f"net sees by `blobfeed inspect {path} --sheet sheet.png`"
        )
    first = os.fsdecode(parse_image_list(path.read_bytes(), str(path))[0][0])
    for folder, name in itertools.product((Path(), path.parent), (first, first.rsplit(None, 1)[0])):
        if not os.path.isfile(folder / name):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            continue
        if kind_of(folder / name) == "hdf5":
            found = hdf5([folder / name])
            return replace(found, declared={found.kind: {**found.declared[found.kind], "path": str(path)}})
        return sized("image_list", {"path": str(path)} | ({"root_folder": str(folder)} if folder != Path() else {}))
    if is_table(path):
        raise SourceError(table_advice(path))
    raise SourceError(
        f"{path}: its first path, {shown(first)}, is no file here or beside the list: say where the files are, by "
        f"'{{image_list: {{path: {path}, root_folder: FOLDER, shorter_side: 256}}}}'"
    )


def _folder(path: Path, image_list: Path | None) -> Found:
    files = sorted(_files(path), key=lambda file: natural_key(str(file)))
    if not files:
        raise SourceError(f"the folder {path} holds no files")
    images = [file for file in files if _is_image(file)]
    rest = [file for file in files if not _is_image(file)]
    others = Counter(file.suffix or file.name for file in rest)
    data = max((count for end, count in others.items() if kind_of_name(end.lower())), default=0)
    # Each may have a text and more beside it; or it may itself lie beside data, to show them.
    if images and (image_list is not None or (len(images) > data and len(images) >= max(others.values(), default=0))):
        found = _list_images(path, images, image_list) if image_list else _image_files(path, images)
        named = ", ".join(f"{end} ({count:,})" for end, count in sorted(others.items()))
        remark = shorten(f"ignored by the ends of their names: {named}", 200, placeholder=" …")
        return replace(found, remarks=(*found.remarks, remark)) if others else found
    counts = Counter(file.suffix for file in rest)
    suffix = max(counts, key=lambda end: (counts[end], kind_of_name(end.lower()) != ""))
    chosen = [file for file in rest if file.suffix == suffix]
    if len(chosen) > 1 and not kind_of(chosen[0]):
        held = ", ".join(f"{end} ({count:,})" for end, count in Counter(file.suffix for file in files).most_common())
        raise SourceError(
            f"the folder {path} holds {held}, and most of them are no data: name the files to read, such as "
            f"'{path}/*.npy'; for a decode hook of your own their bytes are '{{files: {{path: {path}/*{suffix}}}}}'"
        )
    return _recognised(chosen, image_list)


def _image_files(path: Path, images: Sequence[Path]) -> Found:
    """Images by their files, labelled by the folder of each class, as torchvision's ImageFolder and Keras take them."""
    options: dict[str, Any] = {"path": _glob_of(images)}
    classes = _classes(path, images)
    if not classes:
        return sized("files", options)
    is_flat = all(image.parent.parent == path for image in images)
    options["labels"] = "folder" if is_flat else f"(?:^|/)({'|'.join(map(re.escape, classes))})/"
    if len(classes) <= _MOST_CLASSES:
        options["classes"] = classes
    found = sized("files", options)
    said = "" if len(classes) <= _MOST_CLASSES else "; where a folder lacks one, `classes` has to list all"
    return replace(found, remarks=(f"{len(images):,} images, classes {_shown(classes)}{said}", *found.remarks))


def _classes(path: Path, images: Sequence[Path]) -> list[str]:
    """Return the names of the folders of classes, sorted: 10 before 2, as torchvision and Keras number them."""
    folders = {image.relative_to(path).parts[0] if image.parent != path else "" for image in images}
    classes = sorted(folders - {""})
    if classes and "" in folders:
        raise SourceError(f"{path} holds images beside the folders of classes ({_shown(classes)})")
    return classes


def _shown(classes: Sequence[str]) -> str:
    return shorten(", ".join(f"{number} {name}" for number, name in enumerate(classes)), 200, placeholder=" …")


def _list_images(path: Path, images: Sequence[Path], image_list: Path) -> Found:
    """Images in a folder for each class, as a list."""
    classes = _classes(path, images)
    folders = [image.relative_to(path).parts[0] if classes else "" for image in images]
    names = [_listed(image) for image in images]
    numbering = image_list.with_name("classes.txt")
    if image_list == numbering:
        raise SourceError(f"{image_list} is where the names of the classes go: name another file for the list")
    classes = _numbered(classes, numbering)
    numbers = {each: f" {number}" for number, each in enumerate(classes)}
    lines = [f"{name}{numbers.get(folder, '')}" for name, folder in zip(names, folders, strict=True)]
    text = os.fsencode("\n".join(lines) + "\n")
    if image_list.is_file() and image_list.read_bytes() != text:
        raise SourceError(f"{image_list} is there already, with other content: name another file, or remove it")
    if classes and not numbering.exists():
        with writing(numbering):
            numbering.write_bytes(os.fsencode("\n".join(classes) + "\n"))
    with writing(image_list):
        image_list.write_bytes(text)
    said = f"wrote {image_list}: {len(images):,} images" + (f", classes {_shown(classes)}" if classes else "")
    found = sized("image_list", {"path": str(image_list)})
    return replace(found, remarks=(said, *found.remarks))


def _numbered(classes: list[str], file: Path) -> list[str]:
    """The classes in the order of their numbers: those of `file`, a name on each line, if an earlier list wrote it.

    A folder of validation may lack a class, and must not number the others anew.
    """
    if not classes or not file.exists():
        return classes
    known = os.fsdecode(file.read_bytes()).splitlines()
    if unknown := [name for name in classes if name not in known]:
        raise SourceError(
            f"{file}, which an earlier list has written, has no class {unknown[0]!r}: write this list into another "
            f"folder, or remove {file.name} to number the classes anew"
        )
    return known


def _listed(image: Path) -> str:
    """Return the path for a line of a list."""
    name = str(image)
    if len(name.splitlines()) > 1:
        raise SourceError(f"{name!r} has a line break in its name, and a list has a line for each image: rename it")
    return name


def _is_image(file: Path) -> bool:
    return file.suffix.lower()[1:] in _IMAGES


def _files(folder: Path) -> Iterator[Path]:
    """All below `folder`, also behind symbolic links, as torchvision finds them; but nothing that is hidden.

    A link that leads nowhere is among them, so that it is missed by its name.
    """
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(root).resolve()
        folders[:] = [name for name in folders if name[0] != "." and not here.is_relative_to((here / name).resolve())]
        seen = (Path(root, name) for name in names if name[0] != ".")
        yield from (file for file in seen if file.is_file() or file.is_symlink())
