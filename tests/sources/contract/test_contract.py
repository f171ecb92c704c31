"""The contract of every kind of source, held through public names alone; each law names what all kinds promise."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources import open_source
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blobfeed import BatchReader, BlobfeedError, ParameterError, RaggedRows, Source
from tests.support.forked import exit_code, fork
from tests.support.object_servers import range_server
from tests.support.part import examples, some_of
from tests.support.stored import in_loader, patterns, rows_of

from .kinds import KINDS, Content, Sample, Written, content_of, contents

FEW = examples(5, suppress_health_check=[HealthCheck.function_scoped_fixture])
CASES = [(name, ragged) for name, kind in KINDS.items() for ragged in ([False, True] if kind.ragged else [False])]
CASE_IDS = [f"{name}, ragged" if ragged else name for name, ragged in CASES]
REMOTE = [(name, ragged) for name, ragged in CASES if KINDS[name].remote]
STAMPED = [name for name, kind in KINDS.items() if kind.files in ("stamped", "closed")]
WITH_FILES = [name for name in KINDS if not name.startswith("arrays")]


@contextmanager
def written(name: str, content: Content, *, ragged: bool = False) -> Iterator[Written]:
    """The content in a folder of its own."""
    write = KINDS[name].ragged if ragged else KINDS[name].write
    assert write is not None
    with tempfile.TemporaryDirectory() as folder:
        yield write(Path(folder), content)


def read(source: Source, indices: Sequence[int]) -> list[Sample]:
    """The samples, each in its own shape."""
    rows = rows_of(source, indices)
    return [
        {top: each.get(row) if isinstance(each, RaggedRows) else each[row] for top, each in rows.items()}
        for row in range(len(indices))
    ]


def assert_same(found: Sequence[Sample], expected: Sequence[Sample]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for top in other:
            assert np.asarray(one[top]).dtype == other[top].dtype, top
            np.testing.assert_array_equal(one[top], other[top], strict=True)


def assert_reads(source: Source, expected: Sequence[Sample]) -> None:
    assert_same(read(source, range(len(expected))), expected)


# ---- samples


@pytest.mark.parametrize(("name", "ragged"), CASES, ids=CASE_IDS)
@FEW
@given(data=st.data())
def test_any_samples_come_in_any_order_and_as_often_as_asked_for(name: str, ragged: bool, data: st.DataObject) -> None:
    content = data.draw(contents(ragged=ragged))
    count = len(content.data)
    with written(name, content, ragged=ragged) as made, closing(made.open()) as source:
        assert len(source) == count
        assert list(source.specs) == list(made.samples[0])
        assert ragged or not source.specs["data"].varies
        for each in (source, in_loader(source)):
            with closing(each):
                for _ in range(2):  # after it was closed, too
                    indices = data.draw(st.lists(st.integers(0, count - 1), max_size=2 * count))
                    each.will_need(np.array(indices, np.int64))
                    expected = [made.samples[index] for index in indices]
                    assert_same(read(each, indices), expected)
                    if (lent := each.lend(np.array(indices, np.int64))) is not None:
                        assert_same([dict(sample) for sample in lent], expected)
                    each.close()


# Of windows the order of the tops decides what each is: tests/sources/test_array_windows.py.
@pytest.mark.parametrize("name", [name for name in KINDS if not name.endswith(" windows")])
def test_tops_choose_and_order_what_is_read(name: str) -> None:
    with written(name, content_of(7)) as made:
        for tops in (["label", "data"], ["label"], ["data"]):
            with closing(made.open(tops)) as source:
                assert_reads(source, [{top: sample[top] for top in tops} for sample in made.samples])
        with pytest.raises(BlobfeedError, match="lable"):
            made.open(["data", "lable"])


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.has_limit])
@FEW
@given(limit=st.integers(1, 12), content=contents())
def test_a_limit_takes_the_first_samples(name: str, limit: int, content: Content) -> None:
    with written(name, content) as made:
        with closing(made.open(limit=limit)) as source:
            assert_reads(source, made.samples[:limit])
            assert len(source) == min(limit, len(made.samples))
            with pytest.raises(IndexError, match=str(len(source))):
                read(source, [len(source)])
        with pytest.raises(ParameterError, match="limit"):
            made.open(limit=0)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.has_limit])
def test_an_index_beyond_the_samples_is_refused(name: str) -> None:
    with written(name, content_of(5)) as made, closing(made.open()) as source, closing(in_loader(source)) as arrived:
        for bad in (-1, 5):
            with pytest.raises(IndexError):
                read(arrived, [3, bad])


@pytest.mark.parametrize("name", KINDS)
def test_a_sample_is_named_by_its_place(name: str) -> None:
    for content in (content_of(12), content_of(1)):
        with written(name, content) as made, closing(made.open()) as source:
            for each in (source, in_loader(source)):
                assert [each.where(index) for index in range(len(source))] == made.places


# ---- processes


@pytest.mark.parametrize("name", some_of(KINDS, 2))
def test_a_forked_process_reads_on_beside_this_one(name: str) -> None:
    with written(name, content_of(9)) as made, closing(made.open()) as source:
        assert_reads(source, made.samples)
        assert exit_code(fork(lambda: assert_reads(source, made.samples))) == 0
        assert exit_code(fork(lambda: assert_reads(source, made.samples[::-1]))) == 1, "it would see a difference"
        assert_reads(source, made.samples)


@pytest.mark.parametrize("name", some_of(KINDS, 4))
def test_loaders_deliver_the_bytes_that_are_delivered_in_process(name: str) -> None:
    with written(name, content_of(11)) as made:
        given: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5, "epochs": 1, "last_batch": "partial"}
        runs = []
        for loaders in (0, 1):
            with BatchReader(made.spec, base_dir=made.folder, num_loaders=loaders, **given) as reader:
                runs.append([{top: np.array(batch[top]) for top in ("data", "label")} for batch in reader])
    assert [len(batch["label"]) for batch in runs[0]] == [3, 3, 3, 2]
    assert_same(*runs)
    delivered = {int(label): row for batch in runs[1] for row, label in zip(*batch.values(), strict=True)}
    assert list(delivered) != [int(sample["label"]) for sample in made.samples]
    assert len(delivered) == len(made.samples)
    for sample in made.samples:
        np.testing.assert_array_equal(delivered[int(sample["label"])], sample["data"])


# ---- object storage


@pytest.mark.parametrize(("name", "ragged"), some_of(REMOTE, 3), ids=str)
def test_samples_from_object_storage_are_those_from_disk(name: str, ragged: bool) -> None:
    """In this process one by one, and in loaders by threads that fetch ahead."""
    content = content_of(41, size=(75, 25), ragged=ragged)
    with written(name, content, ragged=ragged) as made, range_server() as server:
        spec = made.on(server)
        with closing(open_source(spec, tops=None, base_dir=made.folder)) as source, closing(in_loader(source)) as far:
            for indices in patterns(len(source)):
                far.will_need(np.array(indices, np.int64))
                assert_same(read(far, indices), [made.samples[index] for index in indices])
            shuffle = "chunk" if source.chunk_samples else True
        if ragged:
            return
        given: dict[str, Any] = {"batch_size": 8, "shuffle": shuffle, "epochs": 1, "last_batch": "partial"}
        with BatchReader(spec, num_loaders=1, **given) as reader:
            arrived = [(row.copy(), int(label)) for batch in reader for row, label in zip(*batch.values(), strict=True)]
    assert sorted(label for _, label in arrived) == sorted(content.labels)
    for row, label in arrived:
        np.testing.assert_array_equal(row, made.samples[content.labels.index(label)]["data"])


# ---- files that are changed, cut or damaged


def overwrite(path: Path) -> None:
    """Change a byte in place; the size and the time of modification stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size - 1)
        last = file.read()
        file.seek(before.st_size - 1)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(8))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


