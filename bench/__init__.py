"""`make bench`: the figures of docs/performance.md, measured on this machine. Ratios of one run count, not absolute times."""
