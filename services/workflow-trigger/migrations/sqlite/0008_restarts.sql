-- How often Slurm had restarted the run's job before the end that ended_as names.
ALTER TABLE intents ADD COLUMN restarts BIGINT NOT NULL DEFAULT 0;
