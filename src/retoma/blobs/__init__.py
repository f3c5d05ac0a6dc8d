"""Files that the store refers to: models by their digest, snapshots by their task. Content first, row last."""
