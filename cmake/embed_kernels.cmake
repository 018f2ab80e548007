# Writes OUTPUT, a C++ table of every kernels/*.cl in FOLDER as text. Run with `cmake -DFOLDER=... -DOUTPUT=... -P`.
#
# A line `#include "name.clh"` (or another kernel's `name.cl`) in a kernel is replaced by that file's text, so that each program is one string and an
# installed package needs no source tree.

file(GLOB kernels "${FOLDER}/*.cl")
list(SORT kernels)

set(table "")
foreach(path IN LISTS kernels)
  get_filename_component(stem "${path}" NAME_WE)
  file(READ "${path}" text)
  foreach(depth RANGE 32)
    if(NOT text MATCHES "#include \"([A-Za-z0-9_]+\\.clh?)\"")
      break()
    endif()
    set(header "${CMAKE_MATCH_1}")
    if(NOT EXISTS "${FOLDER}/${header}")
      message(FATAL_ERROR "${path} includes ${header}, which is not in ${FOLDER}")
    endif()
    if(depth EQUAL 32)
      message(FATAL_ERROR "${path}: more than 32 includes; is ${header} including itself?")
    endif()
    file(READ "${FOLDER}/${header}" included)
    string(REPLACE "#include \"${header}\"" "${included}" text "${text}")
  endforeach()
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
