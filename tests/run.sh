#!/usr/bin/env bash
# All tests of mpips, or the stages that are named:
#
#   bash tests/run.sh [long] [unit] [mpi] [fault] [jobs] [sanitize] [lint] [versions]
#
# Tests of a library that is not installed are skipped; a line above the last one counts them, by library.
#
# `long` runs what the daily run leaves out: tests with the marker `long`, and all cases of those with the marker
# `sampled`; its sanitizers check every unit test, and it has the stage `versions`. Sets up .venv first. Reports and logs are in build/tests. The last line is
# "N passed, N failed, N skipped"; the exit code is 0 only if nothing failed. A stage that takes longer than its
# budget counts as a failure.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
all=(unit mpi fault jobs sanitize lint)
# Stages that only the long run has, unless they are named.
more=(versions)
out=$root/build/tests
# Numbers of ranks of the MPI tests: the few run beside the first of the many.
few_ranks=(1 2)
many_ranks=(3 5)
lanes=${MPIPS_TEST_LANES:-2}
# Tests run beside each other, so each of them may take this many times as long as it gives itself.
patience=2

# Most seconds of each stage in the daily run on the machine that tests/tally.py --pace compares with. That of
# `sanitize` includes the rest of its build.
declare -A budget=([unit]=800 [mpi]=600 [fault]=900 [jobs]=300 [sanitize]=600 [lint]=300)

long=0
if [[ ${1:-} == long ]]; then
  long=1
  shift
fi
stages=("$@")
if (($# == 0)); then
  stages=("${all[@]}")
  ((!long)) || stages+=("${more[@]}")
fi
if ((long)); then
  export MPIPS_TEST_LONG=1
else
  unset MPIPS_TEST_LONG
fi
for stage in "${stages[@]}"; do
  if [[ " ${all[*]} ${more[*]} " != *" $stage "* ]]; then
    echo "unknown stage '$stage'; there are: ${all[*]} ${more[*]}, and long in front of them" >&2
    exit 2
  fi
done

passed=0 failed=0 skipped=0
summary=()

# count PASSED FAILED SKIPPED
count() {
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# check NAME COMMAND...: a command that counts as one test.
check() {
  local name=$1
  shift
  if "$@"; then
    count 1 0 0
    echo "$name: passed"
  else
    count 0 1 0
    echo "$name: FAILED"
  fi
}

# count_reports CODE REPORT...: what pytest wrote about one launch.
count_reports() {
  local counts
  # Pytest ends with 5 if it has selected nothing: the long run has nothing to add here.
  if ((long && $1 == 5)); then
    return 0
  fi
  counts=$(python tests/tally.py "$@")
  # shellcheck disable=SC2086  # three numbers
  count $counts
}

# has_tests FOLDER: whether there is anything to run.
has_tests() { compgen -G "$1/test_*.py" >/dev/null; }

# May launches run beside each other? Each needs a /dev/shm of its own and cannot meet the segments of the others
# then. Where the kernel does not allow that, everything runs one after the other.
can_run_beside() { ((lanes > 1)) && bash tests/own_shm.sh -c '' 2>/dev/null; }

# launch_lanes N NAME ARGUMENT...: pytest in N processes; most tests wait for launches, not for a core.
launch_lanes() {
  local n=$1 name=$2 flags=()
  shift 2
  rm -f "$out/$name.xml"
  if can_run_beside; then
    flags=(--dist worksteal --tx "$n*popen//python=bash tests/own_shm.sh")
  fi
  python -m pytest --junitxml="$out/$name.xml" "${flags[@]}" "$@"
}

# run_lanes N NAME ARGUMENT...: the same, counted.
run_lanes() {
  local code=0
  launch_lanes "$@" || code=$?
  count_reports "$code" "$out/$2.xml"
}

# end_all: end what runs in the background, then all processes and segments of the tests.
end_all() {
  local running
  running=$(jobs -pr)
  # shellcheck disable=SC2086  # several numbers, or none
  [[ -z $running ]] || kill $running
  python tests/support/processes.py left "MPIPS_TEST_RUN=$MPIPS_TEST_RUN" "${segments[@]}"
}

# One rank of a launch of pytest: rank 0 talks, the others write to files.
# shellcheck disable=SC2016
rank_script='
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-0}}}
command=(python -m mpi4py -m pytest tests/mpi --with-mpi --timeout=300 --timeout-method=thread
  --junitxml="$1-$rank.xml")
