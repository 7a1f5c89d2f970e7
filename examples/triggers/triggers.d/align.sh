#!/bin/bash
# Arguments: bucket and key of the object.
set -eu
echo "aligned $1/$2 in job $SLURM_JOB_ID" >> aligned.txt
