"""Base layers: one module per kind of base."""
