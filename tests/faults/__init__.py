"""Faults on purpose. Few of each in `make test`; all of them, with the table in docs/reliability.md, by `make test-faults`."""
