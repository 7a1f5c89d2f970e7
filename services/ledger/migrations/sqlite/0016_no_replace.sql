-- INSERT OR REPLACE fires no DELETE trigger. What is inserted with ON CONFLICT DO NOTHING must not fail because it is there already, so an
-- insert that meets a row is passed over here, whatever it would do.
CREATE TRIGGER IF NOT EXISTS checkpoints_no_replace BEFORE INSERT ON checkpoints
WHEN EXISTS (SELECT 1 FROM checkpoints WHERE number = NEW.number) OR EXISTS (SELECT 1 FROM checkpoints WHERE note = NEW.note)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER IF NOT EXISTS checkpoint_keys_no_replace BEFORE INSERT ON checkpoint_keys
WHEN EXISTS (SELECT 1 FROM checkpoint_keys WHERE number = NEW.number) OR EXISTS (SELECT 1 FROM checkpoint_keys WHERE vkey = NEW.vkey)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER IF NOT EXISTS holes_no_replace BEFORE INSERT ON holes
WHEN EXISTS (SELECT 1 FROM holes WHERE number = NEW.number) OR EXISTS (
    SELECT 1 FROM holes WHERE stream = NEW.stream AND created_at = NEW.created_at AND first_sequence = NEW.first_sequence
)
BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER IF NOT EXISTS head_no_replace BEFORE INSERT ON head
WHEN EXISTS (SELECT 1 FROM head)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its head cannot be replaced'); END;
CREATE TRIGGER IF NOT EXISTS streams_no_delete BEFORE DELETE ON streams
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: streams cannot be deleted'); END;
