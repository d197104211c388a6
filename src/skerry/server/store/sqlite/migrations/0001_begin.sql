-- Times are seconds since the epoch. Secrets are stored as SHA-256, passwords as argon2id.
CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    password TEXT,
    admin INTEGER NOT NULL DEFAULT 0,
    disabled INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL
) STRICT;

CREATE TABLE sessions (
    hash BLOB PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    address TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_user ON sessions (user_id);

CREATE TABLE sign_in_links (
    hash BLOB PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users ON DELETE CASCADE,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE projects (
    id TEXT PRIMARY KEY,
    slug TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    personal_of TEXT UNIQUE REFERENCES users ON DELETE SET NULL,
    created_at REAL NOT NULL
) STRICT;

CREATE TABLE members (
    project_id TEXT NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('read', 'write', 'owner')),
    PRIMARY KEY (project_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_user ON members (user_id);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users ON DELETE CASCADE,
    name TEXT NOT NULL,
    hash BLOB NOT NULL,
    scopes TEXT NOT NULL,
    project_id TEXT REFERENCES projects ON DELETE CASCADE,
    created_at REAL NOT NULL,
    expires_at REAL,
    last_used_at REAL
) STRICT;
CREATE INDEX api_keys_user ON api_keys (user_id);

CREATE TABLE sandbox_tokens (
    id TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL,
    project_id TEXT NOT NULL REFERENCES projects ON DELETE CASCADE,
    hash BLOB NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('read', 'write')),
    created_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
) STRICT;
CREATE INDEX sandbox_tokens_sandbox ON sandbox_tokens (sandbox_id);

-- What belongs to which project. A row of what is gone stays: its snapshots, events and audit still belong there.
CREATE TABLE belongings (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    project_id TEXT,
    name TEXT,
    created_at REAL NOT NULL,
    gone_at REAL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX belongings_project ON belongings (project_id, kind, name);

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT NOT NULL,
    project_id TEXT,
    cursor INTEGER NOT NULL,
    type TEXT NOT NULL,
    time REAL NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (sandbox_id, cursor)
) STRICT;
CREATE INDEX events_project ON events (project_id, seq);
CREATE INDEX events_time ON events (time);

CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    actor TEXT NOT NULL,
    credential TEXT NOT NULL,
    action TEXT NOT NULL,
    operation TEXT NOT NULL,
    target TEXT NOT NULL,
    project_id TEXT,
    outcome TEXT NOT NULL,
    address TEXT NOT NULL,
    request_id TEXT NOT NULL
) STRICT;
CREATE INDEX audit_project ON audit (project_id, seq);
CREATE INDEX audit_time ON audit (time);

CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects ON DELETE CASCADE,
    url TEXT NOT NULL,
    secret TEXT NOT NULL,
    types TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    since INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL DEFAULT 0,
    last_status TEXT NOT NULL DEFAULT '',
    dropped INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE server_secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
