"""`blobfeed inspect`: what paths hold, printed, and sentences of advice, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..workers.api import AnyArray, ArraySpec
from .examine import Facts, examine
from .found import Found, in_yaml, said_of_color

_MOST_CLASSES = 20
_WORTH_IT = 1.5
"""Less of a gain than this is not worth a sentence: the machine's own noise is a part of it."""
_UNBALANCED = 5
_DECODED = {
    "image_list": "images are decoded anew in each epoch",
    "lmdb": "records are unpacked anew in each epoch",
    "hdf5_samples": "each sample is a data set of its own",
}


def inspect(found: Found, console: Console, *, seconds: float, shown: int) -> Facts:
    """Print what `found` holds, how fast it is read here, advice, and the lines to paste; returns the facts."""
    facts = examine(found, seconds=seconds, shown=shown)
    size = f"up to {decimal(facts.sample_bytes)}" if facts.varies else decimal(facts.sample_bytes)
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
    said = said_of_color(found, facts.specs)
    for remark in (said, *found.remarks) if said else found.remarks:
        console.print(f"· {remark}", highlight=False)
    for sentence in advise(facts):
        console.print(f"→ {sentence}", highlight=False)
    print_lines(found, console)
    return facts


def print_lines(found: Found, console: Console) -> None:
    """Print the parameters for param_str or a reader, each on a line of its own that no terminal breaks."""
    console.print(f"source: {in_yaml(dict(found.declared))}", highlight=False, soft_wrap=True)
    if found.tops:
        console.print(f"tops: {in_yaml(list(found.tops))}", highlight=False, soft_wrap=True)
    if found.transform:
        console.print(f"transform: {in_yaml(dict(found.transform))}", highlight=False, soft_wrap=True)


def _tops(facts: Facts) -> Table:
    table = Table("top", "sample", "type", "stored as", "bytes in the file", box=None)
    for top, spec in facts.specs.items():
        storage = facts.storage.get(top)
        stored = decimal(storage.stored_bytes) if storage else ""
        if storage and storage.compression and storage.stored_bytes:
            stored += f" (1:{storage.raw_bytes / storage.stored_bytes:.2g})"
        single = "one text" if spec.dtype.kind in "SU" else "one number"
        shape = ("up to " if spec.varies else "") + ("×".join(map(str, spec.shape)) or single)
        table.add_row(top, shape, spec.dtype.name, str(storage or ""), stored)
    return table


def _first(facts: Facts) -> Table:
    table = Table("sample", "top", "value", box=None)  # a row for each top: many columns would fit no terminal
    for number, sample in enumerate(facts.first):
        for place, top in enumerate(facts.specs):
            table.add_row("" if place else str(number), Text(top), Text(_in_short(sample[top])))
    return table


def _in_short(value: AnyArray) -> str:
    if value.size <= 4:
        return ", ".join(map(str, value.ravel()))
    shape = "×".join(map(str, value.shape))
    if value.dtype.kind not in "biuf":
        return f"{shape} {value.dtype}"
    mean, deviation = value.mean(dtype="f8"), value.std(dtype="f8")
    return f"{shape}: {value.min():g} to {value.max():g}, mean {mean:.4g} ± {deviation:.4g}"


def _rates(facts: Facts) -> Table:
    table = Table("one process reads", "samples/s", "bytes/s", box=None)
    for order, rate in facts.rates.items():
        table.add_row(order, f"{rate:,.0f}", "" if facts.varies else decimal(int(rate * facts.sample_bytes)))
    return table


# ---- advice


def advise(facts: Facts) -> list[str]:
    """Return advice that makes training on these data faster or safer, the most effective first."""
    return [*_about_bad(facts), *_about_reading(facts), *_about_types(facts), *_about_labels(facts)]


def times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.1f} times"


def _about_bad(facts: Facts) -> Iterator[str]:
    if facts.bad:
        more = f" ({len(facts.bad)} such samples were met)" if len(facts.bad) > 1 else ""
        first = facts.bad[min(facts.bad)]
        yield f"{first}{more}: leave such samples out of the data, or train with `on_error: replace`"


def _about_reading(facts: Facts) -> Iterator[str]:
    shuffled = facts.rates.get("shuffled (shuffle: true)")
    if not shuffled:
        return
    chunks, packed = facts.rates.get("by chunks (shuffle: chunk)"), facts.rates.get("packed, shuffled")
    largest = max(facts.specs, key=lambda top: facts.specs[top].nbytes)
    storage = facts.storage.get(largest)
    is_chunked = storage is not None and storage.chunk is not None
    if not (is_chunked or chunks or facts.kind in _DECODED):
        return  # nothing is decoded, so nothing is read faster
    why = f"{largest} lies in {storage}" if is_chunked else _DECODED.get(facts.kind, "samples are decoded by chunks")
    if chunks and chunks > _WORTH_IT * shuffled:
        yield f"{why}: `shuffle: chunk` reads {times(chunks / shuffled)} faster than `shuffle: true`"
    if packed and packed > _WORTH_IT * shuffled:
        size = facts.samples * facts.sample_bytes
        yield (
            f"{why}: `blobfeed pack` makes shuffled reading {times(packed / shuffled)} faster (measured "
            f"on the first {facts.packed_samples:,} samples, in memory); the file would have {decimal(size)}"
        )


def _about_types(facts: Facts) -> Iterator[str]:
    tops = [top for top, spec in facts.specs.items() if _fits_uint8(top, spec, facts)]
    if tops:
        several = len(tops) > 1
        types = ", ".join(sorted({facts.specs[top].dtype.name for top in tops}))
        least = min(facts.specs[top].dtype.itemsize for top in tops)
        yield (
            f"{', '.join(tops)} {'are' if several else 'is'} {types}, and the first, the last and some random samples "
            f"hold whole numbers from 0 to 255: `blobfeed pack {' '.join(f'--uint8 {top}' for top in tops)}` takes "
            f"{least} times less space and memory traffic"
        )


def _fits_uint8(top: str, spec: ArraySpec, facts: Facts) -> bool:
    """Return true if all values of `top` that were looked at fit uint8; labels may run higher in other samples."""
    values = [sample[top] for sample in facts.some if top in sample and sample[top].size]
    if spec.dtype.kind != "f" or spec.items < 2 or spec.varies or not values or top.startswith("label"):
        return False  # `pack` takes no samples that differ in size
    whole = all((value == value.round()).all() and 0 <= value.min() <= value.max() <= 255 for value in values)
    return whole and any(value.max() > 1 for value in values)


def _about_labels(facts: Facts) -> Iterator[str]:
    for top, labels in facts.labels.items():
        if labels.is_sorted:
            yield f"the samples lie ordered by {top}: without `shuffle` a batch holds one class"
        if len(labels.counts) > 1:
            rare, common = (most(labels.counts, key=labels.counts.__getitem__) for most in (min, max))
            ratio = labels.counts[common] / labels.counts[rare]
            if ratio >= _UNBALANCED:
                yield (
                    f"{top} {rare} is {times(ratio)} rarer than {common}: `sampler: {{balance: {top}}}` gives all alike"
                )
