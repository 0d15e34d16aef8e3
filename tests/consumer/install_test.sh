#!/bin/bash
# One step of the install tests; `tree` comes first and makes the prefix that the others use.
# Usage: install_test.sh STEP SCRATCH [SOURCE]   (environment: CMAKE, CXX, BUILD, BUILD_TYPE, SOURCE_DIR)
set -eu

step=$1
scratch=$2
source=${3-}
prefix=$scratch/prefix
work=$scratch/$step
rm -rf "$work"
mkdir -p "$work"

fail() {
  echo "$step: $*" >&2
  exit 1
}

# Flags as a user of pkg-config gets them.
flags() { PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name reshard.pc)") pkg-config "$@"; }

# consumer OPTIONS...: configures, builds and runs the user's project.
consumer() {
  "$CMAKE" -S "$source" -B "$work" -G Ninja -DCMAKE_CXX_COMPILER="$CXX" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release "$@"
  "$CMAKE" --build "$work" -j 2
  "$(dirname "$CMAKE")/ctest" --test-dir "$work" --output-on-failure --no-tests=error
}

# compile PACKAGE: the same with the compiler alone.
compile() {
  # shellcheck disable=SC2046  # flags are words
  "$CXX" -std=c++20 $(flags --cflags "$1") "$source" -o "$work/program" $(flags --libs "$1") \
    -Wl,-rpath,"$(flags --variable=libdir reshard)"
  "$work/program" "$work/checkpoint"
}

case $step in
  tree)
    rm -rf "$prefix"
    "$CMAKE" --install "$BUILD" --prefix "$prefix"
    # The tree may be moved: no file says where it was built or installed. Debug information does.
    binaries=
    [ "$BUILD_TYPE" = Release ] || binaries=-I
    if grep -rlF $binaries -e "$BUILD" -e "$prefix" -e "$SOURCE_DIR/src" "$prefix"; then
      fail "these files name the build or the prefix"
    fi
    ;;
  cmake) consumer ;;
  components)
    # What is missing is said by name.
    for component in nothing $([ -d "$prefix/include/reshard/mpi" ] || echo mpi); do
      echo 'cmake_minimum_required(VERSION 3.25)' >"$work/CMakeLists.txt"
      echo "project(p LANGUAGES CXX)" >>"$work/CMakeLists.txt"
      echo "find_package(reshard REQUIRED COMPONENTS $component)" >>"$work/CMakeLists.txt"
      ! "$CMAKE" -S "$work" -B "$work/build" -DCMAKE_CXX_COMPILER="$CXX" \
        -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || fail "component $component was found"
      tr -s ' \n' ' ' <"$work/log" |
        grep -qE "no component '$component'|was built without MPI" || fail "$(cat "$work/log")"
    done
    ;;
  cmake_mpi) consumer -DCONSUMER_MPI=ON ;;
  pkg_config) compile reshard ;;
  pkg_config_mpi) compile reshard_mpi ;;
  readme)
    # The program that README shows, exactly as it stands there, saved on 4 ranks and loaded on 3.
    awk '/^```cpp$/ { on = 1; next } /^```$/ { if (on) exit } on' "$source" >"$work/program.cc"
    lines=$(wc -l <"$work/program.cc")
    [ "$lines" -gt 10 ] && [ "$lines" -le 30 ] || fail "README's program has $lines lines"
    statements=$(grep -cvE '^(#include.*|using.*|)$' "$work/program.cc")
    [ "$statements" -le 25 ] || fail "README's program has $statements lines of code"
    source=$work/program.cc
    # shellcheck disable=SC2046
    "$CXX" -std=c++20 $(flags --cflags reshard_mpi) "$source" -o "$work/program" \
      $(flags --libs reshard_mpi) -Wl,-rpath,"$(flags --variable=libdir reshard)"
    cd "$work"
    run() { mpirun --allow-run-as-root --oversubscribe -n "$1" ./program; }
    run 4 >first
    run 3 >second
    [ "$(grep -c 'DIRECTORY_MISSING, saved$' first)" = 4 ] || fail "first run: $(cat first)"
    [ "$(grep -c 'resumed, saved$' second)" = 3 ] || fail "second run: $(cat second)"
    # Damage must not make it start over: it says so, and saves nothing.
    printf 'damage' | dd of=checkpoint/1.reshard bs=1 seek=100 conv=notrunc status=none
    ! run 2 >third 2>&1 || fail "a damaged checkpoint was passed over"
    grep -q 'CATALOG_CHECKSUM' third || fail "third run: $(cat third)"
    [ ! -e checkpoint/2.reshard ] || fail "it saved over a damaged checkpoint"
    ;;
  headers)
    # Every installed header finds what it includes in the installed tree.
    [ -f "$prefix/include/reshard/base/result.h" ] || fail "no headers below $prefix/include"
    package=reshard
    [ ! -d "$prefix/include/reshard/mpi" ] || package=reshard_mpi
    (cd "$prefix/include" && find reshard -name '*.h' | sort | sed 's/.*/#include "&"/') \
      >"$work/all.cc"
    # shellcheck disable=SC2046
    "$CXX" -std=c++20 -Wall -Wextra -Werror -fsyntax-only $(flags --cflags $package) "$work/all.cc"
    ;;
  program)
    # The installed program finds its libraries, and brings its documents.
    "$prefix/bin/reshard" --version
    [ -f "$prefix/share/man/man1/reshard.1" ] || fail "no man page"
    [ -f "$prefix/share/bash-completion/completions/reshard" ] || fail "no completion"
    ;;
  *) fail "unknown step" ;;
esac
