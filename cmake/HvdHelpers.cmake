# Functions that keep each folder's CMakeLists.txt a plain list.
include(CheckLinkerFlag)

# Every outside part, found once. Debian names: scripts/deps.sh.
macro(hvd_find_packages)
  find_package(PkgConfig REQUIRED)
  find_package(Threads REQUIRED)
  pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)
  pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c>=1.3)
  pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd>=249)
  pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium>=1.0.18)
  pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto>=3.0)
  pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
  pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
  find_program(PROTOC_C NAMES protoc-c REQUIRED)
  find_program(SCDOC NAMES scdoc)
  if(HVD_TESTS)
    pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check>=0.15)
  endif()
endmacro()

function(hvd_global_flags)
  add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
                      -Wpointer-arith -Wformat=2 -Wno-format-zero-length -Wvla -Werror=return-type
                      -Werror=implicit-function-declaration -fno-common)
  add_compile_definitions(_GNU_SOURCE HVD_VERSION_TEXT="${PROJECT_VERSION}")
  if(HVD_WERROR)
    add_compile_options(-Werror)
  endif()
  if(HVD_SANITIZE)
    add_compile_options(-fsanitize=${HVD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${HVD_SANITIZE})
    check_linker_flag(C -fuse-ld=gold HVD_HAS_GOLD) # links in a third of the time
    if(HVD_HAS_GOLD)
      add_link_options(-fuse-ld=gold)
    endif()
    add_compile_definitions(HVD_SANITIZE="${HVD_SANITIZE}")
  else()
    if(NOT "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_RELEASE} ${CMAKE_C_FLAGS_RELWITHDEBINFO}" MATCHES "_FORTIFY_SOURCE")
      add_compile_options($<$<CONFIG:Release,RelWithDebInfo>:-D_FORTIFY_SOURCE=2>)
    endif()
    add_compile_options(-fstack-protector-strong)
    add_link_options(-Wl,-z,relro,-z,now)
  endif()
  if(HVD_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
  include_directories(${PROJECT_SOURCE_DIR})
endfunction()

# hvd_pkg_config(name): installs name.pc, made from name.pc.in of the calling folder.
function(hvd_pkg_config name)
  foreach(kind LIB INCLUDE)
    if(IS_ABSOLUTE ${CMAKE_INSTALL_${kind}DIR})
      set(HVD_PC_${kind}DIR ${CMAKE_INSTALL_${kind}DIR})
    else()
      set(HVD_PC_${kind}DIR "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
    endif()
  endforeach()
  set(HVD_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR}) # found from where the file lies: `cmake --install --prefix` moves it
    file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
    set(HVD_PC_PREFIX "\${pcfiledir}/${up}")
  endif()
  # Libs.private, because a package in Requires.private has to be there for --cflags too.
  foreach(package PROTOBUF_C ZMQ)
    set(flags ${${package}_LDFLAGS})
    foreach(folder ${CMAKE_C_IMPLICIT_LINK_DIRECTORIES})
      list(REMOVE_ITEM flags -L${folder})
    endforeach()
    list(JOIN flags " " HVD_PC_${package})
  endforeach()
  configure_file(${name}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
endfunction()

# HVD_NVCC: CUDA's compiler, where the toolkit is.
macro(hvd_find_nvcc)
  find_program(HVD_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
endmacro()

# hvd_library(name sources... [LINK targets...]): an internal static library.
function(hvd_library name)
  cmake_parse_arguments(A "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${A_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${A_LINK})
endfunction()

# hvd_program(name DEST dir sources... [LINK targets...]): a program, installed under DEST.
function(hvd_program name)
  cmake_parse_arguments(A "" "DEST" "LINK" ${ARGN})
  add_executable(${name} ${A_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${A_LINK})
  install(TARGETS ${name} RUNTIME DESTINATION ${A_DEST} COMPONENT runtime)
endfunction()

# hvd_disable_test(test sanitizers): ctest leaves the test out under these sanitizers, a regular expression; tests/skips.txt
# says why.
function(hvd_disable_test test sanitizers)
  if(HVD_SANITIZE MATCHES "${sanitizers}")
    set_tests_properties(${test} PROPERTIES DISABLED TRUE)
  endif()
endfunction()

# hvd_check_test(name LABEL label [TIMEOUT s] sources... [LINK targets...]): a check(3) suite in ctest.
# The test's name in ctest is <label>.<name>.
function(hvd_check_test name)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "LINK" ${ARGN})
  if(NOT HVD_TESTS)
    return()
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(HVD_SANITIZE)
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 5") # as hvt_pytest has it
  endif()
  set(target test_${A_LABEL}_${name})
  add_executable(${target} ${A_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE ${A_LINK} PkgConfig::CHECK Threads::Threads)
  if(HVD_SANITIZE) # either compiles in half the time
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1 -g1>)
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${A_LABEL}.${name} COMMAND ${target})
  set_tests_properties(${A_LABEL}.${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT}
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=60;HVD_BUILD_DIR=${CMAKE_BINARY_DIR}")
endfunction()
