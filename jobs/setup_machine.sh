# The part of setup.sh that finds out what the machine has and lacks; it changes nothing. setup.sh sources it
# and sets `root`, `venv`, `state` and `fail`. The tests run it with a made-up PATH.

# shellcheck disable=SC2154

# site_path: print the PATH without .venv, which has the programs of the machine or the site.
site_path() { printf '%s' "$PATH" | tr ':' '\n' | grep -vxF "$venv/bin" | paste -sd: -; }

# site_command NAME: print the path of a program outside .venv.
site_command() { PATH=$(site_path) command -v "$1"; }

can_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# loaded_mpicc: print the mpicc that a module or the user has put on PATH on purpose. An mpicc in /usr/bin
# does not count: it is merely installed.
loaded_mpicc() {
  local mpicc home
  mpicc=$(site_command mpicc) || return 1
  case $mpicc in
    /usr/bin/* | /bin/*) return 1 ;;
  esac
  if [[ -n ${LOADEDMODULES:-} ]]; then
    printf '%s\n' "$mpicc"
    return 0
  fi
  for home in "${MPI_HOME:-}" "${MPI_ROOT:-}" "${MPI_DIR:-}" "${OPENMPI_ROOT:-}" \
    "${MPICH_DIR:-}" "${I_MPI_ROOT:-}" "${EBROOTOPENMPI:-}" "${EBROOTMPICH:-}"; do
    if [[ -n $home && $mpicc == "${home%/}"/* ]]; then
      printf '%s\n' "$mpicc"
      return 0
    fi
  done
  return 1
}

# choose_mpi: print wheel, mpich, intel or system.
choose_mpi() {
  case ${MPIPS_MPI:-} in
    wheel | mpich | system) printf '%s\n' "$MPIPS_MPI" ;;
    intel)
      [[ $(uname -m) == x86_64 ]] || fail 2 "MPIPS_MPI=intel: Intel MPI exists for x86_64 only, and this is $(uname -m)"
      echo intel
      ;;
    "")
      if [[ -s $state/choice.mpi ]]; then
        cat "$state/choice.mpi"
      elif loaded_mpicc >/dev/null; then
        echo system
      else
        echo wheel
      fi
      ;;
    *) fail 2 "MPIPS_MPI=$MPIPS_MPI: must be wheel, mpich, intel or system" ;;
  esac
}

# choose_hdf5 MPI: print parallel or serial. With the wheels of MPICH and Intel MPI it is serial, because a
# distribution's HDF5 for MPICH is linked to the distribution's MPICH, which has another library name than the
# wheel's: a process would load two MPIs.
choose_hdf5() {
  local elsewhere=${HDF5_DIR:-${HDF5_ROOT:-${HDF5_HOME:-}}}
  case ${MPIPS_HDF5:-} in
    parallel)
      [[ $1 != mpich && $1 != intel || -n $elsewhere ]] ||
        fail 2 "MPIPS_MPI=$1 with MPIPS_HDF5=parallel needs HDF5_DIR, an HDF5 built with that MPI"
      echo parallel
      ;;
    serial) echo serial ;;
    "")
      if [[ $1 == mpich || $1 == intel ]] && [[ -z $elsewhere ]]; then
        echo serial
      elif [[ -s $state/choice.hdf5 ]]; then
        cat "$state/choice.hdf5"
      else
        echo parallel
      fi
      ;;
    *) fail 2 "MPIPS_HDF5=$MPIPS_HDF5: must be parallel or serial" ;;
  esac
}

# choose_faults: print ON if the native module gets fault points, else OFF. The tests need them. A module
# with fault points works for users, too, so a .venv that has one keeps it.
choose_faults() {
  if [[ -n ${MPIPS_SETUP_TESTS:-} ]] || grep -qsx ON "$state/choice.faults"; then
    echo ON
  else
    echo OFF
  fi
}

# mpi_family CHOICE: print openmpi or mpich; mpich includes MPIs with its ABI.
mpi_family() {
  local mpicc
  if [[ $1 == mpich || $1 == intel ]]; then
    echo mpich
  elif [[ $1 == system ]] && mpicc=$(site_command mpicc) &&
    [[ $("$mpicc" --showme:version 2>/dev/null) != *"Open MPI"* ]]; then
    echo mpich
  else
    echo openmpi
  fi
}

# parallel_hdf5 FAMILY: print the include and the lib folder of a parallel HDF5, one per line; fail if there
# is none.
parallel_hdf5() {
  local prefix=${HDF5_DIR:-${HDF5_ROOT:-${HDF5_HOME:-}}} wrapper word include="" lib=""
  if [[ -z $prefix ]]; then
    wrapper=$(site_command "h5pcc.$1" || site_command h5pcc) || return 1
    for word in $("$wrapper" -show 2>/dev/null); do
      case $word in
        -I*) include=${include:-${word#-I}} ;;
        -L*) lib=${lib:-${word#-L}} ;;
      esac
    done
    prefix=$(dirname "$(dirname "$wrapper")")
  fi
  include=${include:-$prefix/include}
  if [[ -z $lib ]]; then
    lib=$prefix/lib
    [[ -e $lib/libhdf5.so || ! -e $prefix/lib64/libhdf5.so ]] || lib=$prefix/lib64
  fi
  grep -qsE '^#define H5_HAVE_PARALLEL 1' "$include"/H5pubconf*.h || return 1
  printf '%s\n%s\n' "$include" "$lib"
}

# python_lacks PYTHON: print what this interpreter lacks; nothing if it is suitable.
python_lacks() {
  "$1" - 2>/dev/null <<'PY' || echo "an interpreter that starts"
import importlib.util
import pathlib
import sys
import sysconfig

if sys.version_info < (3, 10):
    print("version 3.10 or newer")
elif any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
    print("the modules venv and ensurepip")
elif not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists():
    print("the header Python.h")
PY
}

# find_python: print the first suitable interpreter. If there is none, print why the first one is not
# suitable, and fail.
find_python() {
  local name path lacks reason="no Python was found"
  local names=(python3 python3.13 python3.12 python3.11 python3.10 python3.14 python)
  if [[ -n ${MPIPS_PYTHON:-} ]]; then
    names=("$MPIPS_PYTHON")
  fi
  for name in "${names[@]}"; do
    path=$(site_command "$name") || continue
    lacks=$(python_lacks "$path")
    if [[ -z $lacks ]]; then
      printf '%s\n' "$path"
      return 0
    fi
    if [[ $reason == "no Python was found" ]]; then
      reason="$path lacks $lacks"
    fi
  done
  printf '%s\n' "$reason"
  return 1
}

compiler() { printf '%s\n' "${CXX:-c++}"; }

has_compiler() { site_command "$(compiler)" >/dev/null; }

# new_compiler: succeed if the compiler has std::from_chars for double, as GCC has from version 11 on.
new_compiler() {
  printf '%s\n' '#include <charconv>' 'double x; auto y = std::from_chars("1", nullptr, x);' |
    "$(compiler)" -std=c++17 -fsyntax-only -x c++ - >/dev/null 2>&1
}

# has_header HEADER FOLDER: succeed if the compiler finds the header, by itself or in FOLDER ("": no folder).
has_header() {
  local flags=()
  if [[ -n $2 ]]; then
    flags=(-I "$2")
  fi
  has_compiler && echo "#include <$1>" | "$(compiler)" -E -x c++ "${flags[@]}" - >/dev/null 2>&1
}

# has_robin_map: succeed if there is the map with which `python -m tests.bench maps` compares the key map.
has_robin_map() { has_header tsl/robin_map.h "${MPIPS_ROBIN_MAP_DIR:-}"; }

# missing MPI HDF5: print one word for each missing thing that pip cannot install.
missing() {
  local family
  family=$(mpi_family "$1")
  if ! usable_venv && ! find_python >/dev/null; then echo python; fi
  if ! has_compiler || ! new_compiler; then echo compiler; fi
  if [[ $1 == system ]] && ! site_command mpicc >/dev/null; then echo mpi; fi
  if [[ $2 == parallel ]] && ! parallel_hdf5 "$family" >/dev/null; then echo hdf5; fi
}

# conveniences: print the missing packages that are useful but not necessary.
conveniences() {
  if ! has_robin_map; then echo robin-map-dev; fi
  if ! command -v h5ls >/dev/null; then echo hdf5-tools; fi
  if ! command -v ip >/dev/null; then echo iproute2; fi
  if ! command -v make >/dev/null; then echo make; fi
  if [[ -n ${MPIPS_SETUP_TESTS:-} ]]; then test_tools; fi
}

# test_tools: print the missing packages with which tests/run.sh runs more tests; none of Slurm if there is
# one already.
test_tools() {
  if ! command -v shellcheck >/dev/null; then echo shellcheck; fi
  if ! command -v gfortran >/dev/null; then echo gfortran; fi
  if ! command -v redis-server >/dev/null; then echo redis-server; fi
  if ! command -v prometheus >/dev/null; then echo prometheus; fi
  if ! command -v sbatch >/dev/null; then
    echo slurm-wlm
    echo munge
  fi
  if ! command -v chromedriver >/dev/null; then
    echo chromium
    echo chromium-driver
  fi
}

# apt_names FAMILY THING...: print the packages of Debian and Ubuntu.
apt_names() {
  local family=$1 thing
  shift
  for thing in "$@"; do
    case $thing in
      python) echo python3 python3-venv python3-dev ;;
      compiler) echo g++ make ;;
      mpi) echo openmpi-bin libopenmpi-dev ;;
      hdf5) echo "libhdf5-$family-dev" hdf5-tools ;;
      *) echo "$thing" ;;
    esac
  done | paste -sd' ' -
}

# dnf_names FAMILY THING...: print the packages of Fedora and its relatives.
dnf_names() {
  local family=$1 thing
  shift
  for thing in "$@"; do
    case $thing in
      python) echo python3.11 python3.11-devel ;;
      compiler) echo gcc-c++ make ;;
      mpi) echo openmpi-devel ;;
      hdf5) echo "hdf5-$family-devel" hdf5 ;;
    esac
  done | paste -sd' ' -
}

# explain FAMILY THING...: print one message about everything that is missing.
explain() {
  local family=$1 thing
  shift
  echo "mpips set-up: this machine lacks:"
  for thing in "$@"; do
    case $thing in
      python) echo "  - a Python >= 3.10 that can make virtual environments ($(find_python || true))" ;;
      compiler) echo "  - a C++17 compiler with std::from_chars for double, as GCC has from version 11 on ($(compiler_reason))" ;;
      mpi) echo "  - mpicc, which MPIPS_MPI=system asks for (MPIPS_MPI=wheel installs Open MPI by pip)" ;;
      hdf5) echo "  - HDF5 built for MPI ($(hdf5_reason))" ;;
    esac
  done
  echo "Do one of these, then run this script again:"
  echo "  Debian, Ubuntu:  apt-get install $(apt_names "$family" "$@")"
  echo "  Fedora, RHEL:    dnf install $(dnf_names "$family" "$@")"
  case " $* " in
    *" hdf5 "* | *" mpi "*) echo "                   then: module load mpi/$family-$(uname -m)" ;;
  esac
  echo "  on a cluster:    load the modules in jobs/env.sh, for example: module load gcc openmpi hdf5/1.14-mpi"
  case " $* " in
    *" hdf5 "*)
      echo "  elsewhere:       HDF5_DIR=/path/to/parallel/hdf5 bash jobs/setup.sh"
      echo "  without it:      MPIPS_HDF5=serial bash jobs/setup.sh   (no parallel checkpoints)"
      ;;
  esac
}

# compiler_reason: print why the compiler cannot be used.
compiler_reason() {
  if has_compiler; then
    echo "$("$(compiler)" --version | head -n 1) lacks it; CXX names another one"
  else
    echo "$(compiler) is not on PATH; CXX names another one"
  fi
}

# hdf5_reason: print why no parallel HDF5 was found.
hdf5_reason() {
  local prefix=${HDF5_DIR:-${HDF5_ROOT:-${HDF5_HOME:-}}}
  if [[ -n $prefix ]]; then
    echo "the one in $prefix is missing or not built for MPI"
  elif site_command h5pcc >/dev/null; then
    echo "the one of $(site_command h5pcc) is not built for MPI"
  else
    echo "h5pcc is not on PATH and HDF5_DIR is not set"
  fi
}

# usable_venv: succeed if .venv has a suitable Python with pip.
usable_venv() { "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
