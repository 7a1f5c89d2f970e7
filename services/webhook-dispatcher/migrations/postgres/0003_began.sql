-- When a delivery came, or was begun again: from then on its time runs.
ALTER TABLE deliveries ADD COLUMN began_at BIGINT NOT NULL DEFAULT 0;
UPDATE deliveries SET began_at = CASE WHEN round = 0 THEN created_at ELSE updated_at END WHERE state = 'waiting';
