# SPDX-License-Identifier: Apache-2.0
# troika_rust: the Rust static library beside src/text (chat templates and grammars), built by cargo.
#
# cargo compiles once for all presets, into build/rust, because the dependencies take minutes and depend on none of our C flags (cargo's
# own lock keeps two presets apart). Each preset takes its own copy of the archive, so that ninja sees one output with one date.
set(TROIKA_CARGO "" CACHE STRING "cargo >= 1.87 (default: the first one found)")
set(TROIKA_CARGO_FLAGS "" CACHE STRING "more arguments for cargo build, e.g. --offline")
set(rust_crate ${CMAKE_CURRENT_SOURCE_DIR}/src/text/rust)
set(rust_folder ${CMAKE_CURRENT_SOURCE_DIR}/build/rust)
set(rust_built ${rust_folder}/release/libtroika_text_rs.a)
set(rust_archive ${CMAKE_CURRENT_BINARY_DIR}/libtroika_text_rs.a)

file(GLOB_RECURSE rust_sources CONFIGURE_DEPENDS ${rust_crate}/src/*.rs ${rust_crate}/Cargo.toml
     ${rust_crate}/Cargo.lock)
if(NOT rust_sources)
  message(STATUS "troika_rust: no crate in ${rust_crate} yet")
  add_library(troika_rust INTERFACE)
  return()
endif()

if(TROIKA_CARGO)
  set(rust_cargo ${TROIKA_CARGO})
else()
  find_program(TROIKA_CARGO_FOUND cargo HINTS $ENV{HOME}/.cargo/bin)
  if(NOT TROIKA_CARGO_FOUND)
    message(FATAL_ERROR "cargo is missing: install cargo >= 1.87 (on Debian 12: apt install cargo-web) "
                        "or name it with -DTROIKA_CARGO=PATH")
  endif()
  set(rust_cargo ${TROIKA_CARGO_FOUND})
endif()

separate_arguments(rust_flags UNIX_COMMAND "${TROIKA_CARGO_FLAGS}")
add_custom_command(
  OUTPUT ${rust_archive}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${rust_folder} ${rust_cargo} build --release --locked ${rust_flags}
          --manifest-path ${rust_crate}/Cargo.toml
  COMMAND ${CMAKE_COMMAND} -E copy ${rust_built} ${rust_archive}
  DEPENDS ${rust_sources}
  COMMENT "cargo build (chat templates, grammars)"
  VERBATIM)
add_custom_target(troika_rust_build DEPENDS ${rust_archive})
add_library(troika_rust STATIC IMPORTED GLOBAL)
set_target_properties(troika_rust PROPERTIES IMPORTED_LOCATION ${rust_archive})
# What rustc --print native-static-libs asks for.
target_link_libraries(troika_rust INTERFACE -lgcc_s -lutil -lrt -lpthread -lm -ldl)
add_dependencies(troika_rust troika_rust_build)
