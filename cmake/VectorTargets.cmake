# Which vector targets the kernels are compiled for. Each takes about as long as another, and a build for one of them needs
# a CPU that has it.
set(HEADGATE_VECTOR_TARGETS all CACHE STRING
    "Vector targets to compile: all, or on x86-64 one of them: avx3 (AVX-512), avx2, native (the best of this machine)")
set_property(CACHE HEADGATE_VECTOR_TARGETS PROPERTY STRINGS all native avx3 avx2)

# Best first. Of a target: the -march that makes it the one that Highway compiles statically, and the compiler's macros
# that say whether this machine has it.
set(headgate_x86_targets avx3 avx2)
set(headgate_march_avx3 x86-64-v4)
set(headgate_march_avx2 x86-64-v3)
set(headgate_macros_avx3 AVX512F AVX512BW AVX512CD AVX512DQ AVX512VL AES PCLMUL)
set(headgate_macros_avx2 AVX2 FMA F16C BMI2 AES PCLMUL)

# headgate_best_target(VARIABLE): the best target of this machine, or all if it has none of them.
function(headgate_best_target variable)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros ERROR_QUIET)
  foreach(target IN LISTS headgate_x86_targets)
    set(has_all TRUE)
    foreach(macro IN LISTS headgate_macros_${target})
      if(NOT macros MATCHES "#define __${macro}__ ")
        set(has_all FALSE)
      endif()
    endforeach()
    if(has_all)
      set(${variable} ${target} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${variable} all PARENT_SCOPE)
endfunction()

get_property(choices CACHE HEADGATE_VECTOR_TARGETS PROPERTY STRINGS)
if(NOT HEADGATE_VECTOR_TARGETS IN_LIST choices)
  list(JOIN choices ", " choices)
  message(FATAL_ERROR "HEADGATE_VECTOR_TARGETS must be one of ${choices}, got '${HEADGATE_VECTOR_TARGETS}'")
endif()
set(headgate_vector_target ${HEADGATE_VECTOR_TARGETS})
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(headgate_vector_target all)
elseif(headgate_vector_target STREQUAL native)
  headgate_best_target(headgate_vector_target)
endif()

# headgate_vector_flags(TARGET): of a target that links Highway, after its sources are known. Kernels, which include
# foreach_target.h, need the CPU. Other files do not, so that they can tell a CPU that it lacks the target.
function(headgate_vector_flags name)
  if(headgate_vector_target STREQUAL all)
    return()
  endif()
  string(TOUPPER ${headgate_vector_target} bit)
  target_compile_definitions(${name} PRIVATE HWY_COMPILE_ONLY_STATIC HWY_BASELINE_TARGETS=HWY_${bit})
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS sources)
    file(STRINGS ${source} kernel REGEX "hwy/foreach_target\\.h" LIMIT_COUNT 1)
    if(kernel)
      # A product and a sum in plain C++ stay two roundings, as in the other builds. Clang warns of Highway's target
      # attributes where no function follows.
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
                   -march=${headgate_march_${headgate_vector_target}} -maes -mpclmul -ffp-contract=off
                   $<$<CXX_COMPILER_ID:Clang>:-Wno-pragma-clang-attribute>)
    endif()
  endforeach()
endfunction()
