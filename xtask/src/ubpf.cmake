# A toolchain file, for its last option alone: see ubpf.rs.
set(CMAKE_C_COMPILE_OBJECT "<CMAKE_C_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -O2 -o <OBJECT> -c <SOURCE>")
