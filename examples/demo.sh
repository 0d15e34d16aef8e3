#!/usr/bin/env bash
# The main job of reshard on real input: a training run is saved on one mesh of ranks and resumed on two
# others, and its loss goes on as if nothing had happened. Checks what it shows; exit 0 when all is well.
#
# usage: examples/demo.sh BUILD_DIR      (TEXT=FILE trains on another text, KEEP=DIR leaves the runs there)
set -euo pipefail

build=${1:?usage: examples/demo.sh BUILD_DIR}
text=${TEXT:-/usr/share/common-licenses/GPL-3}
steps=200
half=$((steps / 2))
first_tolerance=0.00001 # of the first step after a resume: the same weights, sums in another order
last_tolerance=0.01     # after $half more steps, in which bfloat16 weights round the other way now and then

fail() {
  echo "demo: $*" >&2
  exit 1
}

# Programs lie where the build put them.
find_program() {
  local path
  for path in "$build/bin/$1" "$build/src/reshard/cli/$1" "$build/examples/charlm/$1"; do
    if [ -f "$path" ] && [ -x "$path" ]; then
      echo "$path"
      return
    fi
  done
  fail "$1 is not in $build; run 'make demo'"
}
charlm=$(find_program charlm)
reshard=$(find_program reshard)

# Open MPI refuses root and more ranks than cores unless told.
launch=(mpirun)
if mpirun --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE|PRRTE'; then
  launch+=(--allow-run-as-root --oversubscribe)
  # Containers often forbid the call that copies from one process to another.
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
fi

if [ -n "${KEEP-}" ]; then
  mkdir -p "$KEEP"
  work=$(cd "$KEEP" && pwd)
  [ -z "$(ls -A "$work")" ] || fail "KEEP=$KEEP is not empty"
else
  work=$(mktemp -d "${TMPDIR:-/tmp}/reshard-demo.XXXXXX")
  trap 'rm -rf "$work"' EXIT
fi
began=$SECONDS

# train RANKS MESH NAME ARGUMENT...: trains in $work/NAME, appends to $work/NAME.log.
train() {
  local ranks=$1 mesh=$2 name=$3
  shift 3
  if ! "${launch[@]}" -n "$ranks" "$charlm" --out "$work/$name" --text "$text" --mesh "$mesh" \
    --log-every 1 "$@" >>"$work/$name.log" 2>&1; then
    cat "$work/$name.log" >&2
    fail "training on $ranks ranks ($mesh) failed; its output is above"
  fi
}

# loss NAME STEP: what was printed for that step.
loss() { awk -v step="$2" '$1 == "step" && $2 == step { print $4 }' "$work/$1.log" | tail -n 1; }

# digests NAME: "key digest" of every tensor of snapshot $half.
digests() {
  "$reshard" ls --json "$work/$1@$half" | grep -oE '"(key|digest)": ?"[^"]*"' |
    awk -F '"' '$2 == "key" { key = $4 } $2 == "digest" { print key, $4 }' | sort
}

# within A B TOLERANCE
within() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(d <= t && -d <= t) }'; }

echo "1. A small language model learns $text on 4 ranks, without a break:"
echo "   $steps steps, 2-way data parallel x 2-way tensor parallel. The other runs must agree with it."
train 4 dp=2,tp=2 whole --steps $steps --save-every $half

echo "2. The same again, stopped after step $half. Each rank wrote parts that it holds, replicas once; the"
echo "   catalog came last, so a crash at any moment leaves the old snapshot or the new one, whole."
train 4 dp=2,tp=2 stopped --steps $half
sed -n 's/^saved/   saved/p' "$work/stopped.log"

echo "3. Resumed on 2 ranks (tp=2) and on 3 ranks (tp=3: 250 hidden units as 84 + 84 + 82). Nothing is"
echo "   converted: each rank reads the byte ranges of its new part. Saved again at once, every tensor"
echo "   must have the same digest, which does not depend on how the tensor is cut:"
train 2 tp=2 on2 --from "$work/stopped" --steps $half
train 3 tp=3 on3 --from "$work/stopped" --steps $half
for name in stopped on2 on3; do
  digests $name >"$work/$name.digests"
done
tensors=$(wc -l <"$work/stopped.digests")
if [ "$tensors" -lt 20 ] || ! cmp -s "$work/stopped.digests" "$work/on2.digests" ||
  ! cmp -s "$work/stopped.digests" "$work/on3.digests"; then
  diff3 "$work/stopped.digests" "$work/on2.digests" "$work/on3.digests" >&2 || true
  fail "the digests above differ between the meshes, or tensors are missing"
fi
awk '$1 ~ /^model.*_weight$/ { printf "     %-24s %s on 4, on 2 and on 3 ranks\n", $1, $2 }' \
  "$work/stopped.digests"
echo "     ... and so on: $tensors tensors, master weights and moments of the optimizer too, all equal"

echo "4. All train on to step $steps, on 4 ranks too. The loss goes on where it was:"
train 4 dp=2,tp=2 stopped --steps $steps
train 2 tp=2 on2 --steps $steps
train 3 tp=3 on3 --steps $steps
printf '     %4s %12s %13s %13s %13s\n' step "no break" "again on 4" "now on 2" "now on 3"
for step in $half $((half + 1)) $((half + 50)) $steps; do
  printf '     %4d' "$step"
  for name in whole stopped on2 on3; do
    printf ' %13s' "$(loss $name "$step" | grep . || echo -)"
  done
  echo
done
cmp "$work/whole/final" "$work/stopped/final" || fail "the run that stopped ended differently"
for name in on2 on3; do
  within "$(loss $name $((half + 1)))" "$(loss whole $((half + 1)))" $first_tolerance ||
    fail "the first loss of $name is not that of the run without a break"
  within "$(loss $name $steps)" "$(loss whole $steps)" $last_tolerance ||
    fail "the last loss of $name is not that of the run without a break"
done
echo "   On the same mesh all bits are equal. On another, sums in another order round otherwise: equal to"
echo "   $first_tolerance at the first step and, as bfloat16 weights round too, to $last_tolerance after $half steps."

echo "5. What the run on 3 ranks left, seen from outside:"
echo "   \$ reshard info DIR"
"$reshard" info "$work/on3" | sed "s|$work/on3|DIR|; s/^/     /"
echo "   \$ reshard ls DIR 'model.*'"
"$reshard" ls "$work/on3" 'model.*' | sed "s|$work/on3|DIR|; s/^/     /"
echo "   \$ reshard latest DIR; reshard verify DIR"
{ "$reshard" latest "$work/on3" && "$reshard" verify "$work/on3"; } | sed "s|$work/on3|DIR|; s/^/     /"
echo "All checks passed, in $((SECONDS - began)) s."
echo "Next: $reshard help; make install PREFIX=DIR and README's program;" \
  "$([ -n "${KEEP-}" ] && echo "the runs are in $work" || echo 'KEEP=DIR make demo keeps the runs')."
