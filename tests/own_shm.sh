#!/usr/bin/env bash
# A Python whose /dev/shm is its own and that of its children: own_shm.sh ARGUMENT...
# Needs root; fails where the kernel forbids mounts.
set -euo pipefail
# shellcheck disable=SC2016
exec unshare --mount --propagation private \
  sh -c 'mount -t tmpfs -o mode=1777 shm /dev/shm && exec python "$@"' sh "$@"
