#!/bin/sh
# Creates the work pool and the queue of the dataset if needed, the automations that end runs whose
# worker died, and the deployments of prefect.yaml, or of the file named as the argument. Run it again
# after a change.
set -eu
file=${1:-$(dirname "$0")/prefect.yaml}
latentbits serve --file "$file" --check  # before anything is deployed; Prefect would not refuse it
for _ in 1 2 3 4 5 6 7 8 9 10; do  # the server may still be starting
  prefect work-pool ls >/dev/null 2>&1 && break
  sleep 2
done
prefect work-pool inspect latentbits >/dev/null 2>&1 ||
  prefect work-pool create latentbits --type process
prefect work-queue inspect votes --pool latentbits >/dev/null 2>&1 ||
  prefect work-queue create votes --pool latentbits --limit 1
# Not replaced if they exist, as they would forget the runs that they watch.
prefect automation inspect "end latentbits runs without heartbeat" >/dev/null 2>&1 ||
  prefect automation create --from-file "$(dirname "$0")/automations.yaml"
prefect --no-prompt deploy --prefect-file "$file" --all
