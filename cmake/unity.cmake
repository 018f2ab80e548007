# Sources are compiled several at a time: most of a file's seconds go into the headers that its neighbours include, too.
#
# kvtrie_unity(<target> [BATCH n]) puts those whose names begin with the same word (causal_*.cpp) into one unit where
# there are at least four, and the others, in alphabetical order, into units of n (8). Within a unit, names in anonymous
# namespaces must differ. That each file compiles alone, with its own includes, is what `./dev lint` checks, in a
# build folder without units (KVTRIE_UNITY=OFF).
option(KVTRIE_UNITY "Compile several sources as one" ON)

function(kvtrie_unity target)
  if(NOT KVTRIE_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 unity "" "BATCH" "")
  if(NOT unity_BATCH)
    set(unity_BATCH 8)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)

  set(words "")
  foreach(path IN LISTS sources)
    get_filename_component(stem "${path}" NAME_WE)
    string(REGEX REPLACE "_.*" "" word "${stem}")
    list(APPEND words "${word}")
    list(APPEND of_${word} "${path}")
  endforeach()
  list(REMOVE_DUPLICATES words)

  set(others "")
  foreach(word IN LISTS words)
    list(LENGTH of_${word} count)
    if(count GREATER_EQUAL 4)
      set_source_files_properties(${of_${word}} PROPERTIES UNITY_GROUP "${word}")
    else()
      list(APPEND others ${of_${word}})
    endif()
  endforeach()
  set(number 0)
  foreach(path IN LISTS others)
    math(EXPR unit "${number} / ${unity_BATCH}")
    set_source_files_properties("${path}" PROPERTIES UNITY_GROUP "others_${unit}")
    math(EXPR number "${number} + 1")
  endforeach()
  # A class with a member of a type from an anonymous namespace is as private in a unit as it is in its own file.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
