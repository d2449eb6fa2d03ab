"""`python -m rlx` is the `rlx` command."""

import sys

from rlx.cli import main

if __name__ == "__main__":
    sys.exit(main())
