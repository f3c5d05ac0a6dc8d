"""Domain decisions: pure functions and values. No I/O, no clock, no randomness, no third party."""
