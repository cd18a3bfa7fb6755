"""Attack kvscope: `python -m tests.attack --help`."""

import sys

from tests.attack.runner import main

if __name__ == "__main__":
    sys.exit(main())
