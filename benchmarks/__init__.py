"""The README's claims about speed, re-runnable: `python -m benchmarks`; peers and limits in the same run."""
