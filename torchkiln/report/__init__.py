"""Presentation only: values → what people read."""
