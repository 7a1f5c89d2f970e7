-- The account above each account, as ingest reads it from Slurm. Deleted accounts stay: what they cost still counts for those above them.
CREATE TABLE account_parents (
    cluster TEXT NOT NULL,
    account TEXT NOT NULL,
    -- Empty for the root account.
    parent TEXT NOT NULL,
    PRIMARY KEY (cluster, account)
);