CHANGES = [overwrite, _replace, _append, _cut, Path.unlink]


def names(error: object, name: str, path: Path) -> bool:
    """Whether the error names the file, or the store that it belongs to."""
    stores = [part for part in path.parts if part.endswith(".zarr")]
    return any(each in str(error) for each in (*stores, path.name, KINDS[name].named_instead or path.name))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", some_of(STAMPED, 3))
def test_a_file_that_was_changed_is_refused_by_name(name: str, change: Callable[[Path], None]) -> None:
    content = content_of(8)
    for was_open, cuts in product((False, True), (content.cuts, ())):
        if was_open and (KINDS[name].files == "closed" or change is Path.unlink):
            continue  # a file that is open is read to its end though it has no name any more
        with (
            written(name, replace(content, cuts=cuts)) as made,
            closing(made.open()) as first,
            closing(in_loader(first)) as source,
        ):
            first.close()
            if was_open:
                assert_reads(source, made.samples)
            change(made.files[-1])
            with pytest.raises(BlobfeedError) as caught:
                read(source, range(len(source)))
            assert names(caught.value, name, made.files[-1])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [name for name in WITH_FILES if KINDS[name].files == "memory"])
def test_a_file_that_is_in_memory_may_be_changed(name: str, change: Callable[[Path], None]) -> None:
    with written(name, content_of(8)) as made, closing(made.open()) as source:
        for file in made.files:
            change(file)
        assert_reads(source, made.samples)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.files == "whole"])
