#!/usr/bin/python3
"""Simulates how heat spreads in a rod: the equation du/dt = a d2u/dx2, both ends kept at zero degrees.

Arguments: bucket and key of the object that describes the rod. Runs in a folder with store.py.
Writes run-JOB/result.json. A job that runs again writes the same.
"""

import json
import os
import subprocess
import sys

CELLS = 200
MOST_STEPS = 100000


def fetch(bucket, key, path):
    status = subprocess.call(["/usr/bin/python3", "store.py", "get", bucket, key, path])
    if status != 0:
        # 75 if the store is away: the rule `again` runs the job once more.
        sys.exit(status)


def read(path):
    """The object comes from outside: each number is checked before it is used."""
    with open(path, encoding="utf-8") as file:
        rod = json.load(file)
    length, diffusivity, temperature = (float(rod[name]) for name in ["length", "diffusivity", "temperature"])
    start, end = (float(place) for place in rod["hot"])
    times = [float(time) for time in rod["times"]]
    if not (0 < length < 1000 and 0 < diffusivity < 1 and 0 < temperature < 10000 and 0 <= start < end <= length):
        raise ValueError("length, diffusivity, temperature or hot")
    if not 1 <= len(times) <= 10 or times != sorted(times) or times[0] < 0:
        raise ValueError("times: one to ten, in order")
    return str(rod["title"]), length, diffusivity, start, end, temperature, times


def simulate(length, diffusivity, start, end, temperature, times):
    """Returns the positions, and the temperature at each of them for each time."""
    width = length / CELLS
    # Smaller than width^2 / 2a, above which this method is not stable.
    step = 0.4 * width * width / diffusivity
    if not times[-1] / step < MOST_STEPS:
        raise ValueError("times: more than {} steps".format(MOST_STEPS))
    positions = [cell * width for cell in range(CELLS + 1)]
    rod = [temperature if start <= position <= end else 0.0 for position in positions]
    curves, done = [], 0
    for time in times:
        for _ in range(round(time / step) - done):
            inner = [u + 0.4 * (left - 2 * u + right) for left, u, right in zip(rod, rod[1:], rod[2:])]
            rod = [0.0] + inner + [0.0]
        done = round(time / step)
        curves.append({"time": time, "temperatures": rod})
    return positions, curves


bucket, key = sys.argv[1:]
folder = "run-" + os.environ["SLURM_JOB_ID"]
os.makedirs(folder, exist_ok=True)
fetch(bucket, key, folder + "/object.json")
try:
    title, *rod = read(folder + "/object.json")
    positions, curves = simulate(*rod)
except (KeyError, TypeError, ValueError) as error:
    sys.exit("{}/{} is no rod: {!r}".format(bucket, key, error))
with open(folder + "/result.json", "w", encoding="utf-8") as file:
    json.dump({"key": key, "title": title, "positions": positions, "curves": curves}, file)
