"""`blobfeed report`: what a trace says of a run, as one page that needs no network. Needs plotly."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ..watching import is_written, load
from ..workers.base import BlobfeedError, ParameterError, is_installed
from .found import Found, sample_of
from .run_facts import RunFacts, Series, read_losses, run_facts
from .written import require_ending, writing

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
  min-width: 0; overflow-x: auto; }
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

    Raises ParameterError for what is neither a trace nor a log of losses.
    """
    parts: list[str] = []
    losses: dict[str, tuple[Series, Series]] = {}
    for path in paths:
        if not path.is_file():
            raise ParameterError(f"there is no file {str(path)!r}; name a trace or the log of a training")
        with path.open("rb") as file:
            begin = file.read(1 << 16)
            is_trace = begin.startswith(b"[") or b'"traceEvents"' in begin
        if is_trace:
            goes_on = is_written(path)
            parts.append(_about_trace(path.name, run_facts(load(path)), found, goes_on))
        else:
            losses |= {f"{path} {net}".removesuffix(" train"): curve for net, curve in read_losses(path).items()}
    if losses:
        parts.append(f'<div class="cards">{_card("Loss", _loss_chart(losses), wide=True)}</div>')
    if target.exists() and any(map(target.samefile, paths)):
        raise ParameterError(f"--out {target} is one of the files that the page is made of: name another file")
    require_ending(target, (".html", ".htm"), f"--out {target}: the page is HTML")
    with writing(target):
        target.write_text(_page(parts), encoding="utf-8", errors="backslashreplace")  # names may be no UTF-8


