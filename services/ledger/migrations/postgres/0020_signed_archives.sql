-- As migrations/sqlite/0020_signed_archives.sql.
ALTER TABLE archives ADD COLUMN note TEXT COLLATE "C";
ALTER TABLE archives ADD COLUMN ids BYTEA;
