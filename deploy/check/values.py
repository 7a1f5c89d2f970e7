"""Makes the chart's values.schema.json and the table of values in its README from values.yaml, so that each is written once.

    values.py [--check]       --check: writes nothing, names what differs

The comment above a key is its description. A line `# @schema {…}` there is merged into the schema of the key. The type is that of the default; maps
take no other keys than those of values.yaml, but an empty map takes any. Each service has the keys of serviceDefaults besides its own.
"""

import copy
import json
import pathlib
import sys

import yaml

CHART = pathlib.Path(__file__).resolve().parent.parent / "helm" / "slurm-mesh"
BEGIN, END = "<!-- values: made by deploy/check/values.py from values.yaml -->", "<!-- end of values -->"


def merge(base, over):
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge(base[key], value) if both else value
    return base


class Reader:
    def __init__(self, text):
        self.lines = text.splitlines()
        self.rows = []
        self.root = yaml.compose(text)
        self.schema = self.mapping(self.root, "")

    def comment(self, key):
        """Description and schema above a key that begins its line."""
        mark, words, schema = key.start_mark, [], {}
        if self.lines[mark.line][: mark.column].strip():
            return "", {}
        above = mark.line - 1
        while above >= 0 and self.lines[above].startswith(" " * mark.column + "#"):
            line = self.lines[above].strip().removeprefix("#").strip()
            if line.startswith("@schema "):
                schema = json.loads(line.removeprefix("@schema "))
            else:
                words.insert(0, line)
            above -= 1
        return " ".join(words), schema

    def mapping(self, node, path):
        properties = {}
        for key, value in node.value:
            name = f"{path}{key.value}"
            description, extra = self.comment(key)
            start, end = value.start_mark, value.end_mark
            if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
                if description:
                    self.rows.append((name, "", description))
                schema = self.mapping(value, f"{name}.")
            else:
                default = yaml.safe_load(self.lines[start.line][start.column : end.column])
                text = self.lines[start.line][start.column : end.column]
                self.rows.append((name, f"`{text}`", description))
                schema = inferred(default)
            if description:
                schema["description"] = description
            properties[key.value] = merge(schema, extra)
        return {"type": "object", "additionalProperties": False, "properties": properties}


def inferred(default):
    """The schema of a value that is written in one line."""
    if isinstance(default, bool):
        return {"type": "boolean"}
    if isinstance(default, int):
        return {"type": "integer", "minimum": 0}
    if isinstance(default, str):
        return {"type": "string"}
    if isinstance(default, list):
        return {"type": "array"} | ({"items": inferred(default[0])} if default else {})
    if not default:
        return {"type": "object"}
    return {"type": "object", "additionalProperties": False, "properties": {key: inferred(value) for key, value in default.items()}}


def generated():
    """Text of the schema, and of the README's table."""
    reader = Reader((CHART / "values.yaml").read_text())
    schema = reader.schema
    common = schema["properties"]["serviceDefaults"]["properties"]
    for service in schema["properties"]["services"]["properties"].values():
        service["properties"] = merge(copy.deepcopy(common), service["properties"])
    # Helm adds it for charts that have this one as a dependency.
    schema["properties"]["global"] = {"type": "object"}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of slurm-mesh", "description": "Made by deploy/check/values.py from values.yaml."}
    table = ["| key | default | meaning |", "| --- | --- | --- |"]
    table += [f"| `{name}` | {default} | {description} |" for name, default, description in reader.rows]
    return json.dumps(head | schema, indent=1) + "\n", "\n".join(table)


def texts():
    """What each made file should contain."""
    schema, table = generated()
    readme = (CHART / "README.md").read_text()
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return {CHART / "values.schema.json": schema, CHART / "README.md": f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"}


def outdated():
    return [path for path, text in texts().items() if path.read_text() != text]


if __name__ == "__main__":
    old = outdated()
    if "--check" in sys.argv:
        for path in old:
            print(f"fault: {path.name} differs from values.yaml: run deploy/check/values.py", file=sys.stderr)
        sys.exit(1 if old else 0)
    for path, text in texts().items():
        path.write_text(text)
