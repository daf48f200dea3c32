# A user of headgate::headgate gets its headers' folder and C++20, and no flag or definition.
function(headgate_leaks_nothing)
  foreach(property INTERFACE_COMPILE_OPTIONS INTERFACE_COMPILE_DEFINITIONS INTERFACE_LINK_OPTIONS)
    get_target_property(value headgate::headgate ${property})
    if(value)
      message(FATAL_ERROR "headgate::headgate leaks ${property}: ${value}")
    endif()
  endforeach()
endfunction()
