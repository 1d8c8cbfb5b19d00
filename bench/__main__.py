"""`python -m bench` is `python -m bench.coordination`."""

import sys

from bench.coordination import main

if __name__ == "__main__":
    sys.exit(main())