def _page(parts: Sequence[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>blobfeed: report</title>'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>{''.join(parts)}</body></html>"
    )


def _about_trace(name: str, facts: RunFacts, found: Found | None, goes_on: bool) -> str:
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
    so_far = "<p>The run goes on: this is what it has done so far.</p>" if goes_on else ""
    said = f"<p><strong>{html.escape(facts.diagnosis)}</strong></p>{so_far}"
    return (
        f'<h1>{html.escape(name)}</h1>{said}<div class="numbers">{boxes}</div><div class="cards">{"".join(cards)}</div>'
    )


def _card(title: str, content: str, *, wide: bool = False) -> str:
    return f'<section class="card{" wide" if wide else ""}"><h2>{title}</h2>{content}</section>'


# ---- charts


def _figure(**layout: Any) -> Any:
    look = {
        "height": 300,
        "margin": {"l": 70, "r": 50, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "template": "none",
        "colorway": _COLORS,
        "legend": {"orientation": "h", "y": 1.15, "traceorder": "normal"},
    }
    return go.Figure(layout=look | layout)


def _chart(figure: Any) -> str:
    settings = {"responsive": True, "displayModeBar": False}
    return str(figure.to_html(include_plotlyjs=False, full_html=False, config=settings))


def _time_chart(facts: RunFacts) -> str:
    figure = _figure(
        xaxis={"title": "seconds"},
        yaxis={"side": "right", "range": [0, 1], "dtick": 0.25, "tickformat": ".0%", "showgrid": False},
        yaxis2={"overlaying": "y", "side": "left", "rangemode": "tozero", "tickmode": "auto"},
    )
    hidden = {"width": 0, "color": _COLORS[1]}
    figure.add_scatter(name="stall", x=facts.times_s, y=facts.stall, fill="tozeroy", line=hidden)
    figure.add_scatter(name="samples/s", x=facts.times_s, y=facts.throughput, yaxis="y2", line_color=_COLORS[0])
    for death in facts.deaths:
        figure.add_vline(death.at_s, line_dash="dot", line_color="#888")
    return _chart(figure)


def _batch_chart(facts: RunFacts) -> str:
    below = {"orientation": "h", "y": -0.3, "yanchor": "top", "traceorder": "normal"}
    room = {"l": 70, "r": 10, "t": 10, "b": 120}
    figure = _figure(barmode="stack", xaxis={"title": "ms of one batch"}, margin=room, legend=below)
    for who, times in facts.batch_ms.items():
        for name, ms in times.items():
            if ms:
                figure.add_bar(orientation="h", name=name, y=[who], x=[ms])
    return _chart(figure)


def _loader_chart(facts: RunFacts) -> str:
    if not facts.loaders:
        return '<p class="faint">The trace has no tasks.</p>'
    figure = _figure(xaxis={"title": "seconds"})
    rows, loaders = list(facts.loaders.values()), [f"loader {loader}" for loader in facts.loaders]
    scale = {"zmin": 0, "zmax": 1, "colorscale": "Teal", "colorbar": {"tickformat": ".0%"}}
    figure.add_heatmap(z=rows, x=facts.times_s, y=loaders, **scale)
    return _chart(figure)


def _histogram(facts: RunFacts) -> str:
    if not facts.sample_ms.size:
        return '<p class="faint">The trace has no samples.</p>'
    low, high = max(float(facts.sample_ms.min()), 1e-4), max(float(facts.sample_ms.max()), 2e-4)
    edges = np.geomspace(low, high * 1.001, 41)
    counts, _ = np.histogram(facts.sample_ms, edges, weights=facts.sample_counts)
    figure = _figure(xaxis={"title": "ms", "type": "log", "dtick": "D2"}, yaxis={"title": "samples"})
    figure.add_bar(x=np.sqrt(edges[1:] * edges[:-1]), y=counts, width=np.diff(edges))
    return _chart(figure)


def _loss_chart(losses: Mapping[str, tuple[Series, Series]]) -> str:
    figure = _figure(xaxis={"title": "iteration"}, yaxis={"title": "loss"}, showlegend=True)
    for name, (iterations, values) in losses.items():
        figure.add_scatter(name=name, x=iterations, y=values)
    return _chart(figure)


# ---- tables


def _table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    lines = ("</td><td>".join(row) for row in rows)
    head = "".join(f"<th>{each}</th>" for each in heads)
    return (
        "<table>"
        + (f"<tr>{head}</tr>" if heads else "")
        + "".join(f"<tr><td>{line}</td></tr>" for line in lines)
        + "</table>"
    )


def _slowest(facts: RunFacts, found: Found | None) -> str:
    median = float(np.median(facts.sample_ms)) if facts.sample_ms.size else 0
    rows = []
    for sample, ms in facts.slowest:
        picture, where = _look_at(found, sample) if found is not None else ("", "")
        times = f"{ms / max(median, 1e-9):.0f} × median"
        rows.append((picture, str(sample), f"{ms:,.1f} ms", times, html.escape(where)))
    heads = ("", "sample", "time", "beside others", "where it lies" if found else "")
    return _table(rows, heads) + ("" if found else '<p class="faint">--source DATA shows them, and where they lie.</p>')


def _look_at(found: Found, sample: int) -> tuple[str, str]:
    """A small picture of the sample, if it is one, and where it lies."""
    with closing(found.open()) as source:
        try:
            where = source.where(sample)
            values = next(iter(sample_of(source, sample).values()))
        except (BlobfeedError, OSError, IndexError) as error:
            return "", str(error)
    if values.ndim != 3 or values.shape[0] not in (1, 3) or not is_installed("cv2"):
        return "", where
    from .sheet import thumbnail

    content = base64.b64encode(thumbnail(values, found.color == "bgr", _THUMBNAIL)).decode()
    return f'<img alt="sample {sample}" src="data:image/png;base64,{content}">', where


def _faults(facts: RunFacts) -> str:
    damaged = facts.cache.get("damaged", 0)
    if not facts.deaths and not damaged:
        return '<p class="faint">No loader died.</p>'
    rows = [("", f"{damaged:,} damaged samples in the cache", "")] if damaged else []
    for death in facts.deaths:
        sample = "" if death.sample is None else f"at sample {death.sample}"
        rows.append((f"{death.at_s:,.2f} s", f"loader {death.loader} died", sample))
    return _table(rows)
