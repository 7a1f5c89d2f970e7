#!/bin/bash
# Argument: the job that ended.
set -eu
grep "in job $1\$" aligned.txt > "report-$1.txt"