if [[ $rank == 0 ]]; then
  exec "${command[@]}"
fi
exec "${command[@]}" >"$1-$rank.log" 2>&1
'

run_lint() {
  finish_beside
  local sources
  ((!long)) || return 0
  if [[ -f $out/lint.log ]]; then
    cat "$out/lint.log"
    count "$(grep -c ': passed$' "$out/lint.log")" "$(grep -c ': FAILED$' "$out/lint.log")" 0
    return 0
  fi
  mapfile -t sources < <(find native tests -name '*.cpp' -o -name '*.hpp')
  check "ruff check" ruff check
  check "ruff format" ruff format --check
  check "mypy" mypy --strict mpips tests/bench
  check "clang-format" clang-format --dry-run -Werror "${sources[@]}"
}

run_unit() {
  has_tests tests/unit || return 0
  start_jobs
  # Tests that start programs wait for them a third of the time.
  run_lanes $((lanes + 1)) unit --timeout=$((120 * patience)) tests/unit
}

# launch_sizes N...: the tests on N ranks, one size after the other; the exit codes go to files.
launch_sizes() {
  local n code flags own=()
  # Traps of the whole run are not for this process.
  trap - INT QUIT TERM
  if can_run_beside; then
    own=(bash tests/own_shm.sh -c 'import os, sys; os.execvp(sys.argv[1], sys.argv[1:])')
  fi
  for n in "$@"; do
    read -ra flags < <(mpirun_flags "$n"; echo)
    echo "--- $n ranks"
    rm -f "$out/mpi-$n"-* "$out/mpi-$n.code"
    code=0
    timeout --kill-after=10 1800 "${own[@]}" mpirun -n "$n" "${flags[@]}" \
      bash -c "$rank_script" rank "$out/mpi-$n" || code=$?
    echo "$code" >"$out/mpi-$n.code"
  done
}

# Launches of mpirun run in the background, or Ctrl-C would wait for their end.
run_mpi() {
  local n rank code few="" reports
  has_tests tests/mpi || return 0
  # shellcheck disable=SC2031  # launch_sizes sets no variable of this process
  if can_run_beside; then
    launch_sizes "${few_ranks[@]}" </dev/null >"$out/mpi-few.log" 2>&1 &
    few=$!
    launch_sizes "${many_ranks[0]}" </dev/null &
    wait "$!" || true
    wait "$few" || true
    cat "$out/mpi-few.log"
    launch_sizes "${many_ranks[@]:1}" </dev/null &
  else
    launch_sizes "${few_ranks[@]}" "${many_ranks[@]}" </dev/null &
  fi
  wait "$!" || true
  for n in "${few_ranks[@]}" "${many_ranks[@]}"; do
    code=$(cat "$out/mpi-$n.code" || echo 1)
    reports=()
    for ((rank = 0; rank < n; rank++)); do
      reports+=("$out/mpi-$n-$rank.xml")
    done
    count_reports "$code" "${reports[@]}"
    if ((code)); then
      # Mostly they fail like rank 0; what they say is enough to see where not.
      for ((rank = 1; rank < n; rank++)); do
        echo "--- rank $rank of $n, all of it in build/tests/mpi-$n-$rank.log"
        grep -aE '^(E  |FAILED|ERROR|Timeout)|(Error|Exception):' "$out/mpi-$n-$rank.log" | tail -n 20 || true
      done
    fi
  done
}

run_fault() {
  has_tests tests/fault || return 0
  start_beside
  # Ranks of a launch wait for each other nearly half of the time.
  run_lanes $((lanes + 1)) fault --timeout=$((300 * patience)) tests/fault
}

# launch_jobs N: each of N lanes has a Slurm of its own, so tests of one file share it.
launch_jobs() { launch_lanes "$1" jobs --timeout=$((300 * patience)) --dist loadfile --no-loadscope-reorder tests/jobs; }

