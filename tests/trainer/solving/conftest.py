"""Fixtures for every test here."""

from tests.support.trainer_nets import importing_leaves_no_trace, one_thread

__all__ = ["importing_leaves_no_trace", "one_thread"]
