"""What is built: matrix.yaml read into targets, and held against the facts."""
