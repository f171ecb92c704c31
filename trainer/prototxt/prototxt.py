"""A prototxt as a typed message with its file and its lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.protobuf import text_format

from ...workers.api import nearest
from . import schema
from .errors import PrototxtError
from .locations import Location, read_locations
from .schema import Message, NetParameter, SolverParameter, message_class, message_classes
from .upgrade import UpgradeError, upgrade_net, upgrade_solver

_Declared = TypeVar("_Declared", bound=Message)


@dataclass(frozen=True)
class Document(Generic[_Declared]):
    """A prototxt file: its message, and the lines of its fields."""

    path: Path
    message: _Declared
    root: Location

    def error(self, text: str, *where: str | int) -> PrototxtError:
        """An error that begins with the file, line and column of the field at the path `where`."""
        location = self.root.follow(*where)
        return PrototxtError(f"{self.where(*where)}: {text}", line=location.line, column=location.column)

    def beside(self, name: str) -> Path:
        """The file `name` in this file's own folder, so that it is found from anywhere, or in the working directory."""
        own = self.path.parent / name
        return own if own.exists() or not Path(name).exists() else Path(name)

    def where(self, *where: str | int) -> str:
        """`file:line:column` of the field at the path `where`, or only the file."""
        location = self.root.follow(*where)
        return f"{self.path}:{location.line}:{location.column}" if location.line else str(self.path)


def read_prototxt(path: Path, declared: type[_Declared], *, named_by: str = "") -> Document[_Declared]:
    """Parse the file at `path` as `declared`; raises PrototxtError with line and column.

    `named_by`: where the path was given, for the error about a missing file.
    """
    text = _read_text(path, named_by)
    message: Any = message_class(declared)()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise _explain(path, error) from None
    return document(path, message, read_locations(text))


def document(path: Path, message: _Declared, root: Location) -> Document[_Declared]:
    """A document of `message`, upgraded if it is a net in an older format; raises PrototxtError."""
    made = Document(path, message, root)
    try:
        if hasattr(message, "layers"):
            upgrade_net(message, root)
        elif hasattr(message, "solver_type"):
            upgrade_solver(message)
    except UpgradeError as error:
        raise made.error(str(error), *error.where) from None
    return made


def read_net_or_solver(path: Path) -> Any:
    """Parse the text as a solver, then as a net, and return the message.

    If both fail, raise the error that occurred later in the file.
    """
    errors = []
    for declared in (SolverParameter, NetParameter):
        try:
            return read_prototxt(path, declared).message
        except PrototxtError as error:
            errors.append(error)
    raise max(errors, key=lambda error: (error.line, error.column))


def _read_text(path: Path, named_by: str) -> str:
    source = f" (named at {named_by})" if named_by else ""
    try:
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
    except FileNotFoundError:
        raise PrototxtError(f"{path}: no such file{source}") from None
    except UnicodeDecodeError as error:
        raise PrototxtError(f"{path}: is not a prototxt (UTF-8 text){source}: {error}") from None
    except OSError as error:
        raise PrototxtError(f"{path}: cannot be read{source}: {error.strerror}") from None


def _explain(path: Path, error: text_format.ParseError) -> PrototxtError:
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    # The library's message repeats line and column, and mostly the whole line of text.
    text = re.sub(r"^[\d:]+ : ('.*': )?", "", str(error)).strip()
    unknown = re.search(r'type "(?:\w+\.)*(\w+)" has no field named "(\w+)"', text)
    if unknown:
        message, name = unknown.groups()
        known = [field.name for field in message_classes()[message].DESCRIPTOR.fields]
        text = f"{message} has no field {name!r} that this trainer supports"
        if message == "LayerParameter" and (stem := name.removesuffix("_param")) != name:
            # With the ending that all of them have, 'norm_param' is near to 'transform_param'.
            near = nearest(stem, [field.removesuffix("_param") for field in known], 0.8)
            text += f"{near}; a layer type that Caffe 1.0 does not have can be written as a Python layer"
        else:
            near = nearest(name, known)
            text += near
            if message == "PythonParameter" and not near:
                text += "; a double quote within param_str ends it: write ' or \\\" there"
    elif unknown := re.search(r'num type "(?:\w+\.)*(\w+)" has no value named (\w+)', text):
        kind, name = unknown.groups()
        known = [value.name for value in getattr(schema, kind)]
        text = f"{kind} has no value {name} that this trainer supports{nearest(name, known)}"
    return PrototxtError(f"{path}:{line}:{column}: {text}", line=line, column=column)
