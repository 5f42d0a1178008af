# SPDX-License-Identifier: Apache-2.0
# src/kernel/x86/<family>_<level>.c is compiled with that level's flags; nothing else in the tree is.
set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(flags_avxvnni ${flags_avx2} -mavxvnni)
set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mfma -mf16c -mbmi2)
set(flags_avx512vnni ${flags_avx512} -mavx512vnni)
set(flags_avx512bf16 ${flags_avx512vnni} -mavx512bf16)
# Every intrinsic's load would be checked for null, alignment and size: half of the sanitizer build's time, for pointers that the
# AddressSanitizer sees anyway.
set(x86_checks "")
if(TROIKA_SANITIZE)
  set(x86_checks -fno-sanitize=null,alignment,object-size,pointer-overflow)
endif()
foreach(level avx2 avxvnni avx512 avx512vnni avx512bf16)
  file(GLOB files CONFIGURE_DEPENDS src/kernel/x86/*_${level}.c)
  if(files)
    set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${flags_${level}};${x86_checks}")
  endif()
endforeach()
