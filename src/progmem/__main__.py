"""`python -m progmem` is the command `progmem`."""

import sys

from progmem.cli import main

sys.exit(main())
