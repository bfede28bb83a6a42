# lamina_use_test_headers(target): headers that nearly every test includes are compiled once for all tests, which saves 2 of 5
# seconds of each file's compiler. All are compiled with -pthread, as those have to be that use gRPC.
#
# All of them come from packages: a change of ours never compiles them anew.
option(LAMINA_PRECOMPILE "Precompile the headers of packages that all tests include (GCC)" ON)

set(LAMINA_TEST_HEADERS
    <gmock/gmock.h> <gtest/gtest.h>
    <algorithm> <array> <atomic> <cstddef> <cstdint> <functional> <map> <memory> <optional> <string> <thread> <utility> <vector>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/string_view.h> <absl/types/span.h>)

# ccache knows a precompiled header by this text in place of its bytes, which name the build folder.
function(lamina_name_test_headers gch)
  file(GENERATE OUTPUT ${gch}.sum CONTENT
       "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} gtest ${GTest_VERSION} absl ${absl_VERSION} ${CMAKE_CXX_FLAGS} $<CONFIG> ${LAMINA_TEST_HEADERS}\n")
endfunction()

# Call once, in the folder of all tests.
function(lamina_add_test_headers)
  if(NOT LAMINA_PRECOMPILE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cc "")
  add_library(lamina_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
  target_link_libraries(lamina_test_headers PRIVATE GTest::gmock GTest::gtest absl::statusor absl::strings absl::span lamina_build_flags)
  target_compile_options(lamina_test_headers PRIVATE -pthread)
  lamina_compile_fast(lamina_test_headers)
  target_precompile_headers(lamina_test_headers PRIVATE ${LAMINA_TEST_HEADERS})
  lamina_name_test_headers(${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/lamina_test_headers.dir/cmake_pch.hxx.gch)
endfunction()

function(lamina_use_test_headers target)
  if(TARGET lamina_test_headers)
    target_precompile_headers(${target} REUSE_FROM lamina_test_headers)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess;-pthread>")
  endif()
endfunction()