run_jobs() {
  local code=0
  has_tests tests/jobs || return 0
  if [[ -n $jobs_job ]]; then
    wait "$jobs_job" || code=$?
    jobs_job=""
    cat "$out/jobs.log"
  else
    # Jobs wait for Slurm most of the time.
    launch_jobs $((lanes + 1)) || code=$?
  fi
  jobs_done=1
  count_reports "$code" "$out/jobs.xml"
}

# Unit tests that start programs, which load the ordinary module, or that enter it little or never; and those of
# torch, jax, keras and scikit-learn, whose libraries do not run with the sanitizers' runtimes. Simulations change
# stacks without the sanitizers' knowledge.
without_native=(bench/test_bench_gpu.py cli/test_checkpoint_cli.py cli/test_cli.py cli/test_memory_errors.py config/test_config.py
  data/test_arrow.py doctor/test_doctor.py doctor/test_doctor_clean.py doctor/test_doctor_command.py
  doctor/test_doctor_launches.py inference/test_other_libraries.py inference/test_serving.py
  inference/test_streaming.py jax keras kernels/test_instruction_sets.py mpi_package/test_launch.py
  mpi_package/test_roles.py plan/test_plan.py plan/test_plan_command.py plan/test_planned_rows.py plan/test_times.py
  rundir scheduler simulation sklearn suites/test_data.py suites/test_fused.py suites/test_growth.py
  suites/test_history.py supervisor tasks/test_mixed.py test_batch_functions.py test_documents.py test_fault_layer.py
  test_imports.py test_changelog.py test_job_scripts.py test_names.py test_repository.py test_run_script.py test_setup_packages.py test_setup_scripts.py
  test_site.py test_stubs.py test_version.py test_words.py torch training/test_best.py training/test_evaluation.py training/test_quality_local.py web)

# What the sanitizers check by day: the tests that enter native code most. Kill rigs try few points there. The long
# run checks all unit tests but those `without_native`, with all their cases.
sanitized_by_day=(checkpoint/test_background.py checkpoint/test_checkpoint_file.py data/test_bad_lines.py
  data/test_csv_parser.py data/test_csv_paths.py data/test_file_blocks.py data/test_interleave.py data/test_libsvm.py
  data/test_text.py kernels model/test_initializer.py model/test_key_plan.py model/test_optimizer.py
  model/test_partition.py model/test_placement.py recovery server snapshot transport worker)

