-- What the ledger's key signed about a range when it was archived or erased, and SHA-256 over the ids of its entries, which is a part of that
-- (docs/reference/events.md, section 6). Ranges of earlier versions have neither; they count as long as the audit had their entry before a
-- signed checkpoint.
ALTER TABLE archives ADD COLUMN note TEXT;
ALTER TABLE archives ADD COLUMN ids BLOB;
