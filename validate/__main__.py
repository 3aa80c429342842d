"""`python PATH/validate --expect FILE`: the folder is run as a program, wherever it is mounted."""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  nothing imported before sys.path is right

# The folder's parent leads sys.path only while the package is found: nothing beside it may shadow the image's modules.
sys.path[0] = os.path.dirname(FOLDER)  # noqa: PTH120

del sys.path[0]

from validate.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
