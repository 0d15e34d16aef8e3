# Compiler warnings and the like, linked privately by every target of this project.
add_library(reshard_warnings INTERFACE)
target_compile_options(reshard_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                                  -Woverloaded-virtual -Wimplicit-fallthrough)
# g++ 12 reports members of moved-from variants, vectors and joined strings (GCC bug 105651) that it
# cannot follow.
target_compile_options(reshard_warnings INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
                           -Wno-stringop-overread -Wno-restrict>)

# __FILE__ below the source folder: what is installed does not name the place of the build.
target_compile_options(reshard_warnings INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

# The annotations of base/mutex.h.
target_compile_options(reshard_warnings INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

# reshard_layer(NAME SOURCES... HEADERS...): one OBJECT library per layer; public headers are
# collected in the global property RESHARD_HEADERS for the installed library.
function(reshard_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS" ${ARGN})
  add_library(reshard_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(reshard_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(reshard_${name} PUBLIC tl::expected Threads::Threads
                                        PRIVATE fmt::fmt reshard_warnings)
  set(headers ${ARG_HEADERS})
  list(TRANSFORM headers PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY RESHARD_HEADERS ${headers})
  set_property(GLOBAL APPEND PROPERTY RESHARD_LAYERS reshard_${name})
endfunction()

# reshard_test(LAYER SOURCES...): the one GoogleTest executable of a layer, label "unit".
function(reshard_test layer)
  add_executable(reshard_${layer}_test ${ARGN})
  target_link_libraries(reshard_${layer}_test PRIVATE reshard::reshard reshard_test_support
                        GTest::gmock GTest::gtest_main fmt::fmt reshard_warnings)
  # Tests are compiled more often than they run.
  target_compile_options(reshard_${layer}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  # A third of the time of a test's compilation. Sources include what they need all the same.
  list(LENGTH ARGN count)
  if(RESHARD_PCH AND count GREATER 3)
    target_precompile_headers(reshard_${layer}_test PRIVATE
      <algorithm> <array> <functional> <map> <memory> <optional> <span> <string> <vector>
      <fmt/format.h> <tl/expected.hpp> <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  gtest_discover_tests(reshard_${layer}_test TEST_PREFIX ${layer}. PROPERTIES LABELS unit
                       DISCOVERY_TIMEOUT 60)
endfunction()
