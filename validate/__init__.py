"""The validation suite: runs inside an image with the standard library and what the image holds."""
