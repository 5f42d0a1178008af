# SPDX-License-Identifier: Apache-2.0
# ctest: long, serial
"""Ten minutes of crowd.py: long enough for what the server gives up after a minute."""
import support_crowd

support_crowd.run(600)