# sanitizer_libraries: print the runtimes, which come first in the process; libstdc++ too, or exceptions cannot be
# traced. Print nothing if the compiler has none.
sanitizer_libraries() {
  local name library libraries=()
  for name in libasan.so libubsan.so libstdc++.so; do
    library=$("${CXX:-c++}" -print-file-name="$name")
    [[ $library == /* ]] || return 0
    libraries+=("$(realpath "$library")")
  done
  echo "${libraries[*]}"
}

# Unit tests once more on a native module that stops at the first bad access or overflow.
run_sanitize() {
  local name libraries chosen=() ignored=() code=0
  finish_beside
  has_tests tests/unit || return 0
  libraries=$(sanitizer_libraries)
  if [[ -z $libraries ]]; then
    echo "skipped: the compiler has no libasan.so, libubsan.so and libstdc++.so"
    count 0 0 1
    return 0
  fi
  if [[ ! -f $out/sanitize-build.code ]] && ! build_sanitized >"$out/sanitize-build.log" 2>&1; then
    tail -n 40 "$out/sanitize-build.log"
    count 0 1 0
    return 0
  fi
  for name in "${without_native[@]}"; do
    ignored+=("--ignore=tests/unit/$name")
  done
  if ((long)); then
    chosen=(tests/unit)
  else
    chosen=("${sanitized_by_day[@]/#/tests/unit/}")
  fi
  rm -f "$out/sanitize.xml"
  (
    export MPIPS_NATIVE_DIR=$root/build/sanitize
    # Python never frees what lives to the end, so leaks cannot be told. Tests that store into
    # read-only memory expect the signal itself.
    export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:handle_segv=0:handle_sigbus=0 UBSAN_OPTIONS=print_stacktrace=1
    export LD_PRELOAD="$libraries"
    if ((long)); then
      # The daily run checks a part of the files only, so here all tests run, not just what has more cases.
      export MPIPS_TEST_ALL=1
    fi
    exec python -m pytest -p no:cacheprovider --junitxml="$out/sanitize.xml" --timeout=900 \
      --dist worksteal --tx "2*popen" "${chosen[@]}" "${ignored[@]}"
  ) || code=$?
  count_reports "$code" "$out/sanitize.xml"
}

# Unit tests of a daily run, and a training, with the lowest and with the newest versions; see tests/versions.py.
run_versions() {
  local half code flags=()
  if can_run_beside; then
    flags=(--dist worksteal --tx "$lanes*popen//python=bash tests/own_shm.sh")
  fi
  for half in lowest newest; do
    code=0
    python tests/versions.py "$half" prepare || code=$?
    if ((code == 69)); then
      count 0 0 1
      continue
    elif ((code)); then
      echo "the $half versions: FAILED to install"
      count 0 1 0
      continue
    fi
    rm -f "$out/versions-$half.xml"
    python tests/versions.py "$half" test "$out/versions-$half.xml" "${flags[@]}" || code=$?
    # A run without tests is no success here.
    count_reports $((code == 5 ? 1 : code)) "$out/versions-$half.xml"
    check "mpips demo, $half versions" python tests/versions.py "$half" demo
  done
}

# wants STAGE: whether it is one of the stages of this run.
wants() { [[ " ${stages[*]} " == *" $1 "* ]]; }

# Lint and the build of the sanitizers' module need no launches: they run beside those of the fault stage and of the
# jobs, which wait for each other nearly half of their time. What needs them calls `finish_beside`.
beside_job=""
start_beside() {
  rm -f "$out/lint.log" "$out/sanitize-build.code"
  (
    trap - INT QUIT TERM
    renice -n 10 "$BASHPID" >/dev/null 2>&1 || true
    if wants lint; then
      run_lint >"$out/lint.new" 2>&1
      mv "$out/lint.new" "$out/lint.log"
    fi
    if wants sanitize && [[ -n $(sanitizer_libraries) ]]; then
      build_sanitized >"$out/sanitize-build.log" 2>&1 && echo 0 >"$out/sanitize-build.code"
    fi
  ) </dev/null &
  beside_job=$!
}

jobs_job=""
jobs_done=0
# start_jobs: the jobs' ranks wait for each other actively, so on more than two cores they run in one lane beside
# the unit tests, where their stage is still to come.
start_jobs() {
  if wants jobs && ((!jobs_done && $(env -u OMP_NUM_THREADS nproc) > 2)) && can_run_beside && has_tests tests/jobs; then
    (
      trap - INT QUIT TERM
      launch_jobs 1
    ) </dev/null >"$out/jobs.log" 2>&1 &
    jobs_job=$!
  fi
}

finish_beside() {
  [[ -n $beside_job ]] || return 0
  wait "$beside_job" || true
  beside_job=""
}

# ordinary_build: print the folder in which the set-up has compiled mpips, if it is there.
ordinary_build() {
  local tag folders
  tag=$(python -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')
  folders=("$root/build/$tag"-*)
  [[ ! -d ${folders[0]}/CMakeFiles/bindings.dir ]] || echo "${folders[0]}"
}

# build_sanitized: by day without checks in the bindings, which convert arguments and take as long to compile with
# them as all the rest, and without the loops of mpips.bench. The long run compiles each file alone, which shows
# what a file lacks.
build_sanitized() {
  local bindings="" bench=ON unity=OFF
  ((long)) || bindings=$(ordinary_build) bench=OFF unity=ON
  # Objects of files that are gone would be linked as well.
  [[ -z $bindings ]] || ninja -C "$bindings" -t cleandead
  cmake -S native -B build/sanitize -G Ninja -DMPIPS_SANITIZE=ON -DMPIPS_FAULTS=ON \
    -DMPIPS_BINDINGS_OF="$bindings" -DMPIPS_BENCH="$bench" -DMPIPS_UNITY="$unity" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" -DPython_EXECUTABLE="$(command -v python)" &&
    cmake --build build/sanitize
}

# over_budget STAGE SECONDS: whether the stage took longer than it may; the long run has no budgets.
over_budget() {
  ((!long)) && [[ -n ${budget[$1]:-} ]] && awk "BEGIN { exit !($2 > ${budget[$1]} * $pace) }"
}

# run_stage NAME: run it and note what it brought.
run_stage() {
  local started=$SECONDS before=("$passed" "$failed" "$skipped") line
  printf '\n=== %s\n' "$1"
  "run_$1"
  if over_budget "$1" $((SECONDS - started)); then
    echo "FAILED: the stage $1 took $((SECONDS - started)) s; its budget is ${budget[$1]} s x $pace"
    count 0 1 0
  fi
  line=$(printf '%-9s %5d s   %5d passed %3d failed %3d skipped' "$1" $((SECONDS - started)) \
    $((passed - before[0])) $((failed - before[1])) $((skipped - before[2])))
  if ((passed + failed + skipped == before[0] + before[1] + before[2])); then
    line+="   (no tests yet)"
  fi
  summary+=("$line")
}

# No process and no shared memory of the tests may outlive them.
run_leftovers() {
  local left
  left=$(python tests/support/processes.py left "MPIPS_TEST_RUN=$MPIPS_TEST_RUN" "${segments[@]}")
  if [[ -n $left ]]; then
    echo "left behind by the tests:"
    echo "$left"
    count 0 1 0
  else
    echo "nothing"
    count 1 0 0
  fi
}

finish() {
  if [[ -n $(compgen -G "$out/*.xml") ]]; then
    printf '\n=== the 30 slowest tests\n'
    python tests/tally.py --slowest 30 "$out"/*.xml
    printf '\n=== processor time\n'
    python tests/tally.py --cpu "$out"/*.xml
  fi
  printf '\n=== summary\n'
  if ((${#summary[@]})); then
    printf '%s\n' "${summary[@]}"
  fi
  if [[ -n $(compgen -G "$out/*.xml") ]]; then
    python tests/tally.py --missing "$out"/*.xml
  fi
  echo "$passed passed, $failed failed, $skipped skipped"
}

if ! MPIPS_SETUP_TESTS=1 bash jobs/setup.sh; then
  failed=1
  finish
  exit 1
fi
source jobs/env.sh
mkdir -p "$out"
rm -f "$out"/*.xml "$out/lint.log" "$out/sanitize-build.code"
summary+=("$(printf '%-9s %5d s' set-up "$SECONDS")")
pace=$(python tests/tally.py --pace)
echo "this machine takes $pace times as long as the reference"
# What the set-up has written would make the tests' checkpoints wait for the disk, for minutes.
timeout 300 sync || true

export NO_COLOR=1 PY_COLORS=0
# Launches that run beside each other must not be pinned to the same core.
export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
# Open MPI searches for a fabric of libfabric for a second in each MPI_Init. Without a device there is none.
if [[ -z ${OMPI_MCA_btl:-}${OMPI_MCA_pml:-} && -z $(ls /sys/class/infiniband /sys/class/cxi 2>/dev/null) ]]; then
  export OMPI_MCA_btl=^ofi OMPI_MCA_pml=ob1
fi
# Without compiled modules each process would compile all of mpips and of the tests.
unset PYTHONDONTWRITEBYTECODE
# Every process of the tests has this in its environment.
export MPIPS_TEST_RUN=$$-$RANDOM MPIPS_TEST_PATIENCE=$patience
mapfile -t segments < <(python tests/support/processes.py segments)
trap 'end_all; exit 130' INT TERM

for stage in "${stages[@]}"; do
  # Where there is a fault stage, lint runs beside it and its results are shown at the end.
  if [[ $stage != lint ]] || ! wants fault; then
    run_stage "$stage"
  fi
done
if wants lint && wants fault; then
  run_stage lint
fi
run_stage leftovers
finish
((failed == 0))
