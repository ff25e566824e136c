"""`python -m aie_top`."""

import sys

from aie_top.cli import main

sys.exit(main())
