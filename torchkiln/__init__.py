"""Builds, proves and publishes families of PyTorch container images."""

__version__ = "0.1.0"
