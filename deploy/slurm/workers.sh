#!/usr/bin/env bash
# Job array of Dask workers for the command of job $1. It is submitted by submit.sh.
#SBATCH --array=1-100%8     # 8 workers at a time; when one leaves, the next of 100 replaces it
#SBATCH --output=%x-%a.log
#SBATCH --time=04:00:00     # for each worker
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --requeue           # a worker that is preempted goes back to the queue
#SBATCH --open-mode=append  # and goes on with its log
set -euo pipefail
run=$1
leave_early=300 # seconds before the time limit at which a worker leaves

# The command has ended while this worker was in the queue.
if [[ -z $(squeue --noheader --jobs "$run" || true) ]]; then exit; fi

task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
end=$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs "$task" --format %e)
lifetime=$((end - $(date +%s) - leave_early))
memory=${SLURM_MEM_PER_NODE:-$((SLURM_MEM_PER_CPU * SLURM_CPUS_PER_TASK))} # MiB

# Memory of freed arrays is reused; Dask would return it to the system after every chunk.
export MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824

# A worker has 90 % of the memory: the process that watches it needs some. It spills to the disk of
# its node, and hands its data to other workers when it leaves.
exec dask worker --scheduler-file "$PWD/latentbits-$run.json" --death-timeout 60 \
    --nthreads "$SLURM_CPUS_PER_TASK" --memory-limit "$((memory * 9 / 10))MiB" \
    --local-directory "${TMPDIR:-/tmp}" \
    --lifetime "${lifetime}s" --lifetime-stagger "$((leave_early / 5))s" \
    --no-dashboard --dashboard-address 127.0.0.1:0 --tls-ca-file "$LATENTBITS_TLS_CA" \
    --tls-cert "$LATENTBITS_TLS_CERT" --tls-key "$LATENTBITS_TLS_KEY"
