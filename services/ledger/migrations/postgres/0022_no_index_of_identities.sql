-- As migrations/sqlite/0022_no_index_of_identities.sql.
DROP INDEX event_index_subject;
DROP INDEX event_index_email;
