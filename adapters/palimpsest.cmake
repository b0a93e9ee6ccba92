# Links the interface `target` of an adapter with Palimpsest: with the installed package, which has a file for
# `find_package`, or else with the sources beside the adapter and the library that PALIMPSEST_LIBRARY names. The
# adapter's header is the one beside it, or with PALIMPSEST_INSTALLED the package's.
option(PALIMPSEST_INSTALLED "compile against the headers of the installed package" OFF)
function(link_palimpsest target)
  if(PALIMPSEST_INSTALLED)
    find_package(palimpsest REQUIRED CONFIG)
  else()
    target_include_directories(${target} INTERFACE include)
    find_package(palimpsest QUIET CONFIG)
  endif()
  if(palimpsest_FOUND)
    target_link_libraries(${target} INTERFACE palimpsest::palimpsest)
  else()
    set(PALIMPSEST_LIBRARY "" CACHE FILEPATH "libpalimpsest_capi.a, from `cargo build --release -p palimpsest-capi`")
    target_include_directories(${target} INTERFACE ../../crates/capi/include)
    target_link_libraries(${target} INTERFACE ${PALIMPSEST_LIBRARY} ${CMAKE_DL_LIBS} m)
  endif()
endfunction()
