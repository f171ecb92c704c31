"""Rules for every test: it runs against the installed package, keeps to its process, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis import settings

import blobfeed

from .support import leftovers, purity
from .support.part import WHOLE
from .support.waiting import DEADLINE_S, wait_until_none

_ROOT = Path(__file__).resolve().parent.parent
_TEMPORARY = pytest.StashKey[Path]()
_KEPT = pytest.StashKey[Path]()

# Begun first, in this order: else one of them might be left to one worker while the others have no more to do.
_LONG = (
    "test_contract.py",
    "test_data_loader.py",
    "test_monitor.py",
    "test_cli_interrupt.py",
    "test_published_bytes.py",
    "test_samplers.py",
    "test_in_process.py",
    "test_own_code.py",
    "test_first_calls.py",
    "test_faults_quick.py",
    "test_batch_reader.py",
    "test_faces.py",
    "test_pipeline.py",
    "test_stall.py",
    "test_stream.py",
    "test_interrupts.py",
    "test_restart.py",
    "test_caffe_contract.py",
    "test_resume.py",
    "test_stored_arrays.py",
    "test_pack.py",
    "test_module.py",
    "test_caffe.py",
)

# Left to `make test-all`: other frameworks, documents, examples, a cluster, servers of others, kills and crashes in
# full, and the device that is played where there is none.
_INTEGRATION = (
    "readers/delivery/test_cuda_*.py",
    "readers/test_framework_examples.py",
    "readers/test_frameworks.py",
    "test_distribution.py",
    "test_documents.py",
    "test_examples.py",
    "workers/processes/test_crashes.py",
    "workers/processes/test_trainer_death.py",
    "cluster/*.py",
    "sources/cloud/test_real_servers.py",
)

settings.register_profile(WHOLE, deadline=None)  # hypothesis makes 100 examples if a test does not say how many
settings.register_profile("part", max_examples=25, deadline=None)
settings.load_profile("part")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the lines that catalogues of errors lack: errors.txt")


def pytest_configure(config: pytest.Config) -> None:
    if _is_checkout() and not _checkout_is_meant():
        raise pytest.UsageError(
            f"blobfeed would be imported from the checkout ({blobfeed.__file__}), and the tests are for the installed "
            "package: run `make test`, or say PYTHONPATH=$PWD to mean the checkout"
        )
    # A shell runs what is in the background with Ctrl-C ignored, and Python then leaves it so, children included.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Threads that wait for work spin, and three workers share what cores there are.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    leftovers.mark_environment()
    purity.watch()
    resource_tracker.ensure_running()  # or the first test to use it would look as if it had left a pipe open
    config.stash[_KEPT] = Path(tempfile.mkdtemp(prefix="bf-kept-"))
    os.environ["XDG_CACHE_HOME"] = str(config.stash[_KEPT])  # the indices that sources keep, and none in the user's own
    config.stash[_TEMPORARY] = _own_temporary_directory()


def pytest_report_header(config: pytest.Config) -> str:
    return f"blobfeed: {'the checkout' if _is_checkout() else 'installed'}, {Path(blobfeed.__file__).parent}"


def pytest_unconfigure(config: pytest.Config) -> None:
    for folder in (_TEMPORARY, _KEPT):
        shutil.rmtree(config.stash.get(folder, ""), ignore_errors=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    if purity.is_in_pure_room(item.path):
        item.add_marker("pure")
    if any(item.path.match(pattern) for pattern in _INTEGRATION):
        item.add_marker("integration")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda"):
        torch = pytest.importorskip("torch", reason="needs a CUDA device, and torch is not installed")
        if not torch.cuda.is_available():
            built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
            pytest.skip(f"needs a CUDA device, and torch {torch.__version__}, {built}, finds none")


@pytest.fixture(autouse=True)
def _nothing_left_behind(pytestconfig: pytest.Config) -> Iterator[None]:
    temporary = pytestconfig.stash[_TEMPORARY]
    before = leftovers.Belongings.now(temporary)
    yield
    left = wait_until_none(lambda: leftovers.Belongings.now(temporary).added_since(before), DEADLINE_S)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def _pure_if_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    with purity.held_to_it() if request.node.get_closest_marker("pure") else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def _no_orphan_and_no_open_descriptor() -> Iterator[None]:
    gc.freeze()  # what is there already is none of this module's, and looking through it takes half a second
    before = leftovers.descriptors()
    yield
    gc.collect()  # the traceback of an expected error keeps what its frames hold, arrays in memory for one
    opened = wait_until_none(lambda: leftovers.opened_since(before), DEADLINE_S)
    alive = wait_until_none(lambda: [leftovers.describe(pid) for pid in leftovers.orphans()], DEADLINE_S)
    leftovers.kill(leftovers.orphans())
    if opened or alive:
        pytest.fail("the tests of this module left behind: " + "; ".join(opened + alive), pytrace=False)


def _is_checkout() -> bool:
    return Path(blobfeed.__file__).resolve().parent == _ROOT / "blobfeed"


def _checkout_is_meant() -> bool:
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(entry).resolve() == _ROOT for entry in named if entry)


def _own_temporary_directory() -> Path:
    # Whatever appears in it is ours, even if the machine has other users. tmp_path stays where it always is, so
    # that the files of a failed test can be looked at. The name is short because sockets' paths have to be.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="bf-")
    return Path(tempfile.tempdir)
