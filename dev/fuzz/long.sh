#!/bin/sh
# Runs the fuzz targets one after the other, each for the same share of the time, and prints a table.
#
#   dev/fuzz/long.sh --hours N [--keep-seeds] [target...]
#
# The corpora grow in dev/fuzz/target/corpus, and are minimised after each run. Inputs that crash, or
# take too long, are kept in dev/fuzz/regressions; smoke.sh fails until what they show is corrected.
# With --keep-seeds the inputs that cover most, 50 of at most 512 bytes, replace dev/fuzz/corpus of
# targets that are not of the wire format.
set -eu

hours='' keep_seeds=false
while [ $# -gt 0 ]; do
    case $1 in
    --hours) hours=${2-} && shift ;;
    --keep-seeds) keep_seeds=true ;;
    -*) hours='' && break ;;
    *) break ;;
    esac
    shift
done
if [ -z "$hours" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi

cd "$(dirname "$0")"
. ./build.sh
[ $# -gt 0 ] || set -- $(cd fuzz_targets && ls | sed 's/\.rs$//')
share=$(awk "BEGIN { print int($hours * 3600 / $#) }")

# TARGET SECONDS: runs it until the time is over, also after crashes.
run() {
    end=$(($(date +%s) + $2))
    : >"$work/$1.log"
    while left=$((end - $(date +%s))) && [ "$left" -gt 0 ]; do
        "$binaries/$1" -max_total_time="$left" -max_len=8192 -timeout=20 -print_final_stats=1 \
            -artifact_prefix="regressions/$1/" "$corpora/$1" "corpus/$1" \
            >>"$work/$1.log" 2>&1 || true
    done
}

# TARGET: leaves the inputs that add to what is covered, the shortest ones.
minimise() {
    mkdir "$work/$1.least"
    "$binaries/$1" -merge=1 -max_len=8192 -timeout=20 "$work/$1.least" "$corpora/$1" "corpus/$1" \
        >"$work/$1.merge.log" 2>&1
    rm -r "${corpora:?}/$1"
    cp -r "$work/$1.least" "$corpora/$1"
}

# TARGET: keeps those inputs that cover most, each as much as possible that no other one does.
seed() {
    mkdir "$work/$1.short" "$work/$1.seeds"
    find "$corpora/$1" -type f -size -2 -exec cp {} "$work/$1.short" \;
    "$binaries/$1" -set_cover_merge=1 -merge_control_file="$work/$1.control" -max_len=512 \
        "$work/$1.seeds" "$work/$1.short" >"$work/$1.seeds.log" 2>&1
    rm -r "corpus/$1"
    mkdir "corpus/$1"
    awk '
        NR > 2 && NF == 1 { name[names++] = $1 }
        $1 == "FT" { file = $2; $1 = $2 = ""; has[file] = $0 }
        END {
            for (kept = 0; kept < 50; kept++) {
                most = 0
                for (file in has) {
                    count = split(has[file], of)
                    new = 0
                    for (i = 1; i <= count; i++) new += !(of[i] in known)
                    if (new > most) { most = new; best = file }
                }
                if (!most) break
                count = split(has[best], of)
                for (i = 1; i <= count; i++) known[of[i]]
                print name[best]
                delete has[best]
            }
        }' "$work/$1.control" | xargs -I{} cp {} "corpus/$1"
}

corpora=$target_dir/corpus
printf '%-14s %12s %8s %8s %9s %7s %8s\n' target executions exec/s edges features corpus crashes
for target; do
    mkdir -p "$corpora/$target" "corpus/$target" "regressions/$target"
    before=$(ls "regressions/$target" | wc -l)
    begin=$(date +%s)
    run "$target" "$share"
    seconds=$(($(date +%s) - begin))
    minimise "$target"
    case $target in
    cdc | clc | llc | pretty | tcp_option) ;;
    *) ! $keep_seeds || seed "$target" ;;
    esac
    covered=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 \2/p' "$work/$target.log" | tail -n 1)
    executed=$(awk '/^stat::number_of_executed_units/ { n += $2 } END { print n + 0 }' \
        "$work/$target.log")
    printf '%-14s %12d %8d %8d %9d %7d %8d\n' "$target" "$executed" \
        "$((executed / (seconds > 0 ? seconds : 1)))" "${covered% *}" "${covered#* }" \
        "$(ls "$corpora/$target" | wc -l)" "$(($(ls "regressions/$target" | wc -l) - before))"
    rmdir "regressions/$target" 2>/dev/null || true
done
