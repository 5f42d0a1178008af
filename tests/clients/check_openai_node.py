# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The official openai client for Node: openai.mjs."""
from support_node import run_program

run_program("openai.mjs")
