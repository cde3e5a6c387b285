# SPDX-License-Identifier: Apache-2.0
# For aarch64, on another machine; scripts/arm.sh makes the folder of libraries and names it as HVD_ARM_ROOT. Tests run
# under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT ${HVD_ARM_ROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${HVD_ARM_ROOT})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HVD_ARM_ROOT)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} ${HVD_ARM_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${HVD_ARM_ROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${HVD_ARM_ROOT})
