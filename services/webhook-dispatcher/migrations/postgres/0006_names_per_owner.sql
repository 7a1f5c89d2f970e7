-- Names of endpoints are per owner. `name`, and `endpoint` elsewhere, is the full one from now on: `alice/ci`, or `ci` if it belongs to no user.

UPDATE deliveries SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = deliveries.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE leases SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = leases.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE missed SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = missed.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE attempts SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = attempts.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE redeliveries SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = redeliveries.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE kept SET endpoint = (SELECT owner || '/' || name FROM endpoints WHERE name = kept.endpoint)
WHERE endpoint IN (SELECT name FROM endpoints WHERE owner <> '');
UPDATE endpoints SET name = owner || '/' || name WHERE owner <> '';
