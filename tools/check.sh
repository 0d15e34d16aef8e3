#!/bin/bash
# What `make check` runs: each step in a build folder of its own, all steps even when one fails,
# then a table of outcomes and times.
#
# Usage: check.sh [STEP...]     environment: JOBS (all cores), BASE (revision: tidy looks only at
# what changed since), FUZZ_SECONDS (10, for each fuzz target)
set -u
cd "$(dirname "$0")/.." || exit 2

JOBS=${JOBS:-$(nproc)}
BASE=${BASE:-}
FUZZ_SECONDS=${FUZZ_SECONDS:-10}
ALL_STEPS=(format headers tidy asan tsan fuzz bench)

# configure PRESET OPTIONS...: quiet unless it fails.
configure() {
  local preset=$1
  shift
  mkdir -p build
  cmake --preset "$preset" -DRESHARD_PCH=ON "$@" >"build/$preset.log" 2>&1 || { cat "build/$preset.log"; return 1; }
}

# run_tests BUILD OPTIONS...
run_tests() {
  local build=$1
  shift
  ctest --test-dir "$build" -j "$JOBS" --output-on-failure --no-tests=error --timeout 600 \
    --no-label-summary "$@"
}

step_format() { tools/format.sh --check; }

# Every public header compiles alone.
step_headers() {
  configure release && cmake --build build/release -j "$JOBS" \
    --target all_verify_interface_header_sets
}

# The sources of src/, or with BASE those that changed and those that include a changed header.
tidy_sources() {
  if [ -z "$BASE" ]; then
    find src -name '*.cc'
    return
  fi
  local changed
  changed=$(git diff --name-only --diff-filter=d "$BASE" -- src) || return
  grep '\.cc$' <<<"$changed"
  local header
  for header in $(grep '\.h$' <<<"$changed"); do
    grep -rlF --include='*.cc' "\"${header#src/}\"" src
  done
}

step_tidy() {
  configure tidy || return
  local sources
  sources=$(tidy_sources) || return
  # Only what this build compiles: other files have no compile command.
  sources=$(sort -u <<<"$sources" | while read -r file; do
    ! grep -qF "/$file\"" build/tidy/compile_commands.json || echo "$file"
  done)
  [ -n "$sources" ] || { echo "nothing to look at"; return 0; }
  echo "clang-tidy: $(wc -l <<<"$sources") sources"
  # The path-sensitive analyzer takes most of the time: it looks at what changed, with BASE.
  local checks=()
  [ -n "$BASE" ] || checks=(--checks=-clang-analyzer-*)
  xargs -P "$JOBS" -n 1 clang-tidy-14 -p build/tidy --quiet ${checks[@]+"${checks[@]}"} \
    <<<"$sources" \
    2> >(grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' >&2)
}

# Tests that start MPI or compile against an installed tree are not for sanitizers; fuzz is next.
step_asan() {
  configure asan && cmake --build build/asan -j "$JOBS" || return
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=print_stacktrace=1 run_tests build/asan -LE '^(mpi|install|fuzz|peers)$'
}

# Layers with threads. The loader's address randomisation can be too much for clang 14's runtime;
# setarch takes it away where that is allowed.
step_tsan() {
  local layer targets=() fixed=()
  setarch -R true 2>/dev/null && fixed=(setarch -R)
  configure tsan || return
  for layer in base comm engine; do
    [ ! -f "tests/$layer/CMakeLists.txt" ] || targets+=("reshard_${layer}_test")
  done
  ${fixed[@]+"${fixed[@]}"} cmake --build build/tsan -j "$JOBS" --target "${targets[@]}" || return
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
    ${fixed[@]+"${fixed[@]}"} ctest --test-dir build/tsan -j "$JOBS" --output-on-failure \
    --no-tests=error --timeout 600 --no-label-summary -R '^(base|comm|engine)\.'
}

# The corpus, then a brief search with each target, in the build of the step before.
step_fuzz() {
  configure asan -DRESHARD_FUZZ_SECONDS="$FUZZ_SECONDS" &&
    cmake --build build/asan -j "$JOBS" --target fuzz_targets && run_tests build/asan -L '^fuzz$'
}

step_bench() {
  configure release -DRESHARD_BUILD_BENCH=ON && cmake --build build/release -j "$JOBS" &&
    bash bench/run.sh build/release --smoke
}

if [ "${1:-}" = help ] || [ "${1:-}" = --help ]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
  echo "steps: ${ALL_STEPS[*]}"
  exit 0
fi
steps=("$@")
[ $# -gt 0 ] || steps=("${ALL_STEPS[@]}")
failed=0
table=
for step in "${steps[@]}"; do
  if ! declare -F "step_$step" >/dev/null; then
    echo "check.sh: no step '$step'; steps: ${ALL_STEPS[*]}" >&2
    exit 2
  fi
  echo "== check: $step"
  began=$SECONDS
  outcome=ok
  "step_$step" || { outcome=FAILED; failed=1; }
  line=$(printf 'check: %-8s %-7s %4d s' "$step" "$outcome" $((SECONDS - began)))
  echo "$line"
  table+=$line$'\n'
done
printf '\n%scheck: total %20d s\n' "$table" "$SECONDS"
exit $failed
