# The installed tree: libraries, headers, CMake package, pkg-config files, program, its documents.
#
# include/reshard/...   lib/libreshard, libreshard_mpi   bin/reshard
# lib/cmake/reshard/    lib/pkgconfig/reshard.pc, reshard_mpi.pc
# share/man/man1, share/bash-completion/completions, share/doc/reshard
#
# Nothing in it names the prefix, so it can be moved and `cmake --install --prefix` works.
include(CMakePackageConfigHelpers)

# Before 1.0 a minor version may break the ABI.
set(RESHARD_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(RESHARD_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/reshard)

# reshard_relative(OUT FROM TO): the path of install folder TO as seen from install folder FROM.
function(reshard_relative out from to)
  file(RELATIVE_PATH path /${from} /${to})
  string(REGEX REPLACE "/$" "" path "${path}")
  set(${out} ${path} PARENT_SCOPE)
endfunction()

# reshard_install_program(TARGET): bin/..., finding the installed libraries beside it.
function(reshard_install_program target)
  if(RESHARD_INSTALL)
    reshard_relative(to_libraries ${CMAKE_INSTALL_BINDIR} ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN/${to_libraries})
    install(TARGETS ${target} RUNTIME)
  endif()
endfunction()

# reshard_install_man(FILES...): section 1 man pages, which the default target must have made.
function(reshard_install_man)
  if(RESHARD_INSTALL)
    install(FILES ${ARGN} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endif()
endfunction()

# reshard_install_completion(FILE): the bash completion of the program `reshard`.
function(reshard_install_completion file)
  if(RESHARD_INSTALL)
    install(FILES ${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME reshard)
  endif()
endfunction()

# reshard_describe_mpi(): keeps what find_package(MPI) found, for reshard_mpi.pc. To be called where
# it was called: its results are seen there only.
function(reshard_describe_mpi)
  set(cflags ${MPI_CXX_COMPILE_OPTIONS})
  foreach(folder IN LISTS MPI_CXX_INCLUDE_DIRS)
    list(APPEND cflags -I${folder})
  endforeach()
  foreach(definition IN LISTS MPI_CXX_COMPILE_DEFINITIONS)
    list(APPEND cflags -D${definition})
  endforeach()
  list(JOIN cflags " " cflags)
  list(JOIN MPI_CXX_LIBRARIES " " libraries)
  set_property(GLOBAL PROPERTY RESHARD_MPI_CFLAGS "${cflags}")
  set_property(GLOBAL PROPERTY RESHARD_MPI_LIBS "${MPI_CXX_LINK_FLAGS} ${libraries}")
endfunction()

# reshard_install_pkg_config(NAME): NAME.pc from cmake/NAME.pc.in.
function(reshard_install_pkg_config name)
  reshard_relative(to_prefix ${CMAKE_INSTALL_LIBDIR}/pkgconfig .)
  # A program that links the static library links {fmt} too.
  get_target_property(type reshard TYPE)
  set(requires "")
  if(type STREQUAL STATIC_LIBRARY)
    set(requires fmt)
  endif()
  get_property(mpi_cflags GLOBAL PROPERTY RESHARD_MPI_CFLAGS)
  get_property(mpi_libs GLOBAL PROPERTY RESHARD_MPI_LIBS)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# reshard_install_package(): everything but the program. To be called last.
function(reshard_install_package)
  install(TARGETS reshard EXPORT reshardTargets FILE_SET HEADERS)
  install(EXPORT reshardTargets NAMESPACE reshard:: DESTINATION ${RESHARD_CMAKE_DIR})
  reshard_install_pkg_config(reshard)

  # An export of its own, so that find_package(reshard) needs MPI only when asked for it.
  if(TARGET reshard_mpi)
    set_target_properties(reshard_mpi PROPERTIES INSTALL_RPATH $ORIGIN)
    install(TARGETS reshard_mpi EXPORT reshardMpiTargets FILE_SET HEADERS)
    install(EXPORT reshardMpiTargets NAMESPACE reshard:: DESTINATION ${RESHARD_CMAKE_DIR})
    reshard_install_pkg_config(reshard_mpi)
  endif()

  configure_package_config_file(cmake/reshardConfig.cmake.in reshardConfig.cmake
                                INSTALL_DESTINATION ${RESHARD_CMAKE_DIR}
                                NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(reshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/reshardConfig.cmake
                ${PROJECT_BINARY_DIR}/reshardConfigVersion.cmake
          DESTINATION ${RESHARD_CMAKE_DIR})
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
