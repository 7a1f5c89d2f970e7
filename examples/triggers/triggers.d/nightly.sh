#!/bin/bash
# Argument: the date of the night.
set -eu
echo "tidied up" > "nightly-$1.txt"
