"""The real scheduler on a virtual clock: what would happen on a machine, before it is bought. Knows no tensor."""
