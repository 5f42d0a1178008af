# SPDX-License-Identifier: Apache-2.0
"""crowd.py as a test of the build in TROIKA_BUILD."""
import os
import pathlib
import re
import sys

import crowd


def is_plain():
    """The build is optimised and has no sanitizer: bounds on time and memory mean something."""
    cache = (pathlib.Path(os.environ["TROIKA_BUILD"]) / "CMakeCache.txt").read_text()
    return bool(re.search(r"^TROIKA_SANITIZE:\w+=$", cache, re.M) and re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", cache, re.M))


def run(seconds):
    sys.exit(crowd.main(["--seconds", str(seconds)] + ([] if is_plain() else ["--light"])))
