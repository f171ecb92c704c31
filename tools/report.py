"""`blobfeed report`: what a trace says of a run, as one page that needs no network."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ..workers.base.errors import BlobfeedError, ParameterError
from ..workers.base.extras import is_installed, need
from ..workers.base.specs import RaggedRows, allocate_rows
from .recognise import Found
from .run_facts import RunFacts, Series, read_losses, run_facts

_COLORS = ("#0d9488", "#e4572e", "#5b6ee1", "#c79a00", "#9b59b6", "#5f7d8c")
_THUMBNAIL = 96

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --paper: #fafaf8; --card: #fff; --faint: #6b7780; --line: #e3e3df; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #14181c; --card: #1d2329; --faint: #9aa5b1; --line: #333c45; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
.numbers, .cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); margin-top: 1rem; }
.card, .numbers div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem;
  min-width: 0; }
.numbers b { display: block; font-size: 1.4rem; } .faint, .numbers span { color: var(--faint); font-size: .85rem; }
.wide { grid-column: 1 / -1; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } td, th { text-align: left; padding: .25rem .5rem;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
td:last-child { white-space: normal; overflow-wrap: anywhere; } img { display: block; max-width: 4rem; }
.js-plotly-plot text { fill: var(--ink) !important; }
.js-plotly-plot .gridlayer path { stroke: var(--line) !important; }
"""


def write_report(paths: Sequence[Path], target: Path, found: Found | None) -> None:
    """Make the page of the trace and the logs among `paths`; `found`: the data, for pictures of slow samples.

    Raises ParameterError for what is neither a trace nor a log of losses, or if nothing is there to show.
    """
    need("plotly", "a report")
    traces: dict[str, RunFacts] = {}
    losses: dict[str, tuple[Series, Series]] = {}
    for path in paths:
        if (trace := _as_trace(path)) is not None:
            traces[path.name] = run_facts(trace)
        else:
            losses |= {f"{path} {net}".removesuffix(" train"): curve for net, curve in read_losses(path).items()}
    parts = [_about_trace(name, facts, found) for name, facts in traces.items()]
    if losses:
        parts.append(f'<div class="cards">{_card("Loss", _loss_chart(losses), wide=True)}</div>')
    if not parts:
        raise ParameterError("a report needs a trace (`trace: FILE`) or the log of a training")
    target.write_text(_page(parts), encoding="utf-8")


