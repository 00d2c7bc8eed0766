#!/usr/bin/env bash
# All of mpips in one command: set up, then train a small network on 1797 images of digits by one scheduler,
# two servers and two workers on this machine.
#
#   bash jobs/quickstart.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/jobs/setup.sh"
source "$root/jobs/env.sh"

# Run in the repository, so that paths in messages are short and runs/ is made there.
cd "$root"
read -ra flags < <(mpirun_flags 5; echo)
command=(mpirun -n 5 "${flags[@]}" python -m mpips train mlp --train digits --servers 2)

printf '\n$ source jobs/env.sh\n$ %s\n\n' "${command[*]}"
"${command[@]}"

cat <<'END'

What to try next (source jobs/env.sh first):
  python -m mpips train mlp --train digits     the same on one process, without mpirun
  python -m mpips train --help                 tasks, consistency, optimizers and their options
  python -m mpips --help                       all commands
  bash tests/run.sh                            the tests (bash tests/run.sh long: the rest)
  jobs/README.md                               which script to use on a cluster
END
