# The Python module kvtrie._core from python/bindings/*.cpp, installed into the package folder.
set(PYBIND11_FINDPYTHON ON)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_DIR)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_DIR
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(pybind11 CONFIG REQUIRED)

# Even batches, each in two or three seconds of what every batch takes; the classes of caches, steps and the tree have
# functions of the same names, so they are apart.
set(batch_1 arrays base_class cache_class caches errors explain operands ops ops_recurrent ops_weights)
set(batch_2 convert device encoder inspect instances keys ops_sample path_argument replay token_texts
    tokens)
set(batch_3 clock collector dlpack_import ending gil hybrid module signatures tensor)
set(batch_4 ops_chosen ops_experts recurrent refusals remote_store step_graph trie)
set(batch_5 prefix_cache prefix_cache_stats quotas session session_accept session_rows)
pybind11_add_module(_core MODULE NO_EXTRAS)
foreach(batch RANGE 1 5)
  foreach(stem IN LISTS batch_${batch})
    set(source "${PROJECT_SOURCE_DIR}/python/bindings/${stem}.cpp")
    target_sources(_core PRIVATE "${source}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${batch})
  endforeach()
endforeach()
set(checked "${PROJECT_SOURCE_DIR}/python/bindings/checked_python.h")  # before pybind11
if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
  target_compile_options(_core PRIVATE "SHELL:-include \"${checked}\"")
endif()
target_precompile_headers(_core PRIVATE ${KVTRIE_STANDARD_HEADERS} "${checked}" <pybind11/numpy.h> <pybind11/stl.h>
                          "${PROJECT_SOURCE_DIR}/python/bindings/convert.h" <prefix_cache/prefix_cache.h>)
target_link_libraries(_core PRIVATE kvtrie_replay kvtrie_standalone)
# Conversions of arguments: a call's time is the library's, and compiling is quicker by a third than at -O3.
target_compile_options(_core PRIVATE $<$<CONFIG:Release>:-O1>)
set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
target_link_options(_core PRIVATE "LINKER:--version-script=${exports}")
set(output "${KVTRIE_PYTHON_OUTPUT}")
if(NOT output)
  set(output "${CMAKE_BINARY_DIR}/python")
endif()
set_target_properties(_core PROPERTIES UNITY_BUILD_MODE GROUP LINK_DEPENDS "${exports}" LIBRARY_OUTPUT_DIRECTORY "${output}")
# pybind11's internals are shared by modules that are built with one name of a compiler: ours are our own (base_class.h).
target_compile_definitions(_core PRIVATE KVTRIE_VERSION="${PROJECT_VERSION}" PYBIND11_COMPILER_TYPE="_kvtrie")
install(TARGETS _core LIBRARY DESTINATION kvtrie)
