"""One module per kind of layer: what a plan names → a blob in the store."""