def test_a_file_that_is_damaged_later_is_refused_by_name(name: str) -> None:
    for damage in (_cut, lambda path: path.write_bytes(b"no such format" * 9)):
        with written(name, content_of(8)) as made, closing(in_loader(made.open())) as source:
            assert_reads(source, made.samples)
            damage(made.files[-1])
            source.close()
            with pytest.raises(BlobfeedError) as caught:
                read(source, range(len(source)))
            assert names(caught.value, name, made.files[-1])


@pytest.mark.parametrize("name", WITH_FILES)
@FEW
@given(share=st.floats(0, 0.999), number=st.integers(0, 30))
def test_a_file_that_is_cut_anywhere_is_refused_by_name(name: str, share: float, number: int) -> None:
    with written(name, content_of(8)) as made:
        path = made.files[number % len(made.files)]
        os.truncate(path, int(share * path.stat().st_size))
        _refused_or_same(name, made, path, must_be_refused=share <= 0.5)


@pytest.mark.parametrize(
    "name",
    [
        *("npz", "idx", "hdf5 gzip", "hdf5 lzf", "hdf5_samples gzip", "zarr", "zarr shards", "parquet"),
        *("files npz", "files npz compressed"),
    ],
)
@FEW
@given(number=st.integers(0, 30), share=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_a_changed_bit_costs_only_its_chunk_where_there_are_checksums(
    name: str, number: int, share: float, bit: int
) -> None:
    with written(name, content_of(8)) as made:
        path, offset, size = made.checked[number % len(made.checked)]
        with path.open("r+b") as file:
            file.seek(offset + int(share * size))
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1 << bit]))
        _refused_or_same(name, made, path, must_be_refused=False)
        if KINDS[name].files == "memory":
            return
        with closing(made.open()) as source:
            alone = [partial(_read_one, source, index, sample) for index, sample in enumerate(made.samples)]
            refusals = [refusal for refusal in map(_refusal, alone) if refusal]
        assert all(names(refusal, name, path) for refusal in refusals)
        assert len(refusals) <= (6 if name == "zarr shards" else 3)


def _read_one(source: Source, index: int, expected: Sample) -> None:
    assert_same(read(source, [index]), [expected])


def _refusal(reading: Callable[[], None]) -> BlobfeedError | None:
    try:
        reading()
    except BlobfeedError as error:
        return error
    return None


