"""Image lists among processes: pickling, threads, fingerprints, reading ahead, freed memory."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from blobfeed.workers.base import read_whole
from blobfeed.workers.transport import keep_freed_memory

from tests.sources.images.reading import SIZE, opened, samples


def test_a_source_travels_without_its_buffers_and_reads_the_same_elsewhere(two_photographs: Path) -> None:
    source = opened(two_photographs, **SIZE)
    before = samples(source)
    code = (
        "import pickle, sys, cv2, numpy as np\n"
        "from blobfeed.workers.api import allocate_rows\n"
        "from blobfeed.workers.processes import settle\n"
        "cv2.setNumThreads(3)\n"
        "source = pickle.load(sys.stdin.buffer)\n"
        "settle()\n"
        "rows = allocate_rows(source.specs, 2)\n"
        "source.read(np.arange(2), rows)\n"
        "assert cv2.getNumThreads() == 1, 'a loader shares its cores'\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.buffer.write(rows['data'].tobytes())\n"
    )
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, input=sent, capture_output=True, timeout=200, check=False, pass_fds=source.descriptors
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == b"".join(np.asarray(image).tobytes() for image in before["data"])
    source.close()
    np.testing.assert_array_equal(samples(source)["data"][0], before["data"][0])


def test_the_trainer_keeps_its_own_opencv_threads(two_photographs: Path) -> None:
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        samples(opened(two_photographs, **SIZE))
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(threads)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_files_of_any_size_are_read_whole(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(content)
    assert read_whole(os.fsencode(tmp_path / "file")) == content


def test_freed_memory_is_kept_for_the_next_image() -> None:
    code = (
        "import resource\n"
        "import numpy as np\n"
        "from blobfeed.workers.transport import keep_freed_memory\n"
        "assert keep_freed_memory()\n"
        "def work():\n"
        "    for size in [3_000_000, 600_000, 9_000_000] * 10:\n"
        "        np.empty(size, np.uint8).fill(1)\n"
        "work()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "work()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert int(result.stdout) < 500, "126 MB were written to, 30,000 pages if each were fresh"


def test_another_c_library_is_told_of_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    caplog.set_level("INFO")
    assert not keep_freed_memory()
    assert "not glibc" in caplog.text
