"""Python runs this in the engine of the fault lab, and in no other: the lab puts this directory into its PYTHONPATH."""

import os

if "AIE_FAULTLAB_SOCKET" in os.environ:
    import breakage

    # What the engine starts itself shall be as it always is.
    breakage.listen(os.environ.pop("AIE_FAULTLAB_SOCKET"))
