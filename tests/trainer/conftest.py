"""Each test in this folder runs with one thread, and leaves no imported module behind."""

from tests.support.training import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]
