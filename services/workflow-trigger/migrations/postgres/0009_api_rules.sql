-- Rules by API. mesh.toml has the others.
CREATE TABLE api_rules (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    -- The rule as JSON, with the text of its script.
    definition TEXT NOT NULL,
    -- 1 if an administrator made it: it may do more than a rule that its owner made.
    by_admin BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    changed_at BIGINT NOT NULL,
    -- Another one after each change.
    version TEXT NOT NULL,
    PRIMARY KEY (owner, name)
);
