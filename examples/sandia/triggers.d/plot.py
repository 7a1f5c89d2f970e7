#!/usr/bin/python3
"""Plots the result of a simulation as SVG and stores the picture as KEY.svg, for the object KEY.json.

Arguments: bucket of the pictures, job of the simulation. Runs in a folder with store.py.
A job that runs again stores the same picture under the same key.
"""

import json
import subprocess
import sys
from html import escape

LEFT, TOP, WIDTH, HEIGHT = 60, 40, 500, 300
COLOURS = ["#b2182b", "#ef8a62", "#d9a800", "#5aae61", "#1b7837", "#67a9cf", "#2166ac", "#762a83", "#8c510a", "#333333"]


def text(x, y, words, anchor="middle", more=""):
    return '<text x="{:g}" y="{:g}" text-anchor="{}"{}>{}</text>'.format(x, y, anchor, more, escape(words))


def plot(title, positions, curves):
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    highest = max(max(curve["temperatures"]) for curve in curves) or 1.0
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 400" font-family="sans-serif" font-size="12">',
        '<rect width="660" height="400" fill="white"/>',
        text(LEFT + WIDTH / 2, 24, title, more=' font-size="15"'),
        text(LEFT + WIDTH / 2, bottom + 42, "position in m"),
        text(0, 0, "temperature in °C", more=' transform="translate(18 {:g}) rotate(-90)"'.format(TOP + HEIGHT / 2)),
    ]
    for tick in range(6):
        x, y = LEFT + WIDTH * tick / 5, bottom - HEIGHT * tick / 5
        lines.append('<path d="M{:g} {}V{}M{} {:g}H{}" stroke="#ddd"/>'.format(x, TOP, bottom, LEFT, y, right))
        lines.append(text(x, bottom + 18, "{:g}".format(positions[-1] * tick / 5)))
        lines.append(text(LEFT - 8, y + 4, "{:g}".format(highest * tick / 5), "end"))
    for number, curve in enumerate(curves):
        points = " ".join(
            "{:.1f},{:.1f}".format(LEFT + WIDTH * position / positions[-1], bottom - HEIGHT * u / highest)
            for position, u in zip(positions, curve["temperatures"])
        )
        colour, y = COLOURS[number], TOP + 14 + 20 * number
        lines.append('<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>'.format(points, colour))
        lines.append('<path d="M{} {}h18" stroke="{}" stroke-width="2"/>'.format(right + 12, y - 4, colour))
        lines.append(text(right + 36, y, "{:g} s".format(curve["time"]), "start"))
    return "\n".join(lines + ["</svg>", ""])


bucket, job = sys.argv[1:]
folder = "run-" + job
with open(folder + "/result.json", encoding="utf-8") as file:
    result = json.load(file)
with open(folder + "/plot.svg", "w", encoding="utf-8") as file:
    file.write(plot(result["title"], result["positions"], result["curves"]))
key = result["key"][: -len(".json")] + ".svg"
# 75 if the store is away: the rule `again` runs the job once more.
sys.exit(subprocess.call(["/usr/bin/python3", "store.py", "put", bucket, key, folder + "/plot.svg"]))
