-- What is read often is found without reading what is not asked for. migrations/postgres/0004_reads.sql says what each index is for.

DROP INDEX deliveries_states;
CREATE INDEX deliveries_states ON deliveries (endpoint, state, created_at);
DROP INDEX deliveries_age;
CREATE INDEX deliveries_age ON deliveries (updated_at) WHERE state <> 'waiting' AND announced = 1;
CREATE INDEX deliveries_errors ON deliveries (endpoint, updated_at) WHERE error <> '';
