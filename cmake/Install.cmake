# Installs libheadgate, its headers, its CMake package and its pkg-config file. Also installs the tool, if it is built,
# with the worked problems of its demo, its manual pages and its completions. All paths in them are relative, so that
# the installed tree can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS headgate EXPORT headgateTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headgate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET headgate_tool)
  install(TARGETS headgate_tool)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${headgate_examples_dir} FILES_MATCHING PATTERN *.json
          PATTERN python EXCLUDE PATTERN first_attention EXCLUDE)

  get_target_property(tool_texts headgate_tool HEADGATE_TEXTS)
  if(tool_texts)
    install(DIRECTORY ${tool_texts}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
    foreach(completions bash-completion/completions zsh/site-functions fish/vendor_completions.d)
      install(DIRECTORY ${tool_texts}/${completions}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/${completions})
    endforeach()
  endif()
endif()

# Users of libheadgate.a must link its dependencies. libheadgate.so hides them.
set(headgate_is_static OFF)
get_target_property(headgate_type headgate TYPE)
if(headgate_type STREQUAL "STATIC_LIBRARY")
  set(headgate_is_static ON)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headgate)
install(EXPORT headgateTargets NAMESPACE headgate:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headgateConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/headgateConfig.cmake INSTALL_DESTINATION ${package_dir})
# By semantic versioning, a minor version before 1.0 may break its users.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headgateConfigVersion.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/headgateConfig.cmake ${PROJECT_BINARY_DIR}/headgateConfigVersion.cmake
        DESTINATION ${package_dir})

set(pc_static_libs "")
if(headgate_is_static)
  set(pc_static_libs " -lhwy -fopenmp -lstdc++ -lm")
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
configure_file(${PROJECT_SOURCE_DIR}/cmake/headgate.pc.in ${PROJECT_BINARY_DIR}/headgate.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headgate.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
