#!/bin/bash
# Runs the benchmarks of a build folder. With --smoke it only proves that each of them runs.
# Usage: run.sh BUILD [--smoke]
set -eu

build=$1
smoke=${2-}
kernel_options=()
reshard_options=(--dir "$build")
# The cases that read a file of 1 GiB say nothing in a smoke run.
if [ "$smoke" = --smoke ]; then
  kernel_options=(--benchmark_min_time=0.001 --benchmark_filter=-pread)
  reshard_options+=(--gib 0.0625 --repeats 1)
fi

for program in "$build"/bench/bench_*; do
  [ -x "$program" ] && [ -f "$program" ] || continue
  echo "== ${program##*/}"
  "$program" ${kernel_options[@]+"${kernel_options[@]}"}
done

# The rivals of the workloads paddle and torch; without one, its workload measures reshard alone, and
# says so.
for peer in paddle-3.3.1 torch-2.13.0; do
  if [ "$smoke" != --smoke ] && python=$("${0%/*}/../tools/peers.sh" "$peer"); then
    reshard_options+=(--peer "${peer%-*}=$python")
  fi
done
reshard_options+=(--peer-scripts "${0%/*}/peers")

echo "== reshard_bench"
"$build/bench/reshard_bench" "${reshard_options[@]}"
