#!/usr/bin/env bash
# Everything that needs a Hopper GPU, in at most 10 minutes: compile, tests/gpu, the dialect's operations, the decode benchmark; named on demand, the prefill benchmark.
# Results go to $OUT (default build/h200). Parts can be named: run_h200.sh tests ops decode prefill trial. Exit status: 0 if every part passed.
# $DECODE, $PREFILL: other arguments of benchmarks.decode and benchmarks.prefill. $TRIAL: folder of hand-written kernels for the part trial (benchmarks/trial.py).
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-build/h200}
PYTHON=${PYTHON:-python3}
JOBS=${JOBS:-$(nproc)}
DECODE=${DECODE:---recipe hy3/decode_bf16 --cases all --mtp 1 2 3 --layouts NHD HND}
export TLE_ATTN_CACHE_DIR=${TLE_ATTN_CACHE_DIR:-$PWD/build/cache}
mkdir -p "$OUT"
failed=()

# part NAME SECONDS COMMAND...: its output to the console and to $OUT/NAME.log; the time limit ends a part, not the parts after it
part() {
    local name=$1 seconds=$2 start=$SECONDS status
    shift 2
    echo "==== $name: $*"
    timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee "$OUT/$name.log" | tail -n "${LINES_SHOWN:-60}"
    status=${PIPESTATUS[0]}
    echo "==== $name: status $status, $((SECONDS - start)) s"
    [ "$status" -eq 0 ] || failed+=("$name")
}

for name in "${@:-tests ops decode}"; do for one in $name; do case $one in
    tests)
        part warm 90 "$PYTHON" -m tests.gpu.warm --jobs "$JOBS"
        # in worker processes: one that hangs ends itself and is replaced
        part tests 200 "$PYTHON" -m pytest tests/gpu -n 2 --maxfail=40 -p no:cacheprovider --durations=5
        ;;
    ops) part ops 60 "$PYTHON" -m tests.gpu.ops --out "$OUT/dialect_ops_h200.json" ;;
    decode)
        # shellcheck disable=SC2086  # words of their own
        part decode 210 "$PYTHON" -m benchmarks.decode $DECODE --jobs "$JOBS" --out "$OUT/decode_h200.json"
        ;;
    prefill)
        # shellcheck disable=SC2086  # words of their own
        part prefill 300 "$PYTHON" -m benchmarks.prefill ${PREFILL:-} --jobs "$JOBS" --out "$OUT/prefill_h200.json"
        ;;
    trial) part trial 90 "$PYTHON" -m benchmarks.trial --trial "${TRIAL:?the folder of the hand-written kernels}" --out "$OUT/trial_h200.json" ;;
    *) echo "no part is called $one: tests, ops, decode, prefill, trial" && exit 2 ;;
esac; done; done

echo "==== failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
