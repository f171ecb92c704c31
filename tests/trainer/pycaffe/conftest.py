"""Each test in this folder runs with one thread, and leaves no imported module behind."""

from tests.support.trainer_nets import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]
