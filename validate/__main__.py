"""`python PATH/validate --expect FILE`: the folder is run as a program, wherever it is mounted."""

import importlib
import os
import sys

# The folder's parent leads sys.path only until the package is found: nothing beside it may shadow the image's modules.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  no imports yet
importlib.import_module("validate")
del sys.path[0]

if __name__ == "__main__":
    sys.exit(importlib.import_module("validate.cli").main(sys.argv[1:]))
