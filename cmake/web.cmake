# SPDX-License-Identifier: Apache-2.0
# The files of web/, and docs/openapi.json, as one C file of the api room (src/api/page.h), so that the server needs nothing beside its
# executable. Used twice: included by CMakeLists.txt it says when the C file is made; as `cmake -DFILES= -DOUT= -P web.cmake` it makes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  file(GLOB web_files CONFIGURE_DEPENDS web/*.html web/*.css web/*.js web/*.svg docs/openapi.json)
  set(web_source ${CMAKE_CURRENT_BINARY_DIR}/page_files.c)
  add_custom_command(
    OUTPUT ${web_source}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${web_files}" -DOUT=${web_source} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${web_files} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "embedding web/"
    VERBATIM)
  target_sources(troika_api PRIVATE ${web_source})
  return()
endif()

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_json "application/json")

# An ETag is 16 digits of the content's hash. Behind the content stands a zero, so that a debugger shows text as text.
set(arrays "")
set(rows "")
foreach(file IN LISTS FILES)
  file(READ ${file} hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 tag)
  string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  get_filename_component(path ${file} NAME)
  string(MAKE_C_IDENTIFIER ${path} name)
  string(REGEX REPLACE ".*[.]" "" ending ${path})
  string(REGEX REPLACE "^index[.]html$" "" path ${path})
  string(APPEND arrays "static const unsigned char ${name}[] = {\n    ${bytes}0};\n")
  string(APPEND rows "    {\"/${path}\", \"${type_${ending}}\", {(const char *)${name}, sizeof ${name} - 1}, \"\\\"${tag}\\\"\"},\n")
endforeach()
file(WRITE ${OUT} "/* SPDX-License-Identifier: Apache-2.0 */\n/* Made from web/ by cmake/web.cmake. */\n#include \"api/page.h\"\n\n${arrays}
const api_page api_page_files[] = {\n${rows}};\nconst size_t api_page_count = sizeof api_page_files / sizeof *api_page_files;\n")