def _as_trace(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        raise ParameterError(f"there is no file {str(path)!r}; name a trace or the log of a training")
    with path.open("rb") as file:
        if b'"traceEvents"' not in file.read(1 << 16):
            return None
    try:
        trace: Mapping[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ParameterError(f"{path} is a trace that is cut short: {error}") from None
    return trace


def _page(parts: Sequence[str]) -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>blobfeed: report</title>'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>{''.join(parts)}</body></html>"
    )


def _about_trace(name: str, facts: RunFacts, found: Found | None) -> str:
    waited = facts.batch_ms["trainer"]["wait"] * facts.batches / 1000
    numbers = {
        "batches": f"{facts.batches:,}",
        "samples/s": f"{facts.samples / max(facts.seconds, 1e-9):,.0f}",
        "of the time the trainer waited": f"{waited / max(facts.seconds, 1e-9):.1%}",
        "loaders": str(len(facts.loaders)),
        "deaths of loaders": str(len(facts.deaths)),
        "seconds": f"{facts.seconds:,.1f}",
    }
    if asked := facts.cache.get("hits", 0) + facts.cache.get("misses", 0):
        numbers["of the samples were in the cache"] = f"{facts.cache['hits'] / asked:.1%}"
    cards = [
        _card("Throughput and stall", _time_chart(facts), wide=True),
        _card("What the time of a batch consists of", _batch_chart(facts)),
        _card("Loaders at work", _loader_chart(facts)),
        _card("How long a sample takes", _histogram(facts)),
        _card("The slowest samples", _slowest(facts, found)),
        _card("Faults", _faults(facts)),
    ]
    boxes = "".join(f"<div><b>{number}</b><span>{words}</span></div>" for words, number in numbers.items())
    return f'<h1>{html.escape(name)}</h1><div class="numbers">{boxes}</div><div class="cards">{"".join(cards)}</div>'


def _card(title: str, content: str, *, wide: bool = False) -> str:
    return f'<section class="card{" wide" if wide else ""}"><h2>{title}</h2>{content}</section>'


# ---- charts


def _chart(data: Sequence[Mapping[str, Any]], **layout: Any) -> str:
    import plotly.graph_objects as go  # type: ignore[import-untyped]
    import plotly.io as io  # type: ignore[import-untyped]

    look = {
        "height": 300,
        "margin": {"l": 50, "r": 50, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "template": "none",
        "colorway": _COLORS,
        "legend": {"orientation": "h", "y": 1.15, "traceorder": "normal"},
    }
    figure = go.Figure(data=data, layout={**look, **layout})
    settings = {"responsive": True, "displayModeBar": False}
    return str(io.to_html(figure, include_plotlyjs=False, full_html=False, config=settings))


def _time_chart(facts: RunFacts) -> str:
    times = np.round(facts.times_s, 3).tolist()
    stall = {
        "type": "scatter",
        "name": "stall",
        "x": times,
        "y": np.round(100 * facts.stall, 1).tolist(),
        "fill": "tozeroy",
        "line": {"width": 0, "color": _COLORS[1]},
    }
    speed = {"type": "scatter", "name": "samples/s", "x": times, "y": np.round(facts.throughput, 1).tolist()}
    percent = {"side": "right", "range": [0, 100], "dtick": 25, "ticksuffix": " %", "showgrid": False}
    marks = [
        {"type": "line", "x0": death.at_s, "x1": death.at_s, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot"}}
        for death in facts.deaths
    ]
    return _chart(
        [stall, {**speed, "yaxis": "y2", "line": {"color": _COLORS[0]}}],
        xaxis={"title": "seconds"},
        yaxis=percent,
        yaxis2={"overlaying": "y", "side": "left", "rangemode": "tozero", "tickmode": "auto"},
        shapes=marks,
    )


def _batch_chart(facts: RunFacts) -> str:
    bars = [
        {"type": "bar", "orientation": "h", "name": name, "y": [who], "x": [round(ms, 3)]}
        for who, times in facts.batch_ms.items()
        for name, ms in times.items()
        if ms
    ]
    below = {"orientation": "h", "y": -0.3, "yanchor": "top", "traceorder": "normal"}
    room = {"l": 70, "r": 10, "t": 10, "b": 120}
    return _chart(bars, barmode="stack", xaxis={"title": "ms of one batch"}, margin=room, legend=below)


def _loader_chart(facts: RunFacts) -> str:
    if not facts.loaders:
        return '<p class="faint">The trace has no tasks.</p>'
    rows = [np.round(100 * shares).astype(int).tolist() for shares in facts.loaders.values()]
    heat = {
        "type": "heatmap",
        "z": rows,
        "x": np.round(facts.times_s, 3).tolist(),
        "zmin": 0,
        "zmax": 100,
        "y": [f"loader {loader}" for loader in facts.loaders],
        "colorbar": {"ticksuffix": " %"},
        "colorscale": "Teal",
    }
    return _chart([heat], xaxis={"title": "seconds"}, margin={"l": 70, "r": 10, "t": 10, "b": 40})


def _histogram(facts: RunFacts) -> str:
    if not facts.sample_ms.size:
        return '<p class="faint">The trace has no samples.</p>'
    low, high = max(float(facts.sample_ms.min()), 1e-4), max(float(facts.sample_ms.max()), 2e-4)
    edges = np.geomspace(low, high * 1.001, 41)
    counts, _ = np.histogram(facts.sample_ms, edges, weights=facts.sample_counts)
    bars = {
        "type": "bar",
        "x": np.sqrt(edges[1:] * edges[:-1]).tolist(),
        "y": counts.tolist(),
        "width": np.diff(edges).tolist(),
    }
    return _chart([bars], xaxis={"title": "ms", "type": "log"}, yaxis={"title": "samples"})


def _loss_chart(losses: Mapping[str, Any]) -> str:
    lines = [
        {"type": "scatter", "name": name, "x": iterations.tolist(), "y": values.tolist()}
        for name, (iterations, values) in losses.items()
    ]
    return _chart(lines, xaxis={"title": "iteration"}, yaxis={"title": "loss"}, showlegend=True)


# ---- tables


def _slowest(facts: RunFacts, found: Found | None) -> str:
    shown = {sample: _look_at(found, sample) for sample, _ in facts.slowest} if found is not None else {}
    median = float(np.median(facts.sample_ms)) if facts.sample_ms.size else 0
    rows = "".join(
        f"<tr><td>{shown.get(sample, ('', ''))[0]}</td><td>{sample}</td><td>{ms:,.1f} ms</td>"
        f"<td>{ms / max(median, 1e-9):.0f} × median</td><td>{html.escape(shown.get(sample, ('', ''))[1])}</td></tr>"
        for sample, ms in facts.slowest
    )
    hint = "" if found is not None else '<p class="faint">--source DATA shows them, and where they lie.</p>'
    return f"<table>{rows}</table>{hint}"


def _look_at(found: Found, sample: int) -> tuple[str, str]:
    """A small picture of the sample, if it is one, and where it lies."""
    with closing(found.open()) as source:
        rows = allocate_rows(source.specs, 1)
        try:
            where = source.where(sample)
            source.read(np.array([sample]), rows)
        except (BlobfeedError, OSError, IndexError) as error:
            return "", str(error)
        first = next(iter(rows.values()))
        values = first.get(0) if isinstance(first, RaggedRows) else np.asarray(first[0])
    if values.ndim != 3 or values.shape[0] not in (1, 3) or not is_installed("cv2"):
        return "", where
    from .sheet import thumbnail

    content = base64.b64encode(thumbnail(values, found.is_bgr, _THUMBNAIL)).decode()
    return f'<img alt="sample {sample}" src="data:image/png;base64,{content}">', where


def _faults(facts: RunFacts) -> str:
    damaged = facts.cache.get("damaged", 0)
    if not facts.deaths and not damaged:
        return '<p class="faint">No loader died.</p>'
    rows = f"<tr><td></td><td>{damaged:,} damaged samples in the cache</td><td></td></tr>" if damaged else ""
    rows += "".join(
        f"<tr><td>{death.at_s:,.2f} s</td><td>loader {death.loader} died</td>"
        f"<td>{'' if death.sample is None else f'at sample {death.sample}'}</td></tr>"
        for death in facts.deaths
    )
    return f"<table>{rows}</table>"
