# Installs `build` to `staged`, then moves the tree to `moved`: what it holds must work where it was not installed.
file(REMOVE_RECURSE ${staged} ${moved})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${staged} COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${staged} ${moved})

file(GLOB_RECURSE entries LIST_DIRECTORIES true ${moved}/*)
foreach(entry IN LISTS entries)
  file(GLOB content ${entry}/*)
  if(IS_DIRECTORY ${entry} AND NOT content)
    message(FATAL_ERROR "${entry} is installed but empty")
  endif()
endforeach()
