# SPDX-License-Identifier: Apache-2.0
# Writes OUT with the commit that is being built, for records of measurements; run at every build, changes the file only when it must.
execute_process(COMMAND git describe --always --dirty=-changed --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include \"cli/bench.h\"\nconst char bench_commit[] = \"${commit}\";\n")
