# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The Vercel AI SDK: ai_sdk.mjs."""
from support_node import run_program

run_program("ai_sdk.mjs")
