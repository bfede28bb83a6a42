# One helper for each kind of target; every target of ours goes through here.

add_library(lamina_build_flags INTERFACE)
target_include_directories(lamina_build_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(
  lamina_build_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Wshadow;-Wno-psabi>"
            $<$<COMPILE_LANGUAGE:CXX>:-Wconversion> $<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-conversion>
            $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<BOOL:${LAMINA_WERROR}>>:-Werror>)
# No contraction of a*b+c: bits must not depend on what the compiler chose to fuse. Kernels that want a
# fused multiply-add say so.
target_compile_options(lamina_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# The same for nvcc, whose defaults for division, square root and subnormals are IEEE's.
target_compile_options(
  lamina_build_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-ffp-contract=off>"
            $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${LAMINA_WERROR}>>:-Werror=all-warnings>)

# lamina_cc_library(NAME x [HDRS ...] [SRCS ...] [DEPS [PUBLIC ...] [PRIVATE ...]])
# Creates lamina_x with the alias lamina::x. DEPS without a keyword are PUBLIC.
function(lamina_cc_library)
  cmake_parse_arguments(ARG "" "NAME" "HDRS;SRCS;DEPS" ${ARGN})
  cmake_parse_arguments(DEP "" "" "PUBLIC;PRIVATE" ${ARG_DEPS})
  list(APPEND DEP_PUBLIC ${DEP_UNPARSED_ARGUMENTS})
  set(target lamina_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(${target} PUBLIC ${DEP_PUBLIC} PRIVATE ${DEP_PRIVATE} lamina_build_flags)
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${DEP_PUBLIC})
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR})
  endif()
  add_library(lamina::${ARG_NAME} ALIAS ${target})
  list(TRANSFORM ARG_HDRS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY LAMINA_HEADERS ${ARG_HDRS})
endfunction()

# lamina_cc_binary(NAME x [OUTPUT file] SRCS ... DEPS ...)
function(lamina_cc_binary)
  cmake_parse_arguments(ARG "" "NAME;OUTPUT" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} lamina_build_flags)
  if(ARG_OUTPUT)
    set_target_properties(${ARG_NAME} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT})
  endif()
endfunction()

# lamina_compile_fast(x)
# For targets whose own code is never waited for: with -O1 a third of the time of a release build's
# compiler goes.
function(lamina_compile_fast target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
endfunction()

# What a test takes of CTest's --parallel: two, or one where it mostly waits, so that two of those run in the place of another.
set(LAMINA_TEST_PROCESSORS 2)
set(LAMINA_WAITING_TEST_PROCESSORS 1)

# lamina_cc_test(NAME x SRCS ... DEPS ... [LABELS unit|conformance|sim|integration|style ...]
#                [TIMEOUT seconds] [SHARDS number] [COST seconds])
# One CTest entry per file; with SHARDS several, NAME.0 and on, which share its cases out and run side by side. Those of a higher COST
# begin earlier, so that none of the long ones runs by itself at the end. Committed data is found by tests/support/source_path.h.
function(lamina_cc_test)
  if(NOT LAMINA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT;SHARDS;COST" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_sources(${ARG_NAME} PRIVATE $<TARGET_OBJECTS:lamina_test_folder>)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} lamina::source_path GTest::gmock GTest::gtest
                                            GTest::gtest_main lamina_build_flags)
  lamina_compile_fast(${ARG_NAME})
  lamina_use_test_headers(${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  set(environment "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan_suppressions.txt")
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
    # UCX puts a madvise() of its own in the place of the C library's. It takes a lock when a thread ends,
    # after the detector has forgotten the thread, and the detector crashes.
    list(APPEND environment UCX_MEM_EVENTS=n UCX_MEM_MMAP_HOOK_MODE=none)
  endif()
  if(NOT ARG_SHARDS)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST}
                                                PROCESSORS ${LAMINA_TEST_PROCESSORS} ENVIRONMENT "${environment}")
    return()
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${ARG_NAME}.${shard} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set(of_shard ${environment} GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${shard})
    set_tests_properties(${ARG_NAME}.${shard} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST}
                                                         PROCESSORS ${LAMINA_TEST_PROCESSORS} ENVIRONMENT "${of_shard}")
  endforeach()
endfunction()

# lamina_gpu_test(NAME x SRCS ... DEPS ...)
# A test that needs a CUDA device, with the label gpu: one CTest entry, which without a device says so
# and counts as skipped. Its build is part of the target lamina_gpu_tests.
function(lamina_gpu_test)
  if(NOT LAMINA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS} ${CMAKE_SOURCE_DIR}/tests/support/gpu_test_main.cc)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest lamina_build_flags)
  # No device code is linked across files, so the C++ compiler links; only libraries that are used
  # count, since these programs travel.
  target_link_options(${ARG_NAME} PRIVATE LINKER:--as-needed)
  set_target_properties(${ARG_NAME} PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY
                                                                   ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
  if(NOT TARGET lamina_gpu_tests)
    add_custom_target(lamina_gpu_tests)
  endif()
  add_dependencies(lamina_gpu_tests ${ARG_NAME})
endfunction()
