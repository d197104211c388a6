-- On which provider a thing is. Until now a server had one: `server_provider()` is its name.
ALTER TABLE belongings ADD COLUMN provider TEXT NOT NULL DEFAULT 'local';
UPDATE belongings SET provider = server_provider();
