# The tests of the backward; included by CMakeLists.txt, which defines tn_test_target, tn_arm_program, instruction_sets, the
# libraries test_support and test_oracle.

# ---- cmocka programs --------------------------------------------------------------------------------

add_library(test_grad_support STATIC grad_operands.c grad_case.c)
tn_test_target(test_grad_support)
target_link_libraries(test_grad_support PUBLIC test_support)
add_library(test_grad_oracle STATIC grad_tape.c grad_oracle.c grad_check.c)
tn_test_target(test_grad_oracle)
target_link_libraries(test_grad_oracle PUBLIC test_grad_support test_oracle)

foreach(program test_grad test_grad_ops test_grad_api test_grad_known test_grad_threads)
  add_executable(${program} ${program}.c)
  target_link_libraries(${program} PRIVATE test_grad_oracle)
  tn_test_target(${program})
  foreach(isa ${instruction_sets})
    add_test(NAME ${program}.${isa} COMMAND ${program})
    set_tests_properties(${program}.${isa} PROPERTIES ENVIRONMENT "TN_ISA=${isa}" SKIP_RETURN_CODE 77 TIMEOUT 1200)
  endforeach()
endforeach()

# malloc that fails when told to: calls from the library's objects too, which is why it is linked statically.
target_link_options(test_grad_api PRIVATE -Wl,--wrap=malloc)

# The OpenMP executor; its runtime is unknown to the thread sanitizer.
find_package(OpenMP COMPONENTS C)
target_sources(test_grad_threads PRIVATE grad_openmp.c)
if(OpenMP_C_FOUND AND NOT TN_SANITIZE)
  target_link_libraries(test_grad_threads PRIVATE OpenMP::OpenMP_C)
endif()

# ---- every bit --------------------------------------------------------------------------------------

set(golden_grad "${CMAKE_CURRENT_SOURCE_DIR}/golden_grad.txt")
add_executable(test_grad_bits test_grad_bits.c bits.c)
target_link_libraries(test_grad_bits PRIVATE test_grad_support)
tn_test_target(test_grad_bits)
foreach(isa ${instruction_sets})
  add_test(NAME test_grad_bits.${isa} COMMAND test_grad_bits --isa ${isa} --check "${golden_grad}")
  set_tests_properties(test_grad_bits.${isa} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
endforeach()

if(TN_EMULATE_ARM)
  tn_arm_program(test_grad_bits test_grad_bits.c bits.c grad_operands.c grad_case.c support.c buffer.c case.c case_random.c)
  foreach(isa neon scalar)
    add_test(NAME test_grad_bits.aarch64_${isa}
             COMMAND "${QEMU_AARCH64}" "${CMAKE_CURRENT_BINARY_DIR}/aarch64/test_grad_bits" --isa ${isa} --check
                     "${golden_grad}")
    set_tests_properties(test_grad_bits.aarch64_${isa} PROPERTIES TIMEOUT 1800)
  endforeach()
endif()
if(QEMU_X86_64 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64" AND NOT TN_SANITIZE AND NOT TN_COVERAGE)
  add_test(NAME test_grad_bits.nehalem COMMAND "${QEMU_X86_64}" -cpu Nehalem $<TARGET_FILE:test_grad_bits> --isa scalar
                                               --quick --check "${golden_grad}")
  set_tests_properties(test_grad_bits.nehalem PROPERTIES TIMEOUT 1800)
endif()

# ---- corpus -----------------------------------------------------------------------------------------

file(GLOB grad_corpus CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/corpus/grad/*")
add_executable(fuzz_grad fuzz_grad.c fuzz_main.c)
target_link_libraries(fuzz_grad PRIVATE test_grad_support)
tn_test_target(fuzz_grad)
add_test(NAME corpus.grad COMMAND fuzz_grad ${grad_corpus})

# ---- the example that trains ------------------------------------------------------------------------

if(TN_BUILD_EXAMPLES)
  if(NOT TARGET example_train_mlp)
    add_executable(example_train_mlp "${PROJECT_SOURCE_DIR}/examples/train_mlp.c")
    set_target_properties(example_train_mlp PROPERTIES OUTPUT_NAME train_mlp
                          RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
    target_link_libraries(example_train_mlp PRIVATE truenorm_flags truenorm m)
  endif()
  if(OpenMP_C_FOUND AND NOT TN_SANITIZE)
    target_link_libraries(example_train_mlp PRIVATE OpenMP::OpenMP_C)
  endif()
  add_test(NAME example_train_mlp
           COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/test_train_mlp.sh" $<TARGET_FILE:example_train_mlp>
                   "${PROJECT_SOURCE_DIR}/examples/data/digits.npy" ${instruction_sets})
endif()
