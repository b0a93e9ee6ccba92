# LLVM's own examples of ORC, unchanged, with packs below: Debian has them in llvm-14-examples. `examples.h` is put
# before each; a program whose output lacks what is expected has failed.
set(LLVM_EXAMPLES /usr/share/doc/llvm-${LLVM_VERSION_MAJOR}-examples/examples CACHE PATH "LLVM's examples")
if(NOT EXISTS ${LLVM_EXAMPLES}/OrcV2Examples)
  message(STATUS "LLVM's examples are not tested: there is no ${LLVM_EXAMPLES} (package llvm-14-examples)")
  return()
endif()

set(examples ${CMAKE_CURRENT_BINARY_DIR}/llvm-examples)
file(COPY ${LLVM_EXAMPLES}/ DESTINATION ${examples})
# Debian packs larger files.
file(GLOB_RECURSE packed ${examples}/*.gz)
foreach(file ${packed})
  string(REGEX REPLACE "\\.gz$" "" unpacked ${file})
  # Once: what is written anew is compiled anew.
  if(${file} IS_NEWER_THAN ${unpacked})
    execute_process(COMMAND gzip -dc ${file} OUTPUT_FILE ${unpacked})
  endif()
endforeach()

# Builds an example, and runs it with `input`, which must make it print `expected`.
function(test_example name source input expected)
  add_executable(${name} ${examples}/${source})
  target_compile_features(${name} PRIVATE cxx_std_14)
  target_compile_options(${name} PRIVATE -w -include ${CMAKE_CURRENT_SOURCE_DIR}/tests/examples.h)
  target_link_libraries(${name} PRIVATE palimpsest_orc)
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  add_test(NAME ${name} COMMAND sh -c "printf '${input}' | $<TARGET_FILE:${name}> 2>&1")
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}.*in packs: [0-9]+ objects")
endfunction()

test_example(HowToUseLLJIT HowToUseLLJIT/HowToUseLLJIT.cpp "" "add1\\(42\\) = 43")
foreach(name LLJITWithCustomObjectLinkingLayer LLJITDumpObjects LLJITWithOptimizingIRTransform LLJITWithObjectCache
        LLJITWithObjectLinkingLayerPlugin LLJITWithLazyReexports LLJITWithInitializers)
  set(expected "add1\\(42\\) = 43")
  if(name STREQUAL "LLJITWithOptimizingIRTransform")
    set(expected "entry\\(\\) = 120")
  elseif(name STREQUAL "LLJITWithObjectLinkingLayerPlugin")
    set(expected "entry\\(\\) = 7")
  elseif(name STREQUAL "LLJITWithLazyReexports")
    set(expected "entry\\(1\\) = 1")
  elseif(name STREQUAL "LLJITWithInitializers")
    set(expected "InitializerRanFlag = 1.*DeinitializersRunFlag = 1")
  endif()
  test_example(${name} OrcV2Examples/${name}/${name}.cpp "" "${expected}")
endforeach()
foreach(chapter 4 5 6 7)
  # Each expression is an object of its own, which is removed when it has run.
  set(program "def twice(x) x+x;\\ntwice(21);\\ndef thrice(x) twice(x)+x;\\nthrice(21);\\n")
  test_example(kaleidoscope${chapter} Kaleidoscope/Chapter${chapter}/toy.cpp "${program}" "to 42.*to 63")
endforeach()
