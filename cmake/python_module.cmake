# The Python module kvtrie._core from python/bindings/*.cpp, installed into the package folder.
set(PYBIND11_FINDPYTHON ON)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_DIR)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_DIR
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(pybind11 CONFIG REQUIRED)

file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/bindings/*.cpp")
if(binding_sources)
  pybind11_add_module(_core MODULE NO_EXTRAS ${binding_sources})
  target_link_libraries(_core PRIVATE kvtrie_prefix_cache kvtrie_standalone)
  # The classes of caches, steps and the tree have methods of the same names, so they are apart.
  kvtrie_units(_core "caches ops ops_recurrent ops_weights cache_class operands" "encoder device replay convert errors arrays module"
               "hybrid tensor gil inspect" "recurrent trie remote_store step_graph"
               "session prefix_cache prefix_cache_stats")
  # Conversions of arguments: a call's time is the library's, and compiling is quicker by a third than at -O3.
  target_compile_options(_core PRIVATE $<$<CONFIG:Release>:-O1>)
  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_options(_core PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(_core PROPERTIES LINK_DEPENDS "${exports}")
  target_compile_definitions(_core PRIVATE KVTRIE_VERSION="${PROJECT_VERSION}")
  set(output "${KVTRIE_PYTHON_OUTPUT}")
  if(NOT output)
    set(output "${CMAKE_BINARY_DIR}/python")
  endif()
  set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${output}")
  install(TARGETS _core LIBRARY DESTINATION kvtrie)
endif()
