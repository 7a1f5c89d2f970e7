-- Budgets of users and accounts, by the events of the cost-engine.
CREATE TABLE budgets (
    name TEXT NOT NULL PRIMARY KEY,
    -- Whose jobs count. Empty: those of everybody, or of every account.
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    is_exceeded BIGINT NOT NULL,
    -- End of the period. NULL if it has none.
    ends_at BIGINT,
    -- Time and number of the last event.
    event_at BIGINT NOT NULL,
    event_number BIGINT NOT NULL
);
