"""The tests run against the installed package: see conftest.py, and docs/development.md for how to run them."""
