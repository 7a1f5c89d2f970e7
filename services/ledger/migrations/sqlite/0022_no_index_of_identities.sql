-- Indexes that cost each event more than they find: the ledger knows in memory which users have an OIDC subject or an e-mail address
-- (src/adapters/block_ranges.rs), and entries are found by their user.
DROP INDEX event_index_subject;
DROP INDEX event_index_email;
