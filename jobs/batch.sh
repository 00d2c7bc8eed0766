# What the batch scripts share: looking before leaping, passing signals on, and asking Slurm for another
# turn. Sourced by *.sbatch inside a job, after `root` is set; not for calling.
#
# A job that is warned (USR1 before its time limit) writes a checkpoint and ends with 75. The script then
# requeues it: the same job, with the same number and the same run folder, starts again from there. This
# loop ends when training is done, when it fails in another way, when MPIPS_MAX_REQUEUES is reached,
# or when a turn has brought no newer checkpoint than the one before.

# shellcheck disable=SC2154

say() { printf 'mpips job: %s\n' "$*"; }

fail() {
  local code=$1
  shift
  printf 'mpips job: %s\n' "$*" >&2
  exit "$code"
}

# begin USAGE ARGUMENT...: look at everything that can be wrong before ranks start, and set `job` (the
# number by which Slurm knows this job or task of an array), `folder` (what MPIPS_FOLDER has to name to go
# on) and `run` (the folder that outlives the job; each task of an array has its own, FOLDER_TASK).
begin() {
  local usage=$1 turn=${SLURM_RESTART_COUNT:-0}
  shift
  (($#)) || fail 2 "nothing to do; usage: $usage"
  [[ -n ${SLURM_JOB_ID:-} ]] || fail 2 "this runs inside a job; usage: $usage"
  [[ -n ${SLURM_NTASKS:-} ]] || fail 2 "how many ranks? submit with --ntasks or --ntasks-per-node"
  # env.sh names folders in this form, too.
  root=$(cd "$root" && pwd)
  # There is nothing to warn yet.
  trap : USR1 USR2
  source "$root/jobs/env.sh"
  [[ $(command -v python) == "$root/.venv/bin/python" ]] ||
    fail 69 "there is no $root/.venv on $(hostname): run 'bash jobs/setup.sh' on a login node first"

  job=$SLURM_JOB_ID
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  fi
  folder=$(realpath -m "${MPIPS_FOLDER:-runs/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}")
  run=$folder${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  # Since Slurm 22.05 srun does not inherit it.
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  fi
  say "$SLURM_JOB_NAME ($job), turn $turn, $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST, in $run"
}

# need_parallel_hdf5: refuse a job of several nodes whose h5py was replaced by a build without MPI. Who
# chose that (MPIPS_HDF5=serial, at the set-up or now) has it: server 0 then writes for all.
need_parallel_hdf5() {
  local chosen=${MPIPS_HDF5:-} kind
  if [[ -z $chosen && -s $root/.venv/.mpips/choice.hdf5 ]]; then
    chosen=$(<"$root/.venv/.mpips/choice.hdf5")
  fi
  if [[ $chosen == serial ]] || ((SLURM_JOB_NUM_NODES == 1)); then
    return 0
  fi
  kind=$(python -c 'from mpips.checkpoint.structure import hdf5_kind; print(hdf5_kind())')
  if [[ $kind != parallel ]]; then
    fail 69 "the h5py of .venv has no MPI ($kind), so checkpoints cannot be written in parallel: run" \
      "'bash jobs/setup.sh' again (pip may have replaced h5py), or submit with MPIPS_HDF5=serial" \
      "to let one server write for all"
  fi
}

# need_pmix: refuse where srun cannot start MPI ranks; they would become so many jobs of one rank.
need_pmix() {
  local kinds
  kinds=$(srun --mpi=list 2>&1 | tr '\n' ' ')
  [[ " $kinds" == *[[:space:]]pmix* ]] ||
    fail 69 "this Slurm cannot start MPI by srun: it has no plug-in 'pmix' (srun --mpi=list says: $kinds);" \
      "submit jobs/train.sbatch, which uses mpirun, or ask the site for the plug-in"
}

# launch COMMAND...: run it in the background, so that the shell hears signals, and pass them on; USR1 as
# `warn_by` and the first TERM as `tell_by`, if they are set: mpirun makes of TERM its ranks' end, before they
# can save. Sets `code` to how it ended.
launch() {
  local child signalled
  say "\$ $*"
  "$@" &
  child=$!
  trap 'signalled=1; kill -"${warn_by:-USR1}" "$child" 2>/dev/null || true' USR1
  trap 'signalled=1; kill -USR2 "$child" 2>/dev/null || true' USR2
  trap 'signalled=1; kill -"${tell_by:-TERM}" "$child" 2>/dev/null || true; tell_by=TERM' TERM
  # A signal ends `wait` with a code of its own: then wait again.
  while :; do
    signalled="" code=0
    wait "$child" || code=$?
    [[ -n $signalled ]] || break
  done
  trap '' USR1 USR2
  trap - TERM
}

# finish CODE: say what the end means; requeue on 75; exit.
finish() {
  case $1 in
    0) say "done" ;;
    75) requeue ;;
    2) say "ended with 2: the configuration is wrong, see above; not tried again" ;;
    69) say "ended with 69: this cluster or set-up lacks something, see above; not tried again" ;;
    124) say "ended with 124: a rank stood still, see above" ;;
    *) say "ended with $1" ;;
  esac
  exit "$1"
}

# requeue: ask for another turn. Slurm ends this script while it does that.
requeue() {
  local turns=${SLURM_RESTART_COUNT:-0} most=${MPIPS_MAX_REQUEUES:-50} newest before=""
  # Those of `mpips run` lie one folder deeper.
  newest=$(readlink "$run"/checkpoints/latest "$run"/*/checkpoints/latest | head -n 1 || true)
  if [[ -z $newest ]]; then
    fail 1 "asked for another turn, but there is no checkpoint in $run: it would begin anew"
  fi
  if [[ -f $run/requeued-at ]]; then
    before=$(<"$run/requeued-at")
  fi
  if [[ $newest == "$before" ]]; then
    fail 1 "this turn brought nothing newer than $newest: not requeued. Ask for more time, or checkpoint more often"
  fi
  if ((turns >= most)); then
    fail 75 "requeued $turns times already (MPIPS_MAX_REQUEUES=$most): submit it again with MPIPS_FOLDER=$folder"
  fi
  printf '%s\n' "$newest" >"$run/requeued-at.new"
  mv "$run/requeued-at.new" "$run/requeued-at"
  say "checkpoint $newest is there: back into the queue"
  scontrol requeue "$job" ||
    fail 75 "Slurm does not requeue it: submit it again with MPIPS_FOLDER=$folder to go on"
  exit 75
}
