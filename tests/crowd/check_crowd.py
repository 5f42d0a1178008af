# SPDX-License-Identifier: Apache-2.0
# ctest: slow, serial, tsan
"""One minute of crowd.py: 200 clients. Bounds on time and memory only where the build is optimised and has no sanitizer."""
import support_crowd

support_crowd.run(60)
