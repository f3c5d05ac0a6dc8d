"""`make bench`: the figures of docs/performance.md, measured on this machine. Only ratios of one run count."""
