#!/usr/bin/env bash
# Runs a command with torch's CUDA build on an imitated device, on a machine without one:
#
#   bash tests/imitated_cuda/run.sh                       # mpips bench gpu --check
#   bash tests/imitated_cuda/run.sh python script.py
#   IMITATED_CUDA_DEVICES=2 bash tests/imitated_cuda/run.sh mpips run -n 4 script.py
#
# What mpips and torch do on the host runs as with CUDA: streams, events, registered and pinned memory, torch's
# allocator, autograd's thread of the device. Kernels are computed on the CPU; see imitation.hpp and imitated_kernels.py.
# Speed means nothing here. The first call needs tests/run.sh or jobs/setup.sh before it, downloads 2.5 GB and
# takes 6 GB in .imitated-cuda.
set -euo pipefail
called_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/imitated_cuda
home=$PWD/.imitated-cuda
if [[ ! -x .venv/bin/python ]]; then
  echo "run.sh: there is no .venv: run bash jobs/setup.sh first" >&2
  exit 69
fi
version=$(sed -n 's/^.*torch==\([0-9.]*\)+cpu .*$/\1/p' jobs/setup.sh | head -1)
packages=$home/lib/python$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages

if [[ ! -f $home/torch-$version ]]; then
  echo "run.sh: installing torch $version for CUDA into $home"
  .venv/bin/python -m venv "$home"
  # The CPU build of the tests lies in a folder that pip is told to prefer.
  env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null \
    "$home/bin/python" -m pip install --quiet --no-cache-dir "torch==$version" "nvidia-cuda-crt==13.0.*"
  touch "$home/torch-$version"
fi

library=$home/libcudart.so.13
if [[ ! -f $library || -n $(find $here -name '*pp' -newer "$library") ]]; then
  echo "run.sh: compiling the imitated runtime"
  g++ -std=c++17 -O1 -fPIC -Wall -I"$packages/nvidia/cu13/include" -r -o "$home/runtime.o" $here/*.cpp
  symbols() { # libraries: functions with names like $pattern that they take from others
    nm -D --undefined-only "$@" 2>/dev/null | awk '{sub(/@.*/, "", $2); print $2}' |
      grep -E "$pattern" | sort -u
  }
  # Functions that torch names and does not call here return cudaErrorNotSupported.
  pattern='^(__)?cuda'
  comm -23 <(symbols "$packages"/torch/lib/*.so) <(nm "$home/runtime.o" | awk '$2 == "T" {print $3}' | sort) |
    sed 's/.*/int &(void) { return 801; }/' >"$home/rest.c"
  echo 'libcudart.so.13 { global: cuda*; __cuda*; imitated_cuda*; local: *; };' >"$home/versions"
  gcc -fPIC -c "$home/rest.c" -o "$home/rest.o"
  # Of the driver torch asks whether a device is in use, and nothing else.
  pattern='^cu[A-Z]'
  symbols "$packages/torch/lib/libcaffe2_nvrtc.so" | grep -v '^cuDevicePrimaryCtxGetState$' |
    sed 's/.*/int &(void) { return 801; }/' >"$home/driver.c"
  echo 'int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0; *active = 1; return 0; }' >>"$home/driver.c"
  gcc -fPIC -shared "$home/driver.c" -Wl,-soname,libcuda.so.1 -o "$home/libcuda.so.1"
  g++ -shared "$home/runtime.o" "$home/rest.o" -Wl,-soname,libcudart.so.13 \
    -Wl,--version-script="$home/versions" -o "$library"
fi

# shellcheck source=/dev/null
. .venv/bin/activate
# shellcheck source=/dev/null
. jobs/env.sh
export PYTHONPATH=$PWD/$here:$packages${PYTHONPATH:+:$PYTHONPATH}
export LD_LIBRARY_PATH=$home${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_PRELOAD=$library
if [[ $# == 0 ]]; then
  set -- mpips bench gpu --check
fi
cd "$called_in"
exec "$@"
