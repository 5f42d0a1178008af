/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
int cli_top(const cli_settings *s) { (void)s; return CLI_USAGE; } /* being written */
