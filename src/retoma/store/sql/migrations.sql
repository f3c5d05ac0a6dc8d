-- name: newest
-- The schema's version, for people; the key's last entry.
SELECT max(version)
FROM migrations;
