# headgate_library(NAME [OBJECT] SOURCES … DEPENDS …): adds the target of a folder, which is named headgate_<folder>. It
# is a static library, or header-only without SOURCES. With OBJECT, it is an object library, which becomes a part of
# libheadgate and uses its copy of fmt. The include path is include/ and src/. Compiler flags are private.
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

# headgate_own_fmt(TARGET): compiles a copy of fmt into a library, so that its users do not need fmt. Only
# src/library/call/format.cc compiles it (core/format.hpp).
function(headgate_own_fmt name)
  target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_definitions(${name} PRIVATE HEADGATE_OWN_FMT)
endfunction()

# headgate_unity(TARGET [SOURCE …]): compiles the target's sources together, up to six at a time, since most of what the
# compiler reads are the headers of JSON, fmt and GoogleTest. Each SOURCE is compiled alone. Such a file has local names
# that clash with those of another, or gives a class of a header members of local types.
function(headgate_unity name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${HEADGATE_UNITY} UNITY_BUILD_BATCH_SIZE 6)
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# headgate_flags(TARGET): sets compiler flags. The default -O comes first, so that an embedding project can override it.
function(headgate_flags name)
  target_compile_options(${name} BEFORE PRIVATE ${headgate_default_optimisation})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi)
  if(HEADGATE_WERROR)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
endfunction()

# headgate_low_optimisation(TARGET LEVEL): compiles the target with -O<LEVEL> in release builds, in less time. It is for
# code that leaves the computing to other targets.
function(headgate_low_optimisation name level)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${level}>)
endfunction()
