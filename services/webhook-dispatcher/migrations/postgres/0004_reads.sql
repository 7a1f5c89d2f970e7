-- What is read often is found without reading what is not asked for.

-- The newest of a state, and how many there are.
DROP INDEX deliveries_states;
CREATE INDEX deliveries_states ON deliveries (endpoint, state, created_at);
-- What may be forgotten, and not what is only as old.
DROP INDEX deliveries_age;
CREATE INDEX deliveries_age ON deliveries (updated_at) WHERE state <> 'waiting' AND announced = 1;
-- The last error of an endpoint.
CREATE INDEX deliveries_errors ON deliveries (endpoint, updated_at) WHERE error <> '';
