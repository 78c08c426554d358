#!/usr/bin/env bash
# Submits a command of latentbits to SLURM; its job submits workers for it. Run it on the login
# node, in a folder that all nodes share, with the environment of latentbits activated:
#
#     deploy/slurm/submit.sh latentbits fit --dataset votes.zarr
#
# .docs/tasks/clusters.md explains more.
set -euo pipefail

# Created by `latentbits certificates certificates`, or those of your organisation.
export LATENTBITS_TLS_CA=$PWD/certificates/ca.pem
export LATENTBITS_TLS_CERT=$PWD/certificates/node.pem
export LATENTBITS_TLS_KEY=$PWD/certificates/node-key.pem

# Dask's web pages have no password, and other users of a node could open them.
export DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES=[] DASK_DISTRIBUTED__WORKER__HTTP__ROUTES=[]

: "${1:?Give a command, such as: latentbits fit --dataset votes.zarr}"
mode=$(stat --format %a "$LATENTBITS_TLS_KEY")
if [[ $mode != [46]00 ]]; then
    echo "Others may use $LATENTBITS_TLS_KEY to run code as you. Protect it: chmod 600." >&2
    exit 2
fi

# These commands continue with --resume after they were preempted; others are not started again.
requeue=--no-requeue
case "${1##*/} ${2-}" in
"latentbits fit" | "latentbits transform" | "latentbits neighbours") requeue=--requeue ;;
esac

scripts=$(cd "$(dirname "$0")" && pwd)
run=$(sbatch --parsable "$requeue" "$scripts/run.sh" "$scripts/workers.sh" "$@")
run=${run%;*} # without the name of the cluster
echo "Submitted job $run. Its log: latentbits-$run.log"
