# palimpsest::palimpsest is libpalimpsest.so, palimpsest::static is libpalimpsest.a. palimpsest::paging, for kernels,
# needs no C library, and is not in every package.
get_filename_component(_palimpsest_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_palimpsest_paging "${_palimpsest_prefix}/lib/palimpsest/freestanding/libpalimpsest_paging_capi.a")
if(NOT TARGET palimpsest::palimpsest)
  add_library(palimpsest::palimpsest SHARED IMPORTED)
  set_target_properties(palimpsest::palimpsest PROPERTIES
    IMPORTED_LOCATION "${_palimpsest_prefix}/lib/libpalimpsest.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_palimpsest_prefix}/include")
  add_library(palimpsest::static STATIC IMPORTED)
  set_target_properties(palimpsest::static PROPERTIES
    IMPORTED_LOCATION "${_palimpsest_prefix}/lib/libpalimpsest.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_palimpsest_prefix}/include"
    INTERFACE_LINK_LIBRARIES "-lpthread;-ldl;-lm")
  if(EXISTS "${_palimpsest_paging}")
    add_library(palimpsest::paging STATIC IMPORTED)
    set_target_properties(palimpsest::paging PROPERTIES
      IMPORTED_LOCATION "${_palimpsest_paging}"
      INTERFACE_INCLUDE_DIRECTORIES "${_palimpsest_prefix}/include")
  endif()
endif()
foreach(_palimpsest_component IN LISTS palimpsest_FIND_COMPONENTS)
  if(TARGET palimpsest::${_palimpsest_component})
    set(palimpsest_${_palimpsest_component}_FOUND TRUE)
  elseif(palimpsest_FIND_REQUIRED_${_palimpsest_component})
    set(palimpsest_FOUND FALSE)
    set(palimpsest_NOT_FOUND_MESSAGE "this package has no palimpsest::${_palimpsest_component}")
  endif()
endforeach()
unset(_palimpsest_prefix)
unset(_palimpsest_paging)
