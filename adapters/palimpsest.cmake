# Links the interface `target` of an adapter with Palimpsest: with the installed package, which has a file for
# `find_package`, or else with the sources beside the adapter and the library that PALIMPSEST_LIBRARY names.
function(link_palimpsest target)
  find_package(palimpsest QUIET CONFIG)
  if(palimpsest_FOUND)
    target_link_libraries(${target} INTERFACE palimpsest::palimpsest)
  else()
    set(PALIMPSEST_LIBRARY "" CACHE FILEPATH "libpalimpsest_capi.a, from `cargo build --release -p palimpsest-capi`")
    target_include_directories(${target} INTERFACE ../../crates/capi/include)
    target_link_libraries(${target} INTERFACE ${PALIMPSEST_LIBRARY} ${CMAKE_DL_LIBS} m)
  endif()
endfunction()
