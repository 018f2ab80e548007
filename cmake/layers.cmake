# One target per layer, whose include path holds only the layers it may see: a wrong include does not compile.
#
#   base <- cl <- tensor <- ops <- cache <- standalone
#   base <- trie    base <- store
#   cache, trie, store <- tree <- plan <- tiers <- session <- paging <- exchange <- prefix_cache <- replay
#
# Includes are written "layer/file.h". Each layer is reached through its own folder <build>/layers/<layer>, which holds
# one link <layer> -> csrc/<layer>; csrc itself is on nobody's include path.

# What most sources include.
set(KVTRIE_STANDARD_HEADERS
    <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <optional> <set>
    <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>)

set(KVTRIE_LAYERS base cl tensor ops cache standalone trie store prefix_cache replay)
# What prefix_cache stands on alone; tested with it.
set(KVTRIE_PREFIX_CACHE_LAYERS tree plan tiers session paging exchange)

# kvtrie_layer(<name> [lower layers it sees ...]) defines kvtrie_<name> from csrc/<name>/*.cpp; header-only layers become
# INTERFACE targets.
function(kvtrie_layer name)
  set(view "${CMAKE_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${view}")
  if(NOT IS_SYMLINK "${view}/${name}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/csrc/${name}" "${view}/${name}" SYMBOLIC)
  endif()

  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/${name}/*.cpp")
  list(TRANSFORM ARGN PREPEND kvtrie_ OUTPUT_VARIABLE lower)
  if(sources)
    add_library(kvtrie_${name} STATIC ${sources})
    target_include_directories(kvtrie_${name} PUBLIC "${view}")
    target_link_libraries(kvtrie_${name} PUBLIC ${lower})
    if(name STREQUAL "base")
      target_precompile_headers(kvtrie_base PRIVATE ${KVTRIE_STANDARD_HEADERS})
    else()
      target_precompile_headers(kvtrie_${name} REUSE_FROM kvtrie_base)
    endif()
  else()
    add_library(kvtrie_${name} INTERFACE)
    target_include_directories(kvtrie_${name} INTERFACE "${view}")
    target_link_libraries(kvtrie_${name} INTERFACE ${lower})
  endif()
endfunction()

# The layer whose name begins `stem` (longest match), or prefix_cache, which sees all: what a test or bench links.
function(kvtrie_layer_of stem out)
  set(best "")
  foreach(layer IN LISTS KVTRIE_LAYERS)
    string(LENGTH "${layer}" length)
    string(LENGTH "${best}" best_length)
    if("${stem}_" MATCHES "^${layer}_" AND length GREATER best_length)
      set(best "${layer}")
    endif()
  endforeach()
  if(NOT best)
    set(best prefix_cache)
  endif()
  set(${out} "${best}" PARENT_SCOPE)
endfunction()
