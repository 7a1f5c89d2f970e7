-- Budgets that were made by the API, beside those of files.
CREATE TABLE api_budgets (
    name TEXT NOT NULL PRIMARY KEY,
    -- As in a file.
    content TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    -- Unix seconds.
    changed_at BIGINT NOT NULL
);

-- Audit entries that JetStream does not have yet.
CREATE TABLE audit_entries (
    audit_id TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    audit_entry BLOB NOT NULL
);
