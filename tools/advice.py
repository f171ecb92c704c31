"""From facts about data to sentences of advice, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from .examine import Facts

_WORTH_IT = 1.5
"""Less of a gain than this is not worth a sentence: the machine's own noise is a part of it."""
_UNBALANCED = 5
_DECODED = {
    "image_list": "images are decoded anew in each epoch",
    "leveldb": "records are unpacked anew in each epoch",
    "lmdb": "records are unpacked anew in each epoch",
    "hdf5_samples": "each sample is a data set of its own",
}


def advise(facts: Facts) -> list[str]:
    """What would make training on these data faster or safer, the most effective first."""
    return [
        *_about_bad(facts),
        *_about_reading(facts),
        *_about_types(facts),
        *_about_labels(facts),
        *_about_values(facts),
    ]


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
    if not is_chunked and facts.kind not in _DECODED:
        return  # contiguous: nothing is read faster
    why = f"{largest} lies in {storage}" if is_chunked else _DECODED[facts.kind]
    if chunks and chunks > _WORTH_IT * shuffled:
        yield f"{why}: `shuffle: chunk` reads {times(chunks / shuffled)} faster than `shuffle: true`"
    if packed and packed > _WORTH_IT * shuffled:
        size = facts.samples * facts.sample_bytes
        yield (
            f"{why}: `blobfeed pack` makes shuffled reading {times(packed / shuffled)} faster (measured "
            f"on the first {facts.packed_samples:,} samples, in memory); the file would have {in_bytes(size)}"
        )
    if facts.kind == "hdf5_samples" and facts.samples > 10_000:
        yield "all data sets are looked for at each start: `index_cache: FILE` in the source keeps what was found"


def _about_types(facts: Facts) -> Iterator[str]:
    for top, spec in facts.specs.items():
        values = [sample[top] for sample in facts.first if top in sample]
        if spec.dtype.kind != "f" or not spec.shape or not values:
            continue
        whole = all((value == value.round()).all() and 0 <= value.min() <= value.max() <= 255 for value in values)
        if whole and any(value.max() > 1 for value in values):
            yield (
                f"{top} is {spec.dtype.name}, and its first samples hold whole numbers from 0 to 255: `blobfeed pack "
                f"--uint8 {top}` takes {spec.dtype.itemsize} times less room and memory traffic"
            )


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


def _about_values(facts: Facts) -> Iterator[str]:
    for number, sample in enumerate(facts.first):
        for top, value in sample.items():
            if value.dtype.kind == "f" and not (value == value).all():
                yield f"sample {number} of {top} holds NaN: a net that sees it is lost"
            elif value.size > 1 and (value == value.flat[0]).all():
                yield f"sample {number} of {top} is {value.flat[0]} everywhere: is that meant?"


def in_bytes(count: float) -> str:
    """`count` bytes in words: 1.2 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
