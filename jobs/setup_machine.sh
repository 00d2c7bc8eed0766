# What the machine offers and what it lacks: the part of setup.sh that looks and changes nothing. Sourced
# by setup.sh, which sets `root`, `venv`, `state` and `fail`; tested with a made-up PATH.

# shellcheck disable=SC2154

# The PATH without .venv: what the machine or the site offers.
site_path() { printf '%s' "$PATH" | tr ':' '\n' | grep -vxF "$venv/bin" | paste -sd: -; }

# site_command NAME: its path, outside .venv.
site_command() { PATH=$(site_path) command -v "$1"; }

can_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# loaded_mpicc: print the mpicc that a module or the user has put on PATH on purpose. The one in
# /usr/bin is merely installed.
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

# choose_mpi: print wheel, mpich or system.
choose_mpi() {
  case ${MPIPS_MPI:-} in
    wheel | mpich | system) printf '%s\n' "$MPIPS_MPI" ;;
    "")
      if [[ -s $state/choice.mpi ]]; then
        cat "$state/choice.mpi"
      elif loaded_mpicc >/dev/null; then
        echo system
      else
        echo wheel
      fi
      ;;
    *) fail 2 "MPIPS_MPI=$MPIPS_MPI is not known; it is wheel, mpich or system" ;;
  esac
}

# choose_hdf5 MPI: print parallel or serial. A distribution's HDF5 for MPICH is linked to the distribution's
# MPICH, by another library name than the wheel's: a process would hold two MPIs.
choose_hdf5() {
  local elsewhere=${HDF5_DIR:-${HDF5_ROOT:-${HDF5_HOME:-}}}
  case ${MPIPS_HDF5:-} in
    parallel)
      [[ $1 != mpich || -n $elsewhere ]] ||
        fail 2 "MPIPS_MPI=mpich with MPIPS_HDF5=parallel wants HDF5_DIR, an HDF5 built with that MPICH"
      echo parallel
      ;;
    serial) echo serial ;;
    "")
      if [[ $1 == mpich && -z $elsewhere ]]; then
        echo serial
      elif [[ -s $state/choice.hdf5 ]]; then
        cat "$state/choice.hdf5"
      else
        echo parallel
      fi
      ;;
    *) fail 2 "MPIPS_HDF5=$MPIPS_HDF5 is not known; it is parallel or serial" ;;
  esac
}

# mpi_family CHOICE: print openmpi or mpich (and those that share its ABI).
mpi_family() {
  local mpicc
  if [[ $1 == mpich ]]; then
    echo mpich
  elif [[ $1 == system ]] && mpicc=$(site_command mpicc) &&
    [[ $("$mpicc" --showme:version 2>/dev/null) != *"Open MPI"* ]]; then
    echo mpich
  else
    echo openmpi
  fi
}

# parallel_hdf5 FAMILY: print "INCLUDE LIB" of a parallel HDF5, one per line; fail if there is none.
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

# python_lacks PYTHON: print what this interpreter lacks; nothing if it will do.
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

# find_python: print the first interpreter that will do. On failure print why the first one will not.
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

# has_header HEADER FOLDER: the compiler finds it, by itself or in this folder (which may be empty).
has_header() {
  local flags=()
  if [[ -n $2 ]]; then
    flags=(-I "$2")
  fi
  has_compiler && echo "#include <$1>" | "$(compiler)" -E -x c++ "${flags[@]}" - >/dev/null 2>&1
}

has_xxhash() { has_header xxhash.h "${MPIPS_XXHASH_DIR:-}"; }

# What `mpips bench kernels` compares the key map with.
has_robin_map() { has_header tsl/robin_map.h "${MPIPS_ROBIN_MAP_DIR:-}"; }

# missing MPI HDF5: print one word for everything that pip cannot bring.
missing() {
  local family
  family=$(mpi_family "$1")
  if ! usable_venv && ! find_python >/dev/null; then echo python; fi
  if ! has_compiler; then echo compiler; fi
  if [[ $1 == system ]] && ! site_command mpicc >/dev/null; then echo mpi; fi
  if [[ $2 == parallel ]] && ! parallel_hdf5 "$family" >/dev/null; then echo hdf5; fi
}

# conveniences: print the packages that are good to have and can be done without.
conveniences() {
  if ! has_xxhash; then echo libxxhash-dev; fi
  if ! has_robin_map; then echo robin-map-dev; fi
  if ! command -v h5ls >/dev/null; then echo hdf5-tools; fi
  if ! command -v ip >/dev/null; then echo iproute2; fi
  if ! command -v make >/dev/null; then echo make; fi
  if [[ -n ${MPIPS_SETUP_TESTS:-} ]]; then test_tools; fi
}

# test_tools: what tests/run.sh can do more with. Where there is an sbatch, the site's Slurm is left alone.
test_tools() {
  if ! command -v shellcheck >/dev/null; then echo shellcheck; fi
  if ! command -v sbatch >/dev/null; then
    echo slurm-wlm
    echo munge
  fi
}

# apt_names FAMILY THING...: the packages of Debian and Ubuntu.
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

# dnf_names FAMILY THING...: the packages of Fedora and its relatives.
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

# explain FAMILY THING...: the one message about all that is missing.
explain() {
  local family=$1 thing
  shift
  echo "mpips set-up: this machine lacks:"
  for thing in "$@"; do
    case $thing in
      python) echo "  - a Python >= 3.10 that can make virtual environments ($(find_python || true))" ;;
      compiler) echo "  - a C++17 compiler ($(compiler) is not on PATH; CXX names another one)" ;;
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

hdf5_reason() {
  local prefix=${HDF5_DIR:-${HDF5_ROOT:-${HDF5_HOME:-}}}
  if [[ -n $prefix ]]; then
    echo "the one in $prefix is not, or is not there"
  elif site_command h5pcc >/dev/null; then
    echo "$(site_command h5pcc) leads to one that is not"
  else
    echo "no h5pcc on PATH, HDF5_DIR is not set"
  fi
}

usable_venv() { "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