def _refused_or_same(name: str, made: Written, path: Path, *, must_be_refused: bool) -> None:
    """Open and read all: an error that names the file, or the samples as they were written."""

    def reading() -> None:
        with closing(made.open()) as source:
            source.check_samples()  # as setup does
            assert_reads(source, made.samples)

    refusal = _refusal(reading)
    assert names(refusal, name, path) if refusal else not must_be_refused


# ---- fingerprints


@pytest.mark.parametrize("name", KINDS)
@FEW
@given(content=contents(), data=st.data())
def test_the_fingerprint_changes_when_the_content_does_and_only_then(
    name: str, content: Content, data: st.DataObject
) -> None:
    with written(name, content) as made:
        for file in made.files:
            os.utime(file, ns=(1, 1))  # else what is written next could have the same time
        with closing(made.open()) as source:
            first = source.fingerprint()
            assert_reads(source, made.samples)
            assert in_loader(source).fingerprint() == source.fingerprint() == first
        (made.folder / "beside").write_bytes(b"")
        with closing(made.open()) as source:
            assert source.fingerprint() == first
        others = [made.open(["label"])] + (
            [made.open(limit=1)] if KINDS[name].has_limit and len(content.data) > 1 else []
        )
        for other in others:
            with closing(other):
                assert other.fingerprint() != first
        number = data.draw(st.integers(0, len(content.data) - 1))
        with closing(KINDS[name].write(made.folder, content.changed(number)).open()) as changed:
            assert changed.fingerprint() != first
        if KINDS[name].files == "memory":
            with closing(KINDS[name].write(made.folder, content).open()) as source:
                assert source.fingerprint() == first


# ---- states know their data


def state_over(source: Source) -> dict[str, Any]:
    """After one batch."""
    with BatchReader(source, batch_size=2, num_loaders=0) as reader:
        next(iter(reader))
        return dict(reader.state_dict())


def load(state: dict[str, Any], source: Source, **parameters: Any) -> None:
    with BatchReader(source, batch_size=2, num_loaders=0, **parameters) as reader:
        reader.load_state_dict(state)
        assert reader.state_dict()["batches"] == 1
        next(iter(reader))


@pytest.mark.parametrize("name", some_of(KINDS, 2))
def test_a_state_goes_on_over_moved_data_and_over_changed_ones_only_where_that_is_accepted(
    name: str, tmp_path: Path
) -> None:
    content = content_of(7)
    with written(name, content) as made:
        for file in made.files:
            os.utime(file, ns=(10**18, 10**18))
        state = state_over(made.open())
        load(state, made.open())
        shutil.copytree(made.folder, tmp_path / "moved")
        load(state, replace(made, folder=tmp_path / "moved").open())
        changed = KINDS[name].write(made.folder, content.changed(3))
        with pytest.raises(ParameterError, match="changed_data='accept'"):
            load(state, changed.open())
        load(state, changed.open(), changed_data="accept")


# ---- several sources


@pytest.mark.parametrize(("name", "ragged"), some_of(CASES, 2), ids=CASE_IDS)
@FEW
@given(indices=st.lists(st.integers(0, 11), max_size=14))
def test_two_put_end_to_end_have_the_samples_of_both(name: str, ragged: bool, indices: list[int]) -> None:
    with (
        written(name, content_of(7, ragged=ragged), ragged=ragged) as one,
        written(name, content_of(5, ragged=ragged, seed=1), ragged=ragged) as other,
    ):
        parts = [{"part": one.open()}, {"part": other.open()}]
        with closing(open_source({"concat": parts}, tops=None, base_dir=Path())) as source:
            samples = [*one.samples, *other.samples]
            for each in (source, in_loader(source)):
                with closing(each):
                    each.will_need(np.array(indices, np.int64))
                    assert_same(read(each, indices), [samples[index] for index in indices])
            assert [source.where(index) for index in range(12)] == [*one.places, *other.places]
