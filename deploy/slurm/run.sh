#!/usr/bin/env bash
# Job of a command and of the Dask scheduler for it, which submits the workers of script $1. It is
# submitted by submit.sh.
#SBATCH --job-name=latentbits
#SBATCH --output=latentbits-%j.log
#SBATCH --time=1-00:00:00   # for the command, and for its wait for the first worker
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2   # one for the command, one for the scheduler
#SBATCH --mem=8G
#SBATCH --open-mode=append  # a command that was preempted goes on with its log
set -euo pipefail
workers=$1
shift

# Dask counts a worker that is preempted as a failure of its tasks, and gives a task up after 4.
export DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=20

# The command and the workers find the scheduler by this file.
export LATENTBITS_CLUSTER=$PWD/latentbits-$SLURM_JOB_ID.json
rm -f "$LATENTBITS_CLUSTER" # of a node that failed
dask scheduler --scheduler-file "$LATENTBITS_CLUSTER" --protocol tls --port 0 \
    --no-dashboard --dashboard-address 127.0.0.1:0 --tls-ca-file "$LATENTBITS_TLS_CA" \
    --tls-cert "$LATENTBITS_TLS_CERT" --tls-key "$LATENTBITS_TLS_KEY" \
    &>>"latentbits-$SLURM_JOB_ID-scheduler.log" &
scheduler=$!

# However the command ends, end the workers, those in the queue too, and the scheduler.
name=latentbits-$SLURM_JOB_ID-workers
stop_cluster() {
    set +e # try both
    scancel --name="$name"
    kill "$scheduler" && wait "$scheduler"
}
trap stop_cluster EXIT
trap : TERM # sent to the command, too, which then saves its state and ends

until [[ -s $LATENTBITS_CLUSTER ]]; do
    kill -0 "$scheduler" # ends this job if the scheduler has ended
    sleep 1
done

if [[ -v SLURM_RESTART_COUNT ]]; then
    scancel --name="$name" # of a node that failed
    set -- "$@" --resume
fi
# Without the memory of this job, which would count as that of the workers.
env --unset=SLURM_MEM_PER_NODE --unset=SLURM_MEM_PER_CPU \
    sbatch --quiet --job-name="$name" "$workers" "$SLURM_JOB_ID"

# Wait for the first worker as long as this job may run, and also if all workers are lost.
export LATENTBITS_WORKER_TIMEOUT=31536000
"$@"
