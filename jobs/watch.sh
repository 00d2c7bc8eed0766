# Functions that remove the shared memory of a cancelled Slurm job from its nodes. batch.sh sources this file. A batch
# script of your own, in Bash, does the same with one line in front of its ranks:
#
#   source jobs/watch.sh && watch_job runs
#
# `runs` is the folder of its run directories. The line sets the script's trap of EXIT.

# watch_job FOLDER: watch the nodes of this job until the script exits.
watch_job() {
  watch_nodes "$(realpath -m "$1")"
  trap end_watch EXIT
}

# watch_nodes FOLDER: start mpips.supervisor.cancelled on each node. If the job is cancelled, it removes the shared
# memory that killed ranks of the runs in FOLDER (itself a run, or "": none) leave there; Slurm starts no step then. `mpips run` reads the variable.
watcher="" watch_fd=""
watch_tries=100 # times 0.1 s that the end of its step may take
watch_nodes() {
  local nodes=${SLURM_JOB_NUM_NODES:-} folder=$1
  [[ -n $nodes && -n $folder ]] && command -v srun >/dev/null || return 0
  exec {watch_fd}> >(
    trap '' USR1 USR2
    exec srun --overlap --no-kill --kill-on-bad-exit=0 --mpi=none --quiet --nodes="$nodes" --ntasks="$nodes" \
      --ntasks-per-node=1 --cpus-per-task=1 python -m mpips.supervisor.cancelled "$folder"
  )
  watcher=${!:-} # empty before Bash 4.4
  export MPIPS_NODES_WATCHED=1
}

# close_watch: close the pipe to what watch_nodes has started.
close_watch() { [[ -z $watch_fd ]] || exec {watch_fd}>&-; }

# end_watch: end what watch_nodes has started, unless the job is cancelled.
end_watch() {
  local tries=$watch_tries
  [[ -n $watch_fd ]] && ! is_cancelled || return 0
  (echo end >&"$watch_fd") 2>/dev/null || true
  close_watch
  while ((tries-- > 0)) && [[ -n $watcher ]] && kill -0 "$watcher" 2>/dev/null; do
    sleep 0.1
  done
  [[ -z $watcher ]] || kill -TERM "$watcher" 2>/dev/null || true
  watcher="" watch_fd=""
}

# is_cancelled: return 0 if Slurm is ending the job before its time limit, as after `scancel JOB`. A job whose
# script has only received a signal is still running. A cancelled job could be requeued, but nobody wants that.
is_cancelled() {
  [[ $(squeue --noheader --job="$SLURM_JOB_ID" --format='%T %r' 2>/dev/null) == "COMPLETING None" ]]
}
