"""`blobfeed inspect`: what paths hold, printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ..workers.base.specs import AnyArray
from .advice import advise, in_bytes
from .examine import Facts, examine
from .recognise import Found, in_yaml

_MOST_CLASSES = 20


def inspect(found: Found, console: Console, *, seconds: float, shown: int) -> Facts:
    """Print what `found` holds, how fast it is read here, advice, and the lines to paste; returns the facts."""
    facts = examine(found, seconds=seconds, shown=shown)
    size = f"up to {in_bytes(facts.sample_bytes)}" if facts.varies else in_bytes(facts.sample_bytes)
    console.print(f"{facts.kind}: {facts.samples:,} samples of {size}")
    console.print(_tops(facts))
    for top, labels in facts.labels.items():
        counts = list(labels.counts.items())
        said = ", ".join(f"{value}: {count:,}" for value, count in counts[:_MOST_CLASSES])
        part = "" if labels.looked_at == facts.samples else f" (of the first {labels.looked_at:,} samples)"
        console.print(f"{top}: {len(counts)} classes{part}: {said}{' …' if len(counts) > _MOST_CLASSES else ''}")
    if facts.first:
        console.print(_first(facts))
    if facts.rates:
        console.print(_rates(facts))
    for remark in found.remarks:
        console.print(f"· {remark}", highlight=False)
    for sentence in advise(facts):
        console.print(f"→ {sentence}", highlight=False, markup=False)
    print_lines(found, console)
    return facts


def print_lines(found: Found, console: Console) -> None:
    """What goes into param_str or into a reader, each on a line of its own that no terminal breaks."""
    console.print(f"source: {in_yaml(dict(found.declared))}", highlight=False, markup=False, soft_wrap=True)
    if found.tops:
        console.print(f"tops: {in_yaml(list(found.tops))}", highlight=False, markup=False, soft_wrap=True)


def _tops(facts: Facts) -> Table:
    table = Table("top", "sample", "type", "stored as", "bytes in the file", box=None)
    for top, spec in facts.specs.items():
        storage = facts.storage.get(top)
        stored = in_bytes(storage.stored_bytes) if storage else ""
        if storage and storage.compression and storage.stored_bytes:
            stored += f" (1:{facts.samples * spec.nbytes / storage.stored_bytes:.2g})"
        shape = ("up to " if spec.varies else "") + ("×".join(map(str, spec.shape)) or "one number")
        table.add_row(top, shape, spec.dtype.name, str(storage or ""), stored)
    return table


def _first(facts: Facts) -> Table:
    table = Table("sample", *facts.specs, box=None)
    for number, sample in enumerate(facts.first):
        table.add_row(str(number), *(_in_short(sample[top]) for top in facts.specs))
    return table


def _in_short(value: AnyArray) -> str:
    if value.size <= 4:
        return ", ".join(map(str, value.ravel().tolist()))
    shape = "×".join(map(str, value.shape))
    if value.dtype.kind not in "biuf":
        return f"{shape} {value.dtype}"
    mean, deviation = value.mean(dtype="f8"), value.std(dtype="f8")
    return f"{shape}: {value.min():g} to {value.max():g}, mean {mean:.4g} ± {deviation:.4g}"


def _rates(facts: Facts) -> Table:
    table = Table("one process reads", "samples/s", "bytes/s", box=None)
    for order, rate in facts.rates.items():
        table.add_row(order, f"{rate:,.0f}", "" if facts.varies else in_bytes(rate * facts.sample_bytes))
    return table
