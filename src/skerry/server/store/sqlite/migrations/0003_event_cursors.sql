-- How far the events of each sandbox are collected: what is pruned of them is not to be collected again.
CREATE TABLE event_cursors (
    sandbox_id TEXT PRIMARY KEY,
    cursor INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO event_cursors SELECT sandbox_id, max(cursor) FROM events GROUP BY sandbox_id;
