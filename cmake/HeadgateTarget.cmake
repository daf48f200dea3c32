# headgate_library(NAME [OBJECT] SOURCES … DEPENDS …): one target a folder, named headgate_<folder>; static, header-only
# without sources, or OBJECT for what libheadgate itself is made of. Sources see include/ and src/; flags stay private.
# Objects of libheadgate use its copy of fmt.
function(headgate_library name)
  cmake_parse_arguments(arg "OBJECT" "" "SOURCES;DEPENDS" ${ARGN})
  if(arg_SOURCES)
    set(kind STATIC)
    set(fmt fmt::fmt)
    if(arg_OBJECT)
      set(kind OBJECT)
      set(fmt)
    endif()
    add_library(${name} ${kind} ${arg_SOURCES})
    headgate_flags(${name})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC ${arg_DEPENDS} ${fmt})
    headgate_vector_flags(${name})
    if(arg_OBJECT)
      headgate_own_fmt(${name})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${arg_DEPENDS})
  endif()
endfunction()

# headgate_own_fmt(TARGET): for libraries that have a copy of fmt in them, so that their users need none. Of their files
# src/library/call/format.cc alone compiles it (core/format.hpp).
function(headgate_own_fmt name)
  target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_definitions(${name} PRIVATE HEADGATE_OWN_FMT)
endfunction()

# headgate_unity(TARGET [SOURCE …]): compiles the target's sources as one, up to six at a time: headers of JSON, fmt and
# GoogleTest are most of what the compiler reads. The SOURCEs are compiled alone: those whose local names clash with
# another's, or that give a class of a header members of local types.
function(headgate_unity name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${HEADGATE_UNITY} UNITY_BUILD_BATCH_SIZE 6)
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Before all other options, so that an -O of the project that embeds headgate has the last word.
function(headgate_flags name)
  target_compile_options(${name} BEFORE PRIVATE ${headgate_default_optimisation})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi)
  if(HEADGATE_WERROR)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
endfunction()
