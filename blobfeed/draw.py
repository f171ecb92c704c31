"""A net as a drawing: SVG, in layers of boxes from top to bottom. No library did it without a program of the system."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from google.protobuf import text_format

from .trainer.prototxt.phases import State, included_layers
from .trainer.prototxt.prototxt import Document
from .trainer.prototxt.schema import NetParameter, own_fields

_WIDTH, _LINE, _ACROSS, _DOWN = 150, 14, 24, 34
"""In pixels: the width of a box, the height of a line in it, the gaps between boxes and between rows."""
_COLOURS = {"Data": "#dbe9d5", "Loss": "#f6d9d5", "Convolution": "#f9e3c4", "Deconvolution": "#f9e3c4"}
_WEIGHTS = ("bold", "normal")
_SHOWN = ("num_output", "kernel_size", "stride", "pad", "group", "pool", "operation", "dropout_ratio", "local_size")


@dataclass(eq=False)
class _Node:
    """A layer, or without lines a place where an arrow passes a row."""

    lines: list[str] = field(default_factory=list)
    kind: str = ""
    details: str = ""
    row: int = 0
    above: list[_Node] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    bottom: float = 0.0

    @property
    def width(self) -> int:
        return _WIDTH if self.lines else 0

    @property
    def height(self) -> int:
        return _LINE * len(self.lines) + 10 if self.lines else 0


def draw(document: Document[NetParameter], state: State) -> str:
    """An SVG file of the layers that `state` includes; a pointer on a box shows the whole layer."""
    nodes, arrows = _graph(document, state)
    rows: list[list[_Node]] = [[] for _ in range(1 + max(node.row for node in nodes))]
    for node in nodes:
        rows[node.row].append(node)
    y = 10.0
    for row in rows:
        _place(row)
        height = max(node.height for node in row)
        for node in row:
            node.y, node.bottom = y, y + (node.height or height)
        y += height + _DOWN
    left = min(node.x - node.width / 2 for node in nodes) - 10
    width = max(node.x + node.width / 2 for node in nodes) + 10 - left
    shapes = [_arrow(path, name) for path, name in arrows] + [_box(node) for node in nodes if node.lines]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} 0 {width:.0f} {y:.0f}" width="{width:.0f}" '
        f'height="{y:.0f}" font-family="sans-serif" font-size="11" text-anchor="middle">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _graph(document: Document[NetParameter], state: State) -> tuple[list[_Node], list[tuple[list[_Node], str]]]:
    """The nodes, and each arrow as the nodes on its way and the name of its blob."""
    nodes: list[_Node] = []
    arrows: list[tuple[list[_Node], str]] = []
    makers: dict[str, _Node] = {}
    for position in included_layers(document, state):
        layer = document.message.layer[position]
        node = _Node([layer.name, *_text(layer)], layer.type, text_format.MessageToString(layer))
        found = [(makers[name], name) for name in layer.bottom if name in makers]
        node.row = 1 + max((maker.row for maker, _ in found), default=-1)
        for maker, name in found:
            path = [maker]
            for row in range(maker.row + 1, node.row):
                path.append(_Node(row=row, above=path[-1:]))
            nodes += path[1:]
            node.above.append(path[-1])
            arrows.append(([*path, node], name))
        nodes.append(node)
        makers.update(dict.fromkeys(layer.top, node))
    return nodes, arrows


def _text(layer: Any) -> list[str]:
    options = getattr(layer, own_fields().get(layer.type, ""), None)
    shown = []
    for each, value in options.ListFields() if options is not None else ():
        if each.name in _SHOWN:
            enum = each.enum_type and each.enum_type.values_by_number[value].name
            shown.append(f"{each.name} {enum or (' '.join(map(str, value)) if hasattr(value, '__len__') else value)}")
    return [layer.type, *(", ".join(shown[nth : nth + 2]) for nth in range(0, len(shown), 2))]


def _place(row: list[_Node]) -> None:
    """Each node below the middle of those above it, as far as its neighbours leave room."""
    wishes = {node: sum(each.x for each in node.above) / len(node.above) if node.above else 0.0 for node in row}
    row.sort(key=wishes.__getitem__)
    for before, node in zip([None, *row], row, strict=False):
        free = wishes[node] if before is None else before.x + (before.width + node.width) / 2 + _ACROSS
        node.x = max(wishes[node], free)
    shift = sum(node.x - wishes[node] for node in row) / len(row)
    for node in row:
        node.x -= shift


def _box(node: _Node) -> str:
    ends = ("Data", "Loss", "Input")
    colour = _COLOURS.get(next((end for end in ends if node.kind.endswith(end)), node.kind).replace("Input", "Data"))
    lines = "".join(
        f'<text x="{node.x:.0f}" y="{node.y + _LINE * (nth + 1):.0f}" font-weight="{_WEIGHTS[nth > 0]}">'
        f"{escape(line)}</text>"
        for nth, line in enumerate(node.lines)
    )
    return (
        f'<g><title>{escape(node.details)}</title><rect x="{node.x - _WIDTH / 2:.0f}" y="{node.y:.0f}" rx="5" '
        f'width="{_WIDTH}" height="{node.height}" fill="{colour or "#e4e8f2"}" stroke="#555"/>{lines}</g>'
    )


def _arrow(path: list[_Node], name: str) -> str:
    curves = [f"M{path[0].x:.0f}"]
    for before, node in itertools.pairwise(path):
        half = (before.bottom + node.y) / 2
        curves.append(
            f"{before.bottom:.0f}C{before.x:.0f} {half:.0f} {node.x:.0f} {half:.0f} {node.x:.0f} {node.y:.0f}V"
        )
    curves[-1] = curves[-1].removesuffix("V")
    line = f'd="{" ".join(curves)}" fill="none" stroke="#555" marker-end="url(#tip)"'
    return f"<path {line}><title>{escape(name)}</title></path>"
