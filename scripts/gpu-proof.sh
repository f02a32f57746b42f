#!/usr/bin/env bash
# Runs the device tests of natten-kernels, most telling first, within a time: for a machine that is lent.
# Usage: scripts/gpu-proof.sh TESTS LOGS SECONDS
#   TESTS    the test binary, `gpu-<hash>`, linked with a shared artifact that LD_LIBRARY_PATH leads to
#   LOGS     a directory; each test's output goes to its own file in it
#   SECONDS  for everything
# Each test is a process of its own, so that one that breaks the device's context spoils no other. The last
# lines say `ok`, `FAILED` or `timeout`, the seconds and the name of each, and what was not run; the exit code
# is 0 if all were ok. Needs bash, coreutils and, for the last test, compute-sanitizer.
set -uo pipefail

if [[ $# -ne 3 || ! $3 =~ ^[1-9][0-9]*$ ]]; then
    while IFS= read -r text; do
        [[ $text == "# "* ]] && printf '%s\n' "${text#\# }"
        [[ $text == set* ]] && break
    done <"$0"
    [[ ${1:-} == -h || ${1:-} == --help ]] || { echo "gpu-proof.sh: expected TESTS LOGS SECONDS" >&2; exit 2; }
    exit 0
fi
tests=$1 logs=$2 total=$3
if [[ ! -x $tests ]]; then
    echo "gpu-proof.sh: $tests is not a program: build it with cargo test --release -p natten-kernels --test gpu --no-run" >&2
    exit 2
fi
mkdir -p "$logs" || exit 2

# Seconds that one test may take at most, and its name.
plan=(
    "150 hopper::every_hopper_fna_forward_kernel_matches_the_cpu"
    "150 hopper::every_hopper_fna_backward_kernel_matches_the_cpu"
    "60 dense::every_hopper_fmha_forward_kernel_matches_the_reference"
    "60 dense::every_hopper_fmha_backward_kernel_matches_the_reference"
    "90 dense::every_fmha_forward_kernel_matches_the_reference"
    "90 dense::every_fmha_backward_kernel_matches_the_reference"
    "150 random::random_problems_by_the_dispatcher_match_the_cpu"
    "60 functional_api::dense_attention_runs_as_chosen"
    "60 graph::functional_calls_are_captured_into_graphs"
    "60 refusals::blackwell_operations_are_refused_on_other_devices"
    "60 refusals::a_backend_that_is_not_built_says_so_with_the_plans_reason"
    "60 refusals::the_c_abi_refuses_with_a_status_and_a_message"
    "60 refusals::head_dims_beyond_every_kernel_are_unsupported"
    "60 hopper::what_no_hopper_kernel_takes_is_refused"
    "180 timings::timings"
    "60 overhead::host_overhead"
    "90 determinism::what_is_deterministic_gives_the_same_bits_again"
    "90 determinism::every_hopper_fna_forward_kernel_gives_the_same_bits_again"
    "150 every_fna_forward_kernel_matches_the_cpu"
    "150 every_fna_backward_kernel_matches_the_cpu"
    "90 every_reference_forward_kernel_matches_the_cpu"
    "90 every_reference_backward_kernel_matches_the_cpu"
    "60 reference_and_fna_2d_float16_forward_match_the_cpu"
    "60 token_permutation_is_the_cpus_bit_for_bit_and_its_inverse_returns_the_input"
    "60 compute_delta_matches_the_cpu"
)
sample=sanitizer::sanitizer_sample

# Tests that this list does not know yet come last.
listed=()
while IFS= read -r text; do
    [[ $text == *": test" ]] && listed+=("${text%: test}")
done < <("$tests" --ignored --list 2>"$logs/list.log")
if [[ ${#listed[@]} -eq 0 ]]; then
    echo "gpu-proof.sh: $tests --ignored --list names no test; see $logs/list.log" >&2
    exit 2
fi
for name in "${listed[@]}"; do
    known=$name
    for entry in "${plan[@]}" "0 $sample"; do
        [[ ${entry#* } == "$name" ]] && known=
    done
    [[ -n $known ]] && plan+=("60 $name")
done

summary=() bad=0
# limit, name, command that runs it
run() {
    local limit=$1 name=$2 left=$((total - SECONDS)) start=$SECONDS code word
    shift 2
    if ((left < 3)); then
        summary+=("not run: out of time  $name") bad=1
        return
    fi
    ((limit > left)) && limit=$left
    timeout -k 5 "$limit" "$@" >"$logs/${name//::/.}.log" 2>&1
    code=$?
    case $code in
    0) word=ok ;;
    124 | 137) word=timeout bad=1 ;;
    *) word=FAILED bad=1 ;;
    esac
    summary+=("$word $((SECONDS - start)) $name")
    echo "$word $((SECONDS - start)) s, $((total - SECONDS)) s left: $name"
}

for entry in "${plan[@]}"; do
    name=${entry#* }
    run "${entry%% *}" "$name" "$tests" --exact "$name" --ignored --nocapture --test-threads=1
done

sanitizer=
for candidate in compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer; do
    command -v "$candidate" >/dev/null && { sanitizer=$candidate; break; }
done
if [[ -n $sanitizer ]]; then
    run 240 "$sample" "$sanitizer" --tool memcheck --error-exitcode 9 \
        "$tests" --exact "$sample" --ignored --nocapture --test-threads=1
else
    run 60 "$sample" "$tests" --exact "$sample" --ignored --nocapture --test-threads=1
    summary+=("not run: no compute-sanitizer here  memcheck of $sample") bad=1
fi

echo
printf '%s\n' "${summary[@]}"
echo "$SECONDS of $total s"
exit "$bad"
