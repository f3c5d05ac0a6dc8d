"""One transaction a file: a sync function with `tx` first, the same code for every database.

Each takes a command with an operation id and may be driven again after an unknown commit: it then finds what it did the
first time. Each raises errors of errors.py before it has written anything, or writes all of its effect.
"""
