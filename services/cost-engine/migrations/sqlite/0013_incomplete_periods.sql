-- 1 if the file was recovered and some costs are missing: what the period costs now says nothing about its report.
ALTER TABLE closed_periods ADD COLUMN incomplete BIGINT NOT NULL DEFAULT 0;
