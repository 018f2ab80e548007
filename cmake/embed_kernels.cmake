# Writes OUTPUT, a C++ table of every kernels/*.cl in FOLDER as text. Run with `cmake -DFOLDER=... -DOUTPUT=... -P`.
#
# The first line `#include "name.clh"` (or another kernel's `name.cl`) in a kernel is replaced by that file's text, later
# ones by nothing unless they end with `// each time`, so that each program is one string and an installed package needs
# no source tree.

cmake_minimum_required(VERSION 3.21)

file(GLOB kernels "${FOLDER}/*.cl")
list(SORT kernels)

set(table "")
foreach(path IN LISTS kernels)
  get_filename_component(stem "${path}" NAME_WE)
  file(READ "${path}" text)
  set(seen "")
  while(text MATCHES "#include \"([A-Za-z0-9_]+\\.clh?)\"( *// each time)?")
    set(header "${CMAKE_MATCH_1}")
    set(mark "${CMAKE_MATCH_2}")
    if(NOT EXISTS "${FOLDER}/${header}")
      message(FATAL_ERROR "${path} includes ${header}, which is not in ${FOLDER}")
    endif()
    set(included "")
    if(mark OR NOT header IN_LIST seen)
      list(APPEND seen "${header}")
      file(READ "${FOLDER}/${header}" included)
    endif()
    set(line "#include \"${header}\"${mark}")
    string(FIND "${text}" "${line}" at)
    string(LENGTH "${line}" length)
    math(EXPR end "${at} + ${length}")
    string(SUBSTRING "${text}" 0 ${at} before)
    string(SUBSTRING "${text}" ${end} -1 after)
    string(CONCAT text "${before}" "${included}" "${after}")
  endwhile()
  string(APPEND table "    {\"${stem}\", R\"kvtrie_cl(${text})kvtrie_cl\"},\n")
endforeach()

file(WRITE "${OUTPUT}" "// Made from kernels/*.cl by cmake/embed_kernels.cmake.
#include \"cl/kernel_sources.h\"

namespace kvtrie::cl {

const std::vector<KernelSource>& kernel_sources() {
  static const std::vector<KernelSource> table = {
${table}  };
  return table;
}

}  // namespace kvtrie::cl
")
