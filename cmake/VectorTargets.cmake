# Chooses the vector targets for which kernels are compiled. Each one adds about the same time to a build. A build for a
# single target needs a CPU that has it.

# Targets of x86-64, best first. Each has the -march with which Highway compiles it statically, and the compiler's
# macros that show whether this machine has it.
set(headgate_x86_targets avx3 avx2)
set(headgate_march_avx3 x86-64-v4)
set(headgate_march_avx2 x86-64-v3)
set(headgate_macros_avx3 AVX512F AVX512BW AVX512CD AVX512DQ AVX512VL AES PCLMUL)
set(headgate_macros_avx2 AVX2 FMA F16C BMI2 AES PCLMUL)

set(HEADGATE_VECTOR_TARGETS all CACHE STRING
    "Vector targets to compile: all, or on x86-64 one of them: avx3 (AVX-512), avx2, native (the best of this machine)")
set(headgate_choices all native ${headgate_x86_targets})
set_property(CACHE HEADGATE_VECTOR_TARGETS PROPERTY STRINGS ${headgate_choices})
if(NOT HEADGATE_VECTOR_TARGETS IN_LIST headgate_choices)
  list(JOIN headgate_choices ", " headgate_choices)
  message(FATAL_ERROR "HEADGATE_VECTOR_TARGETS must be one of ${headgate_choices}, got '${HEADGATE_VECTOR_TARGETS}'")
endif()

# headgate_native_target: the best target of this machine, or `all` if it has none of them, as in a cross build.
set(headgate_native_target all)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
                OUTPUT_VARIABLE headgate_macros ERROR_QUIET)
foreach(target IN LISTS headgate_x86_targets)
  set(has_all TRUE)
  foreach(macro IN LISTS headgate_macros_${target})
    if(NOT headgate_macros MATCHES "#define __${macro}__ ")
      set(has_all FALSE)
    endif()
  endforeach()
  if(has_all)
    set(headgate_native_target ${target})
    break()
  endif()
endforeach()

set(headgate_vector_target ${HEADGATE_VECTOR_TARGETS})
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(headgate_vector_target all)
elseif(headgate_vector_target STREQUAL native)
  set(headgate_vector_target ${headgate_native_target})
endif()

# headgate_vector_flags(TARGET): sets the flags of kernels, which are files that include foreach_target.h. Call it after
# the sources and libraries of TARGET are known. It does nothing if TARGET does not link Highway itself.
#
# -ffp-contract=off rounds a product and its sum with another number separately, as the source says. Otherwise GCC fuses
# them where it can, in one kernel and not in another, although kernels promise each other the same bits.
#
# If there is a single vector target, kernels get its -march. Other files run on every CPU, so that they can report that
# a CPU lacks the vector target.
function(headgate_vector_flags name)
  get_target_property(libraries ${name} LINK_LIBRARIES)
  if(NOT "hwy::hwy" IN_LIST libraries)
    return()
  endif()
  set(options -ffp-contract=off)
  if(NOT headgate_vector_target STREQUAL all)
    string(TOUPPER ${headgate_vector_target} bit)
    target_compile_definitions(${name} PRIVATE HWY_COMPILE_ONLY_STATIC HWY_BASELINE_TARGETS=HWY_${bit})
    # Clang warns about Highway's target attributes if no function follows.
    list(APPEND options -march=${headgate_march_${headgate_vector_target}} -maes -mpclmul
         $<$<CXX_COMPILER_ID:Clang>:-Wno-pragma-clang-attribute>)
  endif()
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS sources)
    file(STRINGS ${source} kernel REGEX "hwy/foreach_target\\.h" LIMIT_COUNT 1)
    if(kernel)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${options})
    endif()
  endforeach()
endfunction()
