#!/usr/bin/env bash
# What ssh is to a real cluster: node_agent.sh HOST COMMAND... runs the command on an imitated
# node. MPIPS_NODES is a folder with one file per host that holds the pid of the node's init.
# Like ssh, it starts from a fresh environment.
set -euo pipefail

host=$1
shift
init=$(<"$MPIPS_NODES/$host")
exec env -i HOME="$HOME" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  TMPDIR=/dev/shm/session nsenter --target "$init" --all --wd="$HOME" sh -c "$*"
