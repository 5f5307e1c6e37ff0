"""python -m grash"""

import sys

from grash.cli import main

if __name__ == "__main__":
    sys.exit(main())
