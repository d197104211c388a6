-- What ends with a client: it is removed when its holder has not been heard of for a while.
CREATE TABLE leases (
    kind TEXT NOT NULL CHECK (kind IN ('sandbox', 'snapshot')),
    id TEXT NOT NULL,
    holder TEXT NOT NULL,
    process INTEGER NOT NULL,
    preparing INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
