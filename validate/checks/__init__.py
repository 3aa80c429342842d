"""One file, one check."""
