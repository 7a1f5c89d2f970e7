-- Periods whose report does not change any more.
CREATE TABLE closed_periods (
    -- Name, such as 2026-10.
    period TEXT NOT NULL PRIMARY KEY,
    -- The report as JSON, and its SHA-256 in hexadecimal digits.
    report TEXT NOT NULL,
    digest TEXT NOT NULL,
    report_rows BIGINT NOT NULL,
    -- Unix seconds.
    closed_at BIGINT NOT NULL,
    closed_by TEXT NOT NULL
);
