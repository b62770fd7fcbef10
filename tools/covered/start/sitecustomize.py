"""Read by every interpreter of a measured run (it stands on PYTHONPATH): children are started through the measured interpreter.

The collector's interpreter leaves `site` out (-S), and with it the hook of coverage.py; tools/covered/measuring.py says what stands in for
it. It changes nothing else, and nothing at all outside a measured run. Rejected: a switch in the product, which would then run otherwise
when it is measured.
"""

import os
import sys

if measured := os.environ.get("COVERED_INTERPRETER"):
    sys.executable = measured
