# Functions of the batch scripts: check before the ranks start, pass signals on, requeue the job. Sourced by
# *.sbatch inside a job, after `root` is set; do not call it.
#
# Slurm warns a job by USR1 before its time limit. The ranks then write a checkpoint and exit with 75, and
# the script requeues the job: the same job, with the same number and the same run folder, gets another
# allocation and continues from the checkpoint. The first TERM to the script has the same effect. This loop
# ends when training is done, when it fails in another way, when the job is cancelled, after
# MPIPS_MAX_REQUEUES requeues, or when an allocation wrote no newer checkpoint than the one before.

# shellcheck disable=SC2154

source "$(dirname "${BASH_SOURCE[0]}")/watch.sh"

start_s=10 # s in which a launcher and its ranks install their handlers of signals

log() { printf 'mpips job: %s\n' "$*"; }

fail() {
  local code=$1
  shift
  printf 'mpips job: %s\n' "$*" >&2
  exit "$code"
}

# begin USAGE ARGUMENT...: check all that can be wrong before ranks start, and set `venv` (the environment with
# mpips), `job` (the number that Slurm gave this job or task of an array), `folder` (the value of MPIPS_FOLDER with which the job can be
# continued) and `run` (the run folder, which outlives the job; each task of an array has its own,
# FOLDER_TASK).
begin() {
  local usage=$1 allocation=$((${SLURM_RESTART_COUNT:-0} + 1))
  shift
  (($#)) || fail 2 "nothing to do; usage: $usage"
  [[ -n ${SLURM_JOB_ID:-} ]] || fail 2 "this script runs only inside a job; usage: $usage"
  # The ranks of the first component alone would start, in the allocation of all.
  ((${SLURM_HET_SIZE:-1} == 1)) ||
    fail 2 "heterogeneous jobs are not supported: submit without ':', with nodes of one kind"
  [[ -n ${SLURM_NTASKS:-} ]] || fail 2 "the number of ranks is not set: submit with --ntasks or --ntasks-per-node"
  # Make the path absolute, in the form that env.sh gives it.
  root=$(cd "$root" && pwd)
  # Note a warning and a TERM until there are ranks to pass them to.
  trap 'warned=1' USR1
  trap : USR2
  trap 'terminated=1' TERM
  check_time
  load_modules
  source "$root/jobs/env.sh"
  venv=${MPIPS_VENV:-$root/.venv}
  [[ $(command -v python) == "$venv/bin/python" ]] ||
    fail 69 "$venv does not exist on $(hostname): run 'bash jobs/setup.sh' on a login node first, or set MPIPS_VENV" \
      "to an environment on a file system of all nodes in which mpips is installed"

  job=$SLURM_JOB_ID
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  fi
  folder=$(realpath -m "${MPIPS_FOLDER:-runs/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}")
  run=$folder${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  # Since Slurm 22.05 srun does not inherit the CPUs per task of the job.
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  fi
  log "$SLURM_JOB_NAME ($job), allocation $allocation, $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST, in $run"
}

# load_modules: load the modules that MPIPS_MODULES names, in place of all others. A batch script is no login
# shell, so it may not have the command `module` yet. Modules are not written for `set -eu`.
load_modules() {
  local names
  read -ra names <<<"${MPIPS_MODULES:-}"
  ((${#names[@]})) || return 0
  set +eu
  [[ $(type -t module) ]] || source /etc/profile
  [[ $(type -t module) ]] || fail 69 "MPIPS_MODULES names modules, but $(hostname) has no command 'module'"
  module purge
  module load "${names[@]}" || fail 69 "the modules '${names[*]}' cannot be loaded on $(hostname), see above"
  set -eu
}

# check_time: refuse a time limit that is over before the warning would come. The seconds of the warning are
# those of the script, or MPIPS_WARNING_S where sbatch was given another --signal.
check_time() {
  local warning limit
  warning=${MPIPS_WARNING_S:-$(sed -n 's/^#SBATCH --signal=B:USR1@\([0-9]*\)$/\1/p' "$0" 2>/dev/null | tail -n 1 || true)}
  limit=$(seconds "$(squeue --noheader --job="$SLURM_JOB_ID" --format=%l 2>/dev/null)")
  if [[ -n $warning && -n $limit ]] && ((limit <= warning)); then
    fail 2 "a time limit of $limit s with a warning $warning s before it: the warning would come before the job" \
      "has begun; give more --time, or a shorter warning by --signal=B:USR1@SECONDS and MPIPS_WARNING_S=SECONDS"
  fi
}

# seconds LIMIT: print the seconds of a time limit as squeue prints it (D-HH:MM:SS, HH:MM:SS or MM:SS); nothing
# for another text, such as UNLIMITED.
seconds() {
  local days=0 parts
  [[ $1 =~ ^(([0-9]+)-)?([0-9]+(:[0-9]+)+)$ ]] || return 0
  days=${BASH_REMATCH[2]:-0}
  IFS=: read -ra parts <<<"${BASH_REMATCH[3]}"
  ((${#parts[@]} == 3)) || parts=(0 "${parts[@]}")
  printf '%d' $((((10#$days * 24 + 10#${parts[0]}) * 60 + 10#${parts[1]}) * 60 + 10#${parts[2]}))
}

# need_pmix: refuse if srun cannot start MPI ranks, since each task would be a job of one rank.
need_pmix() {
  local kinds
  kinds=$(srun --mpi=list 2>&1 | tr '\n' ' ')
  [[ " $kinds" == *[[:space:]]pmix* ]] ||
    fail 69 "this Slurm cannot start MPI by srun: it has no plug-in 'pmix' (srun --mpi=list: $kinds);" \
      "submit jobs/train.sbatch, which uses mpirun, or ask the site for the plug-in"
}

# launch COMMAND...: run a command, pass signals on to it, and set `code` to its exit code. The command runs
# in the background, so that the shell can handle signals. USR1 is passed on as `usr1_as`, and the first
# TERM as `term_as`, if they are set: on TERM mpirun and srun kill their ranks before they can write a
# checkpoint. A warning by USR1 would end a launcher or a rank that has not installed its handler yet. So a
# launcher begins with USR1 and USR2 ignored (its ranks do not: it gives them the default again), and a warning
# that comes earlier than `start_s` after the start is sent when these seconds are over. A TERM that came before
# there is a command puts the job back into the queue.
launch() {
  local child signalled started=$SECONDS
  if [[ -n ${terminated:-} ]]; then
    log "TERM came before the ranks were started"
    put_back
  fi
  watch_nodes "$run"
  log "\$ $*"
  (trap '' USR1 USR2 && close_watch && exec "$@") &
  child=$!
  trap 'signalled=1; warn "$child" "$started" "${usr1_as:-USR1}"' USR1
  trap 'signalled=1; kill -USR2 "$child" 2>/dev/null || true' USR2
  trap 'signalled=1; terminate "$child" "$started"' TERM
  # The traps of `begin` have noted what came before.
  if [[ -n ${terminated:-} ]]; then
    terminate "$child" "$started"
  elif [[ -n ${warned:-} ]]; then
    warn "$child" "$started" "${usr1_as:-USR1}"
  fi
  # Wait again if a signal ended `wait`, which then returns a code of its own.
  while :; do
    signalled="" code=0
    wait "$child" || code=$?
    [[ -n $signalled ]] || break
  done
  trap '' USR1 USR2
  trap - TERM
  end_watch
}

# warn CHILD STARTED SIGNAL: send a warning to a command that was started at this time of the shell, now or
# when `start_s` are over.
warn() {
  local child=$1 left=$((start_s - (SECONDS - $2))) signal=$3
  if ((left > 0)); then
    (trap - USR1 USR2 TERM && sleep "$left" && kill -"$signal" "$child" 2>/dev/null) &
  else
    kill -"$signal" "$child" 2>/dev/null || true
  fi
}

# terminate CHILD STARTED: pass a TERM on: the first one as `term_as`, if that is set, later ones as they are.
# That of a cancelled job cannot wait for `start_s`, since Slurm kills the script after its KillWait.
terminate() {
  local started=$2
  if [[ -n ${term_as:-} ]]; then
    ! is_cancelled || started=$((SECONDS - start_s))
    warn "$1" "$started" "$term_as"
    term_as=""
  else
    kill -TERM "$1" 2>/dev/null || true
  fi
}

# finish CODE: print what an exit code means, requeue the job on 75, and exit.
finish() {
  if is_cancelled; then
    log "ended with $1 after Slurm has cancelled the job: not requeued; to continue, submit it again with" \
      "MPIPS_FOLDER=$folder"
    exit "$1"
  fi
  case $1 in
    0) log "done" ;;
    75) requeue ;;
    2) log "ended with 2: the configuration is wrong, see above; not tried again" ;;
    69) log "ended with 69: this cluster or set-up lacks something, see above; not tried again" ;;
    124) log "ended with 124: a rank made no progress, see above" ;;
    *) log "ended with $1" ;;
  esac
  exit "$1"
}

# requeue: put the job back into the queue if this allocation made progress. `failed` is the code with which the
# training has failed; empty: it was warned.
requeue() {
  local newest before="" advice="Use more --time, or checkpoint more often"
  if [[ -n ${failed:-} ]]; then
    advice="It has failed, see above: remove the cause, then submit it again with MPIPS_FOLDER=$folder"
  fi
  # Find the newest checkpoint; those of `mpips run` are one folder deeper.
  newest=$(readlink "$run"/checkpoints/latest "$run"/*/checkpoints/latest | head -n 1 || true)
  if [[ -z $newest ]]; then
    fail "${failed:-1}" "not requeued: there is no checkpoint in $run, so the training would begin again. $advice"
  fi
  if [[ -f $run/requeued-at ]]; then
    before=$(<"$run/requeued-at")
  fi
  # Refuse another allocation if this one made no progress.
  if [[ $newest == "$before" ]]; then
    fail "${failed:-1}" "not requeued: this allocation wrote nothing newer than $newest. $advice"
  fi
  check_requeues
  printf '%s\n' "$newest" >"$run/requeued-at.new"
  mv "$run/requeued-at.new" "$run/requeued-at"
  log "checkpoint $newest is there: back into the queue"
  put_back
}

# check_requeues: refuse more requeues than MPIPS_MAX_REQUEUES.
check_requeues() {
  local requeues=${SLURM_RESTART_COUNT:-0} most=${MPIPS_MAX_REQUEUES:-50}
  if ((requeues >= most)); then
    fail 75 "requeued $requeues times already (MPIPS_MAX_REQUEUES=$most): submit it again with MPIPS_FOLDER=$folder"
  fi
}

# put_back: put the job back into the queue, and exit. Slurm ends this script while it does that.
put_back() {
  check_requeues
  if is_cancelled; then
    fail 75 "not requeued, because Slurm has cancelled the job: submit it again with MPIPS_FOLDER=$folder to continue"
  fi
  scontrol requeue "$job" ||
    fail 75 "Slurm does not requeue the job: submit it again with MPIPS_FOLDER=$folder to continue"
  exit 75
}
