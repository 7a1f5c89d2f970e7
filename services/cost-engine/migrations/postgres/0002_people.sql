-- The person behind a Unix user, as the newest event of the user names them. Reports by identity use it.
CREATE TABLE people (
    cluster TEXT NOT NULL,
    user_name TEXT NOT NULL,
    -- OIDC `iss` and `sub`: together they are the identity.
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    -- Empty if unknown.
    email TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Unix seconds of the event.
    at BIGINT NOT NULL,
    PRIMARY KEY (cluster, user_name)
);

-- Empty for runs from before this column.
ALTER TABLE costs ADD COLUMN qos TEXT NOT NULL DEFAULT '';
