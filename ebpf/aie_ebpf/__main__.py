"""`python -m aie_ebpf`: what the agent starts."""

import sys

from aie_ebpf.child import main

if __name__ == "__main__":
    sys.exit(main())
