"""`python -m accelerator`."""

import sys

from accelerator.command import main

if __name__ == "__main__":
    sys.exit(main())
